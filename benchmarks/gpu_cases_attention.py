"""Attention, forward and backward, and of one query a sequence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from gpu_case import Case, Tensors, configurations, matrix
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

ATTENTION = configurations(
    "block_M block_N stages threads",
    (128, 128, 2, 256),
    (192, 128, 2, 384),
)
# Tiles of 64 columns are half as large, and a step takes half as long.
ATTENTION_64 = [*ATTENTION, *configurations("block_M block_N stages threads", (128, 128, 4, 256))]
ATTENTION_TRITON = configurations(
    "BM BN num_warps num_stages",
    (64, 64, 4, 3),
    (128, 64, 4, 3),
    (128, 64, 8, 3),
    (128, 128, 8, 3),
    (128, 64, 4, 4),
)


def attention_cases() -> Iterator[Case]:
    """Attention of 16 heads, 16,384 tokens in sequences of one length, and of one query a sequence."""
    for dim in (64, 128):
        for causal in (False, True):
            for length in (1024, 2048, 4096, 8192, 16384):
                yield attention_case(16384 // length, 16, length, dim, causal)
    for causal in (False, True):
        yield backward_case(4, 16, 4096, 128, causal)
    yield decode_case(64, 8, 8, 8192, 128)


def _by(backend: SDPBackend, **options: Any) -> Callable[..., torch.Tensor]:
    """Torch's function as one of its backends computes it."""

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object) -> torch.Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, **options)

    return call


def _by_heads(attend: Callable[..., torch.Tensor], heads: int) -> Callable[..., torch.Tensor]:
    """Attention in float64, one head at a time: all scores would be 8 GB and more."""

    def call(*tensors: torch.Tensor) -> torch.Tensor:
        parts = [attend(*(x[:, head].double() for x in tensors[:3])) for head in range(heads)]
        return torch.stack(parts, dim=1)

    return call


def attention_case(batch: int, heads: int, length: int, dim: int, causal: bool) -> Case:
    shape = (batch, heads, length, dim)
    attend = partial(scaled_dot_product_attention, is_causal=causal)
    seen = "causal" if causal else "full"
    return Case(
        name=f"attention bfloat16 d {dim} {seen} {batch} x {heads} x {length}",
        program="attention",
        arguments={
            "batch": batch,
            "heads": heads,
            "length": length,
            "dim": dim,
            "causal": causal,
            "dtype": "bfloat16",
        },
        configurations=ATTENTION_64 if dim == 64 else ATTENTION,
        inputs=lambda: tuple(matrix(*shape, dtype="bfloat16") for _ in range(3)),
        out=lambda q, k, v: torch.empty_like(q),
        reference=_by_heads(attend, heads),
        tolerance=2e-2,
        work=4.0 * batch * heads * length * length * dim / (2 if causal else 1),
        unit="TFLOP/s",
        rivals={
            "cuDNN": _by(SDPBackend.CUDNN_ATTENTION, is_causal=causal),
            "torch flash": _by(SDPBackend.FLASH_ATTENTION, is_causal=causal),
        },
        triton=("attention", ATTENTION_TRITON),
        triton_arguments=(causal,),
        goals={"cuDNN": 1.03, "torch flash": 1.03, "TileLang": 1.03},
    )


BACKWARD = configurations(
    "block_M block_N stages threads",
    (128, 64, 2, 256),
    (128, 64, 1, 256),
    (64, 64, 2, 128),
)


