"""Every operator and attention-like example on tensors at the edges: against torch, NaN for NaN."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import tvmtile
from tests.edges import ROWS, SCORES, placed
from tvmtile import ops
from tvmtile.errors import TileWarning
from tvmtile.ops import kernels, torch_attention, torch_matmul, torch_rows


@sdpa_kernel(SDPBackend.MATH)  # the gradients of the others add a logarithm to the largest score
def sdpa(q, k, v, is_causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)


TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def activated(name):
    """An activation of each element, beside 15 others of the same row."""
    return lambda x: ops.matmul(x.reshape(-1, 1), torch.ones(1, 16).to(x), activation=name)[
        :, 0
    ].view(x.shape)


OPERATORS = {
    "softmax": (ops.softmax, lambda x: x.softmax(-1)),
    "rms_norm": (ops.rms_norm, lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6)),
    "layer_norm": (ops.layer_norm, lambda x: F.layer_norm(x, x.shape[-1:])),
    "relu": (activated("relu"), F.relu),
    "silu": (activated("silu"), F.silu),
    "gelu": (activated("gelu"), F.gelu),
    "gelu_tanh": (activated("gelu_tanh"), functools.partial(F.gelu, approximate="tanh")),
}
TARGETS = [
    "llvm",
    *(
        pytest.param(target, marks=pytest.mark.full)
        for target in (
            "metal",
            {"kind": "cuda", "arch": "sm_80"},
            {"kind": "cuda", "arch": "sm_90a"},
        )
    ),
]


@pytest.fixture(params=TARGETS, ids=str)
def target(request, monkeypatch):
    """Operators run on a target, the GPUs' on their emulators."""
    if request.param == "llvm":
        yield request.param
        return
    monkeypatch.setattr(kernels, "chosen_target", lambda: request.param)
    compiled = functools.partial(tvmtile.compile, execution_backend="emulator")
    monkeypatch.setattr(kernels, "compile_program", compiled)
    for kept in (torch_rows, torch_matmul):
        monkeypatch.setattr(kept, "_plans", kernels.Plans())
    for module in (torch_rows, torch_matmul, torch_attention):
        monkeypatch.setattr(module, "_kernel", module._kernel.__wrapped__)
    monkeypatch.setattr(
        torch_attention, "_backward_blocks", torch_attention._backward_blocks.__wrapped__
    )
    monkeypatch.setattr(
        torch_attention, "_backward_kernel", torch_attention._backward_kernel.__wrapped__
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "this machine has no Apple GPU", TileWarning)
        # Heads of 40 are no multiple of what tensor cores multiply.
        warnings.filterwarnings("ignore", "gemm: .* element by element", TileWarning)
        yield request.param


def assert_same(ours, theirs, name, scale=None):
    """NaN for NaN, infinity for infinity, and numbers within what rounding explains."""
    assert ours.shape == theirs.shape
    theirs = theirs.to(ours.dtype)
    largest = (
        theirs[theirs.isfinite()].double().abs().max().item() if theirs.isfinite().any() else 0
    )
    info = torch.finfo(ours.dtype)
    within = (
        TOLERANCE[ours.dtype] * (largest if scale is None else scale)
        + info.smallest_normal * info.eps
    )
    torch.testing.assert_close(
        ours, theirs, rtol=0, atol=within, equal_nan=True, msg=lambda text: f"{name}: {text}"
    )


def _overflows(row):
    squares = row.to(torch.promote_types(row.dtype, torch.float32)).square()
    return bool(row.isfinite().all() and not squares.sum().isfinite())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("operator", OPERATORS)
def test_rows_at_the_edges(operator, dtype, target):
    ours, theirs = OPERATORS[operator]
    if dtype == torch.float64 and target != "llvm":
        pytest.skip("for CPUs")
    rows = ROWS(dtype)
    if "norm" in operator:  # what is left of squares that overflow is anybody's choice
        rows = {name: row for name, row in rows.items() if not _overflows(row)}
    x = torch.stack(list(rows.values())).requires_grad_()
    wide = x.detach().double().requires_grad_()
    expected = theirs(wide)
    with torch.no_grad():
        result = ours(x)
    given = placed(expected.shape).to(dtype)
    (of_x,) = torch.autograd.grad(ours(x), x, given)
    (of_wide,) = torch.autograd.grad(expected, wide, given.to(expected.dtype))
    is_ours = operator not in ("silu", "gelu", "gelu_tanh")  # whose gradients are torch's own
    for i, name in enumerate(rows):
        assert_same(result[i], expected[i], name)
        if is_ours and expected[i].isfinite().all() and of_wide[i].isfinite().all():
            assert_same(of_x[i], of_wide[i], f"gradient of {name}")


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(("dim", "causal"), [(16, True), (40, False)])
def test_attention_at_the_edges(name, dtype, dim, causal, target):
    torch.manual_seed(0)
    if dtype == torch.float64 and target != "llvm":
        pytest.skip("for CPUs")
    lengths = (9, 11) if target == "llvm" else (40, 70)
    tensors = SCORES[name](*lengths, dim)
    if causal and not all(x.isfinite().all() for x in tensors):
        pytest.skip("which masked keys are read is anybody's choice")
    rounded = [x.to(dtype).requires_grad_() for x in tensors]
    if not all(torch.equal(x.isinf(), y.isinf()) for x, y in zip(tensors, rounded, strict=True)):
        pytest.skip("the dtype does not hold them")
    tensors = rounded
    wide = [x.detach().double().requires_grad_() for x in tensors]
    result, expected = ops.attention(*tensors, causal=causal), sdpa(*wide, is_causal=causal)
    assert_same(result, expected, name)
    given = placed(expected.shape).to(dtype)
    ours = torch.autograd.grad(result, tensors, given)
    theirs = torch.autograd.grad(expected, wide, given.double())
    if not result.numel() or not tensors[1].numel():
        assert all(not x.any() for x in ours)
        return
    q, k, v = (x.double().abs().max().item() for x in tensors)
    products = given.double().abs().max().item() * v * dim**0.5
    for x, y, scale in zip(ours, theirs, (products * k, products * q, None), strict=True):
        if torch.isfinite(y).all():
            assert_same(x, y, f"gradient of {name}", scale)
