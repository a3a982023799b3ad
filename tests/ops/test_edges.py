"""Operators and examples on tensors at the edges: against torch in float64, NaN for NaN.

On a GPU: `make test-gpu`, or this file alone with `--tier full -k gpu`.
"""

from __future__ import annotations

import functools
import itertools
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import tvmtile
from tests.edges import ROWS, SCORES, WIDTH, placed
from tests.examples.test_examples import load  # noqa: F401 - a fixture
from tests.gpu.machine import HAS_GPU
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
TARGETS = {
    "llvm": "llvm",
    "metal": "metal",
    "sm_80": {"kind": "cuda", "arch": "sm_80"},
    "sm_90a": {"kind": "cuda", "arch": "sm_90a"},
    "gpu": None,  # what is here, on tensors of its own
}
MARKS = {
    "llvm": [],
    "gpu": [pytest.mark.full, pytest.mark.skipif(not HAS_GPU, reason="there is no GPU")],
}
DEVICES = {"gpu": "cuda"}
DTYPES = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
NARROW = ("float32", "bfloat16", "float16")
"""What the emulators multiply; CUDA as TF32 as well, where torch's switch says so."""
WIDTHS = (16, 40, 80, 96, 192, 256)
HEADS = {
    "llvm": [
        *(("float32", 16, True), ("bfloat16", 40, False), ("float16", 80, False)),
        *(("float64", 96, True), ("float32", 192, False), ("bfloat16", 256, False)),
        *(("float64", 40, False), ("float16", 16, True)),
    ],
    "metal": [("float32", 192, False), ("float16", 256, False), ("bfloat16", 40, True)],
    "sm_80": [("float32", 256, False), ("tf32", 80, False), ("float16", 96, True)],
    "sm_90a": [("bfloat16", 256, False), ("float16", 40, False), ("float32", 192, True)],
    "gpu": [*itertools.product((*NARROW, "tf32"), WIDTHS, (False, True))],
}
"""Dtype, elements of a head, causal: on emulators, which are slow, each once."""


def _case(target, *values):
    return pytest.param(target, *values, marks=MARKS.get(target, [pytest.mark.full]))


def _rows():
    """All dtypes on the CPU and on a GPU; of an emulator one for each operator."""
    for of_target, target in enumerate(TARGETS):
        all_of_them = {"llvm": [*NARROW, "float64"], "gpu": NARROW}.get(target)
        for number, operator in enumerate(OPERATORS):
            for dtype in all_of_them or [NARROW[(number + of_target) % 3]]:
                yield _case(target, operator, dtype)


def _scores():
    """All tensors of scores for all heads on a GPU, half of them for each elsewhere."""
    for target, heads in HEADS.items():
        for number, (dtype, dim, causal) in enumerate(heads):
            for name in [*SCORES] if target == "gpu" else [*SCORES][number % 2 :: 2]:
                # Which masked keys are read is anybody's choice.
                if not (causal and name.endswith((" in q", " in k", " in v"))):
                    yield _case(target, name, dtype, dim, causal)


@pytest.fixture
def target(request, monkeypatch):
    """Operators run on a target, the GPUs' on their emulators."""
    target = TARGETS[request.param]
    if request.param in ("llvm", "gpu"):
        yield request.param
        return
    monkeypatch.setattr(kernels, "chosen_target", lambda: target)
    compiled = functools.partial(tvmtile.compile, execution_backend="emulator")
    monkeypatch.setattr(kernels, "compile_program", compiled)
    for kept in (torch_rows, torch_matmul):
        monkeypatch.setattr(kept, "_plans", kernels.Plans())
    for module in (torch_rows, torch_matmul, torch_attention):
        monkeypatch.setattr(module, "_kernel", module._kernel.__wrapped__)
    for name in ("_backward_blocks", "_backward_kernel"):
        monkeypatch.setattr(torch_attention, name, getattr(torch_attention, name).__wrapped__)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "this machine has no Apple GPU", TileWarning)
        yield request.param


@pytest.fixture
def tolerance(dtype, monkeypatch):
    """Of an element relative to the largest one; TF32 has 10 bits of each operand of two products."""
    if dtype == "tf32":
        monkeypatch.setattr(kernels, "float32_precision", lambda _: "tf32")
        for module in (torch_matmul, torch_attention):
            monkeypatch.setattr(module, "float32_precision", lambda _: "tf32")
        monkeypatch.setitem(TOLERANCE, torch.float32, TOLERANCE[torch.float16])


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


