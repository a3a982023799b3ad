"""`tvmtile.ops` beside torch on an NVIDIA GPU: products of few rows, rows, and gradients.

    python benchmarks/gpu_ops.py      # prints the tables of h200/ops.md

Results are compared before they are measured, and measured as gpu_timing.py says, by the device's time
of a call with the tensors that the operator allocates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from gpu_timing import measure

from tvmtile import ops
from tvmtile.ops.configurations import matmul_configuration
from tvmtile.ops.kernels import size_class, target_for

ROWS = (16, 32, 64, 128, 200, 256, 512)
WEIGHTS = ((1024, 4096), (4096, 4096), (14336, 4096), (4096, 14336), (2048, 8192), (8192, 8192))
"""Columns of the result, and length of the sums."""


def matrix(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def compare(name: str, ours: Callable[[], object], theirs: Callable[[], object]) -> str:
    results, expected = (list(x) if isinstance(x, tuple) else [x] for x in (ours(), theirs()))
    errors = (
        ((a.double() - b.double()).abs().max() / b.double().abs().max()).item()
        for a, b in zip(results, expected, strict=True)
    )
    error = max(errors)
    assert error < 2e-2, (name, error)
    times = measure({"tvmtile": ours, "torch": theirs})
    own, other = times["tvmtile"] * 1e3, times["torch"] * 1e3
    return f"{own:.1f} us | {other:.1f} us | {other / own:.2f} | {error:.0e} |"


def blocks(M: int, N: int, K: int) -> str:
    c = matmul_configuration(target_for("cuda"), size_class(M), N, K, "bfloat16", may_split=True)
    parts = [f"{c['block_M']} x {c['block_N']} x {c['block_K']}", f"{c['stages']} stages"]
    parts += ["swapped"] if c["swapped"] else []
    parts += [f"{c['splits']} parts"] if c["splits"] > 1 else []
    return ", ".join(parts)


def products() -> None:
    print("| M x N x K | blocks | tvmtile | torch | ratio | difference |")
    print("| --- | --- | --- | --- | --- | --- |")
    for M in ROWS:
        for N, K in WEIGHTS:
            a, w = matrix(M, K), matrix(N, K)
            ours = partial(ops.matmul, a, w, transpose_b=True)
            row = compare(f"{M} {N} {K}", ours, partial(torch.mm, a, w.T))
            print(f"| {M} x {N} x {K} | {blocks(M, N, K)} | {row}", flush=True)


def rows() -> None:
    """Softmax and norms, and their gradients."""
    print("\n| call | tvmtile | torch | ratio | difference |\n| --- | --- | --- | --- | --- |")
    for N in (2048, 4096, 8192, 16384):
        x, weight, bias, gradient = matrix(8192, N), matrix(N), matrix(N), matrix(8192, N)
        pairs = {
            "softmax": ((x,), ops.softmax, partial(torch.softmax, dim=-1)),
            "rms_norm": ((x, weight), ops.rms_norm, lambda x, w: F.rms_norm(x, w.shape, w, 1e-6)),
            "layer_norm": (
                (x, weight, bias), ops.layer_norm, lambda x, w, b: F.layer_norm(x, w.shape, w, b)
            ),
        }  # fmt: skip
        for name, (tensors, ours, theirs) in pairs.items():
            row = compare(name, partial(ours, *tensors), partial(theirs, *tensors))
            print(f"| {name} 8192 x {N} | {row}", flush=True)
            row = compare(name, *(gradients(f, tensors, gradient) for f in (ours, theirs)))
            print(f"| {name} 8192 x {N}, gradients | {row}", flush=True)


def gradients(
    function: Callable[..., torch.Tensor], tensors: tuple[torch.Tensor, ...], given: torch.Tensor
) -> Callable[[], object]:
    """Calls the backward alone."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    result = function(*leaves)
    return partial(torch.autograd.grad, result, leaves, given, retain_graph=True)


def attention() -> None:
    print("\n| call | tvmtile | torch | ratio | difference |\n| --- | --- | --- | --- | --- |")
    for heads, kv_heads, causal in ((16, 16, False), (16, 16, True), (32, 8, True)):
        q, k, v = (matrix(4, count, 4096, 128) for count in (heads, kv_heads, kv_heads))
        theirs = partial(
            F.scaled_dot_product_attention, is_causal=causal, enable_gqa=heads > kv_heads
        )
        given = torch.randn_like(q)
        pair = (
            gradients(f, (q, k, v), given) for f in (partial(ops.attention, causal=causal), theirs)
        )
        name = f"attention 4 x {heads} / {kv_heads} heads, 4096, d 128, gradients"
        print(f"| {name}{', causal' if causal else ''} | {compare(name, *pair)}", flush=True)


if __name__ == "__main__":
    about = torch.cuda.get_device_name(), f"torch {torch.__version__}"
    print(*about, sep=", ")
    torch.manual_seed(0)
    products()
    rows()
    attention()