def backward_case(batch: int, heads: int, length: int, dim: int, causal: bool) -> Case:
    """The gradients of queries, keys and values, from what the forward pass leaves."""
    shape = (batch, heads, length, dim)
    attend = partial(scaled_dot_product_attention, is_causal=causal)
    graphs: dict[str, tuple[torch.Tensor, list[torch.Tensor]]] = {}

    def inputs() -> Tensors:
        q, k, v, do = (matrix(*shape, dtype="bfloat16") for _ in range(4))
        forward = torch.ops.aten._scaled_dot_product_flash_attention
        o, lse = forward(q, k, v, is_causal=causal)[:2]
        work = (torch.empty(size, device="cuda") for size in (shape[:3], shape))
        # With the sum of weights in the place of the largest one its logarithm is 0.
        of_scores = lse * math.sqrt(shape[-1])
        return q, k, v, o, do, torch.stack([of_scores, torch.zeros_like(lse)], dim=1), *work

    def reference(*tensors: torch.Tensor) -> torch.Tensor:
        parts = [
            _gradients(attend, *(tensors[i][:, h] for i in (0, 1, 2, 4))) for h in range(heads)
        ]
        return torch.stack(parts, dim=2)

    def by(backend: SDPBackend) -> Callable[..., object]:
        def call(*tensors: torch.Tensor) -> object:
            if backend.name not in graphs:
                leaves = [x.detach().clone().requires_grad_() for x in tensors[:3]]
                graphs[backend.name] = _by(backend, is_causal=causal)(*leaves), leaves
            out, leaves = graphs[backend.name]
            return torch.autograd.grad(out, leaves, tensors[4], retain_graph=True)

        return call

    seen = "causal" if causal else "full"
    return Case(
        name=f"attention backward bfloat16 d {dim} {seen} {batch} x {heads} x {length}",
        program="attention_backward",
        arguments={"batch": batch, "heads": heads, "length": length, "dim": dim, "causal": causal},
        configurations=BACKWARD,
        inputs=inputs,
        out=lambda q, *rest: q.new_empty(3, *shape),
        results=tuple,
        reference=reference,
        tolerance=2e-2,
        work=10.0 * batch * heads * length * length * dim / (2 if causal else 1),
        unit="TFLOP/s",
        rivals={
            "cuDNN": by(SDPBackend.CUDNN_ATTENTION),
            "torch flash": by(SDPBackend.FLASH_ATTENTION),
        },
        others={"cuDNN": 1.0, "torch flash": 1.0},
        goals={"cuDNN": 0.95},
    )


def _gradients(attend: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> torch.Tensor:
    """The gradients of queries, keys and values in float64; the fourth tensor is that of the output."""
    q, k, v, do = (x.double().requires_grad_() for x in tensors)
    return torch.stack(torch.autograd.grad(attend(q, k, v), (q, k, v), do.detach()))


DECODE = configurations(
    "block stages",
    (64, 5),
    (64, 6),
    (128, 2),
    (128, 3),
)


def decode_case(batch: int, groups: int, heads: int, length: int, dim: int) -> Case:
    """Bytes of keys and values a second. Torch gets the heads of a group as so many queries, too."""

    def inputs() -> Tensors:
        shapes = ((batch, groups, heads, dim), *2 * ((batch, groups, length, dim),))
        q, k, v = (matrix(*shape, dtype="bfloat16") for shape in shapes)
        parts = torch.empty(1, batch, groups, heads, dim, device="cuda")
        return q, k, v, parts, torch.empty(1, batch, groups, heads, device="cuda")

    def grouped(backend: SDPBackend) -> Callable[..., torch.Tensor]:
        attend = _by(backend, enable_gqa=True)

        def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object) -> torch.Tensor:
            return attend(q.view(batch, -1, 1, dim), k, v).view(q.shape)

        return call

    return Case(
        name=f"decode attention bfloat16 d {dim}, {batch} x {groups} x {heads} heads, {length} keys",
        program="decode_attention",
        arguments={
            "batch": batch,
            "groups": groups,
            "heads": heads,
            "length": length,
            "dim": dim,
        },
        configurations=DECODE,
        inputs=inputs,
        out=lambda q, *rest: torch.empty_like(q),
        reference=_by_heads(scaled_dot_product_attention, groups),
        tolerance=2e-2,
        work=4.0 * batch * groups * length * dim,
        unit="GB/s",
        rivals={
            "cuDNN": grouped(SDPBackend.CUDNN_ATTENTION),
            "torch flash": grouped(SDPBackend.FLASH_ATTENTION),
            "cuDNN, heads as queries": _by(SDPBackend.CUDNN_ATTENTION),
        },
        goals={"cuDNN": 1.0},
    )