@pytest.mark.parametrize(("target", "operator", "dtype"), list(_rows()), indirect=["target"])
def test_rows_at_the_edges(target, operator, dtype):
    ours, theirs = OPERATORS[operator]
    rows = ROWS(DTYPES[dtype])
    if "norm" in operator:  # what is left of squares that overflow is anybody's choice
        rows = {name: row for name, row in rows.items() if not _overflows(row)}
    x = torch.stack(list(rows.values())).to(DEVICES.get(target)).requires_grad_()
    wide = x.detach().double().requires_grad_()
    expected = theirs(wide)
    with torch.no_grad():
        result = ours(x)
    given = placed(expected.shape).to(x)
    (of_x,) = torch.autograd.grad(ours(x), x, given)
    (of_wide,) = torch.autograd.grad(expected, wide, given.to(expected.dtype))
    is_ours = operator not in ("silu", "gelu", "gelu_tanh")  # whose gradients are torch's own
    for i, name in enumerate(rows):
        assert_same(result[i], expected[i], name)
        if is_ours and expected[i].isfinite().all() and of_wide[i].isfinite().all():
            assert_same(of_x[i], of_wide[i], f"gradient of {name}")


def _given(name, queries, keys, dim, dtype, device=None):
    """Q, K and V of a dtype that holds them."""
    torch.manual_seed(0)
    tensors = SCORES[name](queries, keys, dim)
    rounded = [x.to(device, dtype).requires_grad_() for x in tensors]
    if not all(
        torch.equal(x.isinf(), y.isinf().cpu()) for x, y in zip(tensors, rounded, strict=True)
    ):
        pytest.skip("the dtype does not hold them")
    return rounded


@pytest.mark.full(but=1)
@pytest.mark.usefixtures("tolerance")
@pytest.mark.parametrize(
    ("target", "name", "dtype", "dim", "causal"), list(_scores()), indirect=["target"]
)
def test_attention_at_the_edges(target, name, dtype, dim, causal):
    lengths = (9, 11) if target == "llvm" else (40, 70)
    tensors = _given(name, *lengths, dim, DTYPES[dtype], DEVICES.get(target))
    wide = [x.detach().double().requires_grad_() for x in tensors]
    result, expected = ops.attention(*tensors, causal=causal), sdpa(*wide, is_causal=causal)
    assert_same(result, expected, name)
    given = placed(expected.shape).to(result)
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


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", ["softmax", "rms_norm", "layer_norm"])
def test_rows_at_the_edges_in_examples(name, load):  # noqa: F811
    rows = {
        of_row: row
        for of_row, row in ROWS(torch.float32).items()
        if "norm" not in name or not _overflows(row)
    }
    x = torch.stack(list(rows.values()))
    weights = [torch.ones(WIDTH), torch.zeros(WIDTH)][
        : {"rms_norm": 1, "layer_norm": 2}.get(name, 0)
    ]
    program = getattr(load(name), name)(*x.shape)
    result = tvmtile.compile(program, out_idx=-1, target="llvm")(x, *weights)
    expected = OPERATORS[name][1](x.double())
    for i, of_row in enumerate(rows):
        assert_same(result[i], expected[i], of_row)


@pytest.mark.full(but=1)
@pytest.mark.parametrize(("dim", "causal"), [(16, True), (40, False), (192, False)])
def test_scores_at_the_edges_in_examples(dim, causal, load):  # noqa: F811
    program = load("flash_attention").flash_attention(1, 2, 11, dim, causal)
    kernel = tvmtile.compile(program, out_idx=-1, target="llvm")
    for name in SCORES:
        with torch.no_grad():
            tensors = _given(name, 11, 11, dim, torch.float32)
        fits = all(x.shape == (1, 2, 11, dim) for x in tensors)
        if fits and not (causal and not all(x.isfinite().all() for x in tensors)):
            tensors = [x.detach() for x in tensors]
            expected = sdpa(*(x.double() for x in tensors), is_causal=causal)
            assert_same(kernel(*tensors), expected, name)
