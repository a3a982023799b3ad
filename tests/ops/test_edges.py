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
from tvmtile.jit.backends import chosen_target
from tvmtile.ops import kernels, programs, torch_attention, torch_matmul, torch_rows
from tvmtile.target import capabilities, resolve


@sdpa_kernel(SDPBackend.MATH)  # the gradients of the others add a logarithm to the largest score
def sdpa(q, k, v, is_causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)


TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def activated(name):
    """An activation of each element, beside 15 others of the same row."""
    return lambda x: ops.matmul(x.reshape(-1, 1), torch.ones(1, 16).to(x), activation=name)[
        :, 0
    ].view(x.shape)


ACTIVATIONS = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
}
OPERATORS = {
    "softmax": (ops.softmax, lambda x: x.softmax(-1)),
    "rms_norm": (ops.rms_norm, lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6)),
    "layer_norm": (ops.layer_norm, lambda x: F.layer_norm(x, x.shape[-1:])),
    **{name: (activated(name), function) for name, function in ACTIVATIONS.items()},
}
TARGETS = {
    "llvm": "llvm",
    "metal": "metal",
    "sm_80": {"kind": "cuda", "arch": "sm_80"},
    "sm_90a": {"kind": "cuda", "arch": "sm_90a"},
    "gpu": "cuda",  # what is here, on tensors of its own
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
"""The dtypes that the emulators multiply; CUDA as TF32 as well, where torch's switch says so."""
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
        if request.param == "gpu":
            monkeypatch.delenv("TVMTILE_TARGET")  # which the tests set
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


def _flushes():
    """Tell whether this processor's products of bfloat16 take subnormal numbers for 0."""
    return "vdpbf16ps" in capabilities.cpu(resolve(chosen_target())).dots


def _overflows(row):
    squares = row.to(torch.promote_types(row.dtype, torch.float32)).square()
    return bool(row.isfinite().all() and not squares.sum().isfinite())


@pytest.mark.parametrize(("target", "operator", "dtype"), list(_rows()), indirect=["target"])
def test_rows_at_the_edges(target, operator, dtype):
    ours, theirs = OPERATORS[operator]
    rows = ROWS(DTYPES[dtype])
    if "norm" in operator:  # what is left of squares that overflow is anybody's choice
        rows = {name: row for name, row in rows.items() if not _overflows(row)}
    if (target, dtype) == ("llvm", "bfloat16") and operator in ACTIVATIONS and _flushes():
        del rows["subnormals"]
    x = torch.stack(list(rows.values())).to(DEVICES.get(target)).requires_grad_()
    wide = x.detach().cpu().double().requires_grad_()
    expected = theirs(wide)
    with torch.no_grad():
        result = ours(x).cpu()
    given = placed(expected.shape).to(x)
    (of_x,) = torch.autograd.grad(ours(x), x, given)
    (of_wide,) = torch.autograd.grad(expected, wide, given.to(wide))
    is_ours = operator not in ("silu", "gelu", "gelu_tanh")  # whose gradients are torch's own
    for i, name in enumerate(rows):
        assert_same(result[i], expected[i], name)
        if is_ours and expected[i].isfinite().all() and of_wide[i].isfinite().all():
            # torch's gradient of softmax rounds the products on a GPU, whose mean it takes away.
            rounded = (given[i].cpu() * result[i]).abs().max().item()
            scale = rounded if (target, operator) == ("gpu", "softmax") else None
            assert_same(of_x[i].cpu(), of_wide[i], f"gradient of {name}", scale)


def _given(name, queries, keys, dim, dtype, device=None):
    """Q, K and V; None if the dtype does not hold them."""
    torch.manual_seed(0)
    tensors = SCORES[name](queries, keys, dim)
    if dtype == "tf32":  # its products are exact of numbers that have 8 bits
        tensors = [x.bfloat16().float() for x in tensors]
    rounded = [x.to(device, DTYPES[dtype]).requires_grad_() for x in tensors]
    holds = all(
        torch.equal(x.isinf(), y.isinf().cpu()) for x, y in zip(tensors, rounded, strict=True)
    )
    return rounded if holds else None


def _all_given(queries, keys, dim, dtype, device=None):
    """Names, and all Q, K and V that have so many queries, keys and elements."""
    shapes = [(queries, dim), (keys, dim), (keys, dim)]
    for name in SCORES:
        tensors = _given(name, queries, keys, dim, dtype, device)
        if tensors is not None and [x.shape[2:] for x in tensors] == shapes:
            yield name, [x.detach() for x in tensors]


@pytest.mark.full(but=1)
@pytest.mark.usefixtures("tolerance")
@pytest.mark.parametrize(
    ("target", "name", "dtype", "dim", "causal"), list(_scores()), indirect=["target"]
)
def test_attention_at_the_edges(target, name, dtype, dim, causal):
    lengths = (9, 11) if target == "llvm" else (40, 70)
    tensors = _given(name, *lengths, dim, dtype, DEVICES.get(target))
    if tensors is None:
        pytest.skip("the dtype does not hold them")
    wide = [x.detach().double().requires_grad_() for x in tensors]
    result, expected = ops.attention(*tensors, causal=causal), sdpa(*wide, is_causal=causal)
    assert_same(result, expected, name)
    given = placed(expected.shape).to(result)
    ours = torch.autograd.grad(result, tensors, given)
    theirs = torch.autograd.grad(expected, wide, given.double())
    if not result.numel() or not tensors[1].numel():
        assert all(not x.any() for x in ours)
        return
    assert_same_gradients(ours, theirs, name, given, *tensors)


def assert_same_gradients(ours, theirs, name, given, *tensors):
    """Torch's finite gradients are compared: errors count before softmax takes their mean away."""
    q, k, v = (x.double().abs().max().item() for x in tensors)
    products = given.double().abs().max().item() * v * tensors[0].shape[-1] ** 0.5
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


def _compiled(program, target, out_idx):
    on_machine = target in ("llvm", "gpu")
    return tvmtile.compile(program, out_idx, TARGETS[target], None if on_machine else "emulator")


def _seen(q, k, v):
    """Attention, in which a query that sees nothing has zeros."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    sees_nothing = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.softmax(-1).masked_fill(sees_nothing, 0) @ v


def _kernels(*of_llvm, metal, sm_90a):
    """The CPU's cases, and one for each emulator, which a GPU has as well."""
    others = [("metal", *metal), ("sm_90a", *sm_90a), ("gpu", *metal), ("gpu", *sm_90a)]
    return [_case(*case) for case in [*(("llvm", *case) for case in of_llvm), *others]]


@pytest.mark.full(but=1)
@pytest.mark.parametrize(("dim", "causal"), [(16, True), (40, False), (192, False)])
def test_scores_at_the_edges_in_examples(dim, causal, load):  # noqa: F811
    program = load("flash_attention").flash_attention(1, 2, 11, dim, causal)
    kernel = tvmtile.compile(program, out_idx=-1, target="llvm")
    for name, tensors in _all_given(11, 11, dim, "float32"):
        if not causal or all(x.isfinite().all() for x in tensors):
            expected = sdpa(*(x.double() for x in tensors), is_causal=causal)
            assert_same(kernel(*tensors), expected, name)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:this machine has no Apple GPU")
@pytest.mark.parametrize(
    ("target", "length", "dim", "causal", "dtype"),
    _kernels(
        (11, 40, False, "float32"), (70, 192, False, "float16"), (1, 80, True, "float32"),
        metal=(40, 80, False, "float16"), sm_90a=(40, 96, True, "bfloat16"),
    ),
)  # fmt: skip
def test_gradients_at_the_edges(target, length, dim, causal, dtype):
    shape, device = (1, 2, length, dim), DEVICES.get(target)
    options = {"target": resolve(TARGETS[target]), "causal": causal}
    blocks = {"block_M": 32, "block_N": 16, "stages": 1, "threads": 128}
    backward = programs.attention_backward(*shape, dtype, configuration=blocks, **options)
    backward = _compiled(backward, target, [8, 9, 10])
    forward = _compiled(programs.attention(*shape, dtype, lse=True, **options), target, [3, 4])
    given = placed(shape).to(device, DTYPES[dtype])
    scratch = torch.empty(shape[:3], device=device), torch.empty(shape, device=device)
    for name, tensors in _all_given(length, length, dim, dtype, device):
        if causal and not all(x.isfinite().all() for x in tensors):
            continue
        wide = [x.double().requires_grad_() for x in tensors]
        expected = sdpa(*wide, is_causal=causal)
        output, lse = forward(*tensors)
        assert_same(output, expected, name)
        ours = backward(*tensors, output, given, lse, *scratch)
        theirs = torch.autograd.grad(expected, wide, given.double())
        assert_same_gradients(ours, theirs, name, given, *tensors)


@pytest.mark.full(but=1)
@pytest.mark.filterwarnings("ignore:this machine has no Apple GPU")
@pytest.mark.parametrize(
    ("target", "length", "splits", "dim", "dtype"),
    _kernels(
        (11, 1, 40, "bfloat16"), (70, 2, 96, "float32"), (130, 3, 16, "float16"),
        (1, 3, 192, "float32"),
        metal=(70, 2, 96, "float16"), sm_90a=(70, 2, 256, "bfloat16"),
    ),
)  # fmt: skip
def test_decoding_at_the_edges_in_examples(target, length, splits, dim, dtype, load):  # noqa: F811
    example, sizes, device = load("decode_attention"), (1, 2, 3), DEVICES.get(target)
    program = example.decode_attention(
        *sizes, length, dim, splits, rows=16, block=32, stages=1, dtype=dtype
    )
    kernel = _compiled(program, target, -1)
    for name, tensors in _all_given(3, length, dim, dtype, device):
        result = kernel(*tensors, *example.workspace(*sizes, dim, splits, device))
        assert_same(result, _seen(*(x.double() for x in tensors)), name)


@pytest.mark.full(but=1)
@pytest.mark.filterwarnings("ignore:this machine has no Apple GPU")
@pytest.mark.parametrize(
    ("target", "page", "heads", "dim"),
    _kernels((1, 1, 192), (16, 3, 40), (7, 5, 256), metal=(16, 3, 96), sm_90a=(16, 3, 80)),
)
def test_pages_at_the_edges_in_examples(target, page, heads, dim, load):  # noqa: F811
    """Of cached keys and values, the others are NaN."""
    pages, longest, device = 20, 5, DEVICES.get(target)
    program = load("paged_attention").paged_attention(4, 2, heads, dim, pages, page, longest, 32)
    kernel = _compiled(program, target, -1)
    table = torch.randperm(pages, dtype=torch.int32).view(4, longest)
    lengths = [0, 1, 3 * page + page // 2, longest * page]
    for name, (q, k, v) in _all_given(heads, longest * page, dim, "float16", device):
        caches = torch.full((2, pages, page, 2, dim), torch.nan, dtype=q.dtype, device=device)
        for b, length in enumerate(lengths):
            for cache, x in zip(caches.flatten(1, 2), (k, v), strict=True):
                entries = torch.arange(length)
                places = table[b, entries // page] * page + entries % page
                cache[places.to(device)] = x[0, :, :length].transpose(0, 1)
        result = kernel(
            q.expand(4, -1, -1, -1).contiguous(),
            *caches.view(2, pages * page, 2 * dim),
            *(x.to(device) for x in (table, torch.tensor(lengths, dtype=torch.int32))),
        )
        seen = (_seen(q.double(), *(x[:, :, :n].double() for x in (k, v))) for n in lengths)
        assert_same(result, torch.cat([*seen]), name)
