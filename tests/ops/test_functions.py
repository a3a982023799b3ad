"""`tvmtile.ops.matmul`, `attention`, `softmax` and the norms on tensors: against torch in float64."""

import functools

import pytest
import torch
import torch.nn.functional as F

import tvmtile
from tvmtile import ops
from tvmtile.errors import ArgumentError, InvalidValue
from tvmtile.ops import configurations, kernels, torch_attention, torch_matmul, torch_rows

MATMUL = torch.backends.cuda.matmul

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
TOLERANCE[torch.float64] = 1e-9


def random(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype).requires_grad_()


def assert_near(results, expected, tolerance=None):
    for ours, theirs in zip(results, expected, strict=True):
        assert ours.shape == theirs.shape
        within = (tolerance or TOLERANCE[ours.dtype]) * theirs.abs().max().item()
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=within)


def assert_same(function, reference, *tensors):
    """Results and gradients, by autograd's path and by the one without it."""
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    result, expected = function(*tensors), reference(*wide)
    gradient = torch.randn(expected.shape)
    gradients = torch.autograd.grad(result, tensors, gradient.to(result.dtype))
    theirs = torch.autograd.grad(expected, wide, gradient.double())
    with torch.no_grad():
        assert_near([result, function(*tensors), *gradients], [expected, expected, *theirs])


def linear(act=lambda x: x):
    return lambda *tensors: act(F.linear(*tensors))


def by_matmul(activation=None):
    return lambda a, w, bias: ops.matmul(a, w.T, bias, activation=activation)


def swapped(function, **options):
    return lambda *x: function(*(tensor.transpose(1, 2) for tensor in x), **options)


def rms_norm(x, weight=None):
    return F.rms_norm(x, x.shape[-1:], weight, 1e-6)


def layer_norm(x, weight=None, bias=None):
    return F.layer_norm(x, x.shape[-1:], weight, bias)


sdpa = F.scaled_dot_product_attention
HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, (torch.float32,)
LINEAR = [(3, 5, 40), (24, 40), (24,)]
HEADS = [(2, 4, 70, 32), (2, 2, 90, 32), (2, 2, 90, 16)]
SWAPPED = [(2, 70, 4, 32), (2, 90, 2, 32), (2, 90, 2, 16)]
ROWS, ALL = [(3, 4, 50), (50,), (50,)], (torch.float32, BRAIN, torch.float64)
SHARED, CAUSAL = {"enable_gqa": True}, {"enable_gqa": True, "is_causal": True}
OPERATORS = [
    (SINGLE, by_matmul(), linear(), LINEAR),
    (SINGLE, by_matmul("relu"), linear(F.relu), LINEAR),
    ((HALF,), by_matmul("gelu"), linear(F.gelu), LINEAR),
    ((BRAIN,), by_matmul("silu"), linear(F.silu), LINEAR),
    (SINGLE, by_matmul(), linear(), [(40,), (24, 40), (24,)]),
    (SINGLE, torch_matmul.matmul, torch.matmul, [(2, 3, 20, 30), (2, 3, 30, 10)]),
    (SINGLE, ops.attention, lambda *x: sdpa(*x, **SHARED), HEADS),
    (SINGLE, lambda *x: ops.attention(*x, causal=True), lambda *x: sdpa(*x, **CAUSAL), HEADS),
    (SINGLE, swapped(ops.attention), swapped(sdpa, **SHARED), SWAPPED),
    (SINGLE, swapped(ops.attention, causal=True), swapped(sdpa, **CAUSAL), SWAPPED),
    (ALL, ops.softmax, lambda x: x.softmax(-1), ROWS[:1]),
    (ALL, lambda x: ops.softmax(x, 1), lambda x: x.softmax(1), ROWS[:1]),
    (ALL, ops.rms_norm, rms_norm, ROWS[:2]),
    (ALL, ops.rms_norm, rms_norm, ROWS[:1]),
    (ALL, ops.layer_norm, layer_norm, ROWS),
    (ALL, ops.layer_norm, layer_norm, ROWS[:1]),
    (SINGLE, ops.rms_norm, rms_norm, [(40,), (40,)]),
    (SINGLE, ops.layer_norm, layer_norm, [(40,), (40,), (40,)]),
]


@pytest.mark.full
@pytest.mark.parametrize(("dtypes", "ours", "theirs", "shapes"), OPERATORS)
def test_results_and_gradients_are_torchs(dtypes, ours, theirs, shapes):
    for dtype in dtypes:
        assert_same(ours, theirs, *(random(*shape, dtype=dtype) for shape in shapes))


@pytest.mark.full
def test_operands_however_they_lie():
    a, b = torch.randn(2, 21, 30), torch.randn(2, 10, 30)
    wide = a.double() @ b.double().mT
    every_second = a[..., ::2].double() @ b[..., ::2].double().mT
    q, k, v = torch.randn(2, 8, 1, 32), torch.randn(2, 2, 70, 32), torch.randn(2, 2, 70, 32)
    few_queries = sdpa(q.double(), k.double(), v.double(), **SHARED)
    for result, expected in (
        (ops.matmul(a, b, transpose_b=True), wide),
        (ops.matmul(a.mT.contiguous(), b, transpose_a=True, transpose_b=True), wide),
        (ops.matmul(a[..., ::2], b[..., ::2].mT), every_second),
        (ops.matmul(a[0, 0], b[0].T), wide[0, 0]),
        (ops.attention(q, k, v), few_queries),
    ):
        assert_near([result], [expected])
    result = ops.matmul(a.half(), b.mT.half(), out_dtype=torch.float32)
    assert_near([result], [a.half().double() @ b.half().double().mT])
    swapped = torch.randn(2, 70, 4, 32).transpose(1, 2)
    for x in (swapped, swapped.contiguous()):
        assert ops.attention(x, x, x).is_contiguous() == x.is_contiguous()


def test_nothing_is_multiplied_and_seen():
    assert torch.equal(ops.matmul(torch.ones(3, 0), torch.ones(0, 4)), torch.zeros(3, 4))
    assert ops.matmul(torch.ones(0, 3), torch.ones(3, 4)).shape == (0, 4)
    assert torch.equal(ops.matmul(torch.ones(2, 3, 0), torch.ones(0, 4)), torch.zeros(2, 3, 4))
    assert ops.matmul(torch.ones(2, 0, 0), torch.ones(0, 4)).shape == (2, 0, 4)
    q, none = torch.randn(2, 8, 1, 32), torch.randn(2, 2, 0, 32)
    assert torch.equal(ops.attention(q, none, none), torch.zeros_like(q))


def test_relu_passes_on_no_infinite_gradient_where_it_is_zero():
    a, b = torch.eye(2).requires_grad_(), torch.tensor([[1.0], [-1.0]])
    given = torch.full((2, 1), torch.inf)
    (ours,) = torch.autograd.grad(ops.matmul(a, b, activation="relu"), a, given)
    (theirs,) = torch.autograd.grad(torch.relu(a @ b), a, given)
    assert torch.equal(ours, theirs)
    assert torch.equal(ours[1], torch.zeros(2))


@pytest.fixture
def nothing_kept():
    """Kernels and blocks are chosen anew, before and after."""
    for step in range(2):
        torch_matmul._kernel.cache_clear()
        torch_attention._backward_blocks.cache_clear()
        if step == 0:
            yield


@pytest.mark.full
@pytest.mark.usefixtures("nothing_kept")
def test_matmul_whose_configuration_splits_k(monkeypatch):
    blocks = configurations.MATMUL[0].values | {"block_M": 8, "block_N": 16, "block_K": 16}
    row = configurations.Row("llvm", {**blocks, "splits": 3, "swapped": 1}, "nothing measured")
    monkeypatch.setattr(configurations, "MATMUL", (row,))
    monkeypatch.setattr(configurations, "_SHORTEST_PART", 8)
    monkeypatch.setattr(torch_matmul, "_plans", {})
    assert_same(by_matmul("relu"), linear(F.relu), *(random(*shape) for shape in LINEAR))
    assert 2 in {plan.splits for plan in torch_matmul._plans.values()}


@pytest.mark.full
@pytest.mark.usefixtures("nothing_kept")
def test_gradients_of_attention_where_the_program_has_no_blocks(monkeypatch):
    monkeypatch.setattr(configurations, "ATTENTION_BACKWARD", ())
    assert_same(
        lambda *x: ops.attention(*x, causal=True),
        lambda *x: sdpa(*x, **CAUSAL),
        *(random(1, *shape) for shape in ((4, 9, 8), (2, 11, 8), (2, 11, 8))),
    )


@pytest.mark.parametrize(
    ("ours", "theirs", "count"),
    [
        (ops.softmax, lambda x: x.softmax(-1), 1),
        (ops.rms_norm, rms_norm, 2),
        (ops.layer_norm, layer_norm, 3),
    ],
)
def test_gradients_of_gradients_of_rows(ours, theirs, count):
    """A second gradient goes through what is kept of a row."""
    tensors = [random(4, 50), random(50), random(50)][:count]
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    weights = [torch.randn(tensor.shape) for tensor in tensors]

    def twice(function, inputs):
        result = function(*inputs)
        first = torch.autograd.grad(result.square().sum(), inputs, create_graph=True)
        total = sum((g * w.to(g.dtype)).sum() for g, w in zip(first, weights, strict=True))
        return torch.autograd.grad(total, inputs)

    assert_near(twice(ours, tensors), twice(theirs, wide), 1e-4)


def test_gradients_of_rows_that_are_far_from_zero():
    """The mean of squares alone would lose the digits of the deviation."""
    tensors = [(torch.randn(5, 64) + 1000).requires_grad_(), random(64), random(64)]
    wide, given = [t.detach().double().requires_grad_() for t in tensors], torch.randn(5, 64)
    ours = torch.autograd.grad(ops.layer_norm(*tensors), tensors, given)
    assert_near(ours, torch.autograd.grad(layer_norm(*wide), wide, given.double()), 2e-3)


def test_a_row_of_minus_infinity_is_nan_as_torch_has_it():
    x = torch.randn(3, 50)
    x[1] = -torch.inf
    x[2, :40] = -torch.inf
    torch.testing.assert_close(ops.softmax(x), x.softmax(-1), equal_nan=True)


@pytest.mark.nightly
def test_they_are_operators_that_torch_traces():
    a, b, bias = random(3, 5), random(5, 4), random(4)
    q, k = random(1, 4, 9, 8), random(1, 2, 9, 8)
    for operator, arguments in (
        (torch_matmul.matmul_operator, (a, b, bias, "relu", None)),
        (torch_rows.softmax_operator, (a,)),
        (torch_rows._rms_norm, (b, bias, 1e-6)),
        (torch_rows._layer_norm, (b, bias, random(4), 1e-5)),
        (torch_attention._operator, (q, k, k.detach(), True, 0.3)),
        (torch_attention._operator, (*[q.transpose(1, 2)] * 3, True, 0.3)),
    ):
        torch.library.opcheck(operator, arguments)
    compiled = torch.compile(
        lambda q, w: ops.softmax(ops.rms_norm(ops.attention(q, q, q, causal=True), w)),
        fullgraph=True, dynamic=True, backend="aot_eager",
    )  # fmt: skip
    expected = lambda q, w: rms_norm(sdpa(q, q, q, is_causal=True), w).softmax(-1)
    assert_same(compiled, expected, q, random(8))


@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: torch.func.grad(f)(x),
        lambda f, x: torch.func.vjp(f, x)[1](torch.ones(())),
        lambda f, x: torch.func.jvp(f, (x,), (x,)),
        lambda f, x: torch.func.vmap(torch.func.grad(f))(x),
    ],
)
@pytest.mark.parametrize("operator", [ops.softmax, ops.rms_norm, lambda x: ops.matmul(x, x.mT)])
def test_derivatives_by_torch_func_are_refused(call, operator):
    with pytest.raises(ArgumentError) as caught:
        call(lambda x: operator(torch.atleast_2d(x)).sum(), torch.ones(2, 8))
    assert caught.value.message == "torch.func's grad, vjp and jvp do not reach into tvmtile.ops"
    assert caught.value.help == "use torch.autograd.grad or backward(); torch.vmap works"


def test_kernels_are_shared_by_numbers_of_rows():
    b = torch.randn(40, 24)
    for rows in (300, 400, 512):
        ops.matmul(torch.randn(rows, 40), b)
    before = torch_matmul._kernel.cache_info().misses
    ops.matmul(torch.randn(333, 40), b)
    assert torch_matmul._kernel.cache_info().misses == before


ONES, Q = torch.ones(4, 6), torch.ones(1, 3, 4, 8)
WRONG = [
    (lambda: ops.matmul(ONES, ONES), r"matmul: b is float32\[4, 6\](.|\n)*transpose_b=True"),
    (lambda: ops.matmul(ONES, ONES.T.half()), r"b is float16(.|\n)*b\.to\(torch\.float32\)"),
    (lambda: ops.matmul(ONES, 3), r"matmul: b is 3(.|\n)*give a tensor"),
    (lambda: ops.matmul(ONES.int(), ONES.T), r"a is int32\[4, 6\](.|\n)*its dtypes are float16"),
    (lambda: ops.matmul(ONES, ONES.T, ONES[0]), r"bias is float32\[6\](.|\n)*shape is \(4,\)"),
    (lambda: ops.matmul(ONES, ONES.T, activation="tanh"), "activation='tanh'(.|\n)*'relu', "),
    (lambda: ops.matmul(random(4, 6), ONES.T, activation="tanh"), "'tanh'(.|\n)*'relu', "),
    (lambda: ops.attention(ONES, ONES, ONES), r"attention: q is float32\[4, 6\](.|\n)*4 axes"),
    (lambda: ops.attention(Q, Q[:, :2], Q[:, :2]), "3 heads of q share 2 heads of k and v"),
    (lambda: ops.softmax(ONES, 2), r"softmax: dim=2(.|\n)*the axes are -2 to 1"),
    (lambda: ops.rms_norm(ONES, ONES[:, 0]), r"rms_norm: weight is float32\[4\](.|\n)*\(6,\)"),
    (lambda: ops.layer_norm(ONES, bias=ONES[0].to("meta")), r"layer_norm: bias is on meta"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_what_does_not_fit_is_named_with_its_remedy(call, message):
    with pytest.raises((ArgumentError, InvalidValue), match=message):
        call()


def test_more_matrices_and_rows_than_a_grid_has_blocks(monkeypatch):
    monkeypatch.setitem(kernels.call_in_parts.__kwdefaults__, "most", 2)
    monkeypatch.setattr(torch_matmul, "CUDA_MOST_BLOCKS", 2)
    monkeypatch.setattr(torch_matmul, "_LEAST_ROWS", 2)
    a, b, bias = torch.randn(5, 7, 19), torch.randn(5, 19, 11), torch.randn(11)
    torch.testing.assert_close(ops.matmul(a, b, bias), a @ b + bias)
    torch.testing.assert_close(ops.matmul(a[0], b[0], bias), a[0] @ b[0] + bias)
    torch.testing.assert_close(ops.matmul(a[0].mT, b[0, :7], bias), a[0].mT @ b[0, :7] + bias)
    assert_same(ops.attention, sdpa, *(random(5, 2, 9, 16) for _ in range(3)))


def test_gradients_of_products_of_nothing():
    shapes = [
        ((4, 0), (0, 3)),
        ((2, 4, 0), (0, 3)),
        ((0, 5), (5, 3)),
        ((0,), (0, 3)),
        ((4, 5), (5, 0)),
    ]
    for of_a, of_b in shapes:
        tensors = [random(*of_a), random(*of_b), random(of_b[-1])]
        result, expected = ops.matmul(*tensors), tensors[0] @ tensors[1] + tensors[2]
        ours, theirs = (torch.autograd.grad(x.sum(), tensors) for x in (result, expected))
        torch.testing.assert_close([result, *ours], [expected, *theirs])


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.float8_e4m3fn])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_result_that_holds_no_sums(dtype, requires_grad):
    a = torch.randn(4, 4, requires_grad=requires_grad)
    with pytest.raises(ArgumentError, match=f"matmul: out_dtype={dtype}, but sums are floats"):
        ops.matmul(a, a, out_dtype=dtype)


@pytest.fixture
def switches():
    """Torch's, as they were."""
    yield
    torch.set_float32_matmul_precision("highest")
    MATMUL.fp32_precision = torch.backends.fp32_precision = "none"


@pytest.mark.usefixtures("switches")
@pytest.mark.parametrize(
    ("switch", "expected"),
    [
        (lambda: None, "ieee"),
        (lambda: setattr(MATMUL, "fp32_precision", "tf32"), "tf32"),
        (lambda: setattr(MATMUL, "fp32_precision", "ieee"), "ieee"),
        (lambda: setattr(torch.backends, "fp32_precision", "tf32"), "tf32"),
        (lambda: setattr(MATMUL, "allow_tf32", True), "tf32"),
        (lambda: torch.set_float32_matmul_precision("high"), "tf32"),
        (lambda: torch.set_float32_matmul_precision("medium"), "tf32"),
    ],
)
def test_float32_is_multiplied_as_torchs_switches_say(switch, expected):
    switch()
    assert kernels.float32_precision(torch.float32) == expected


@pytest.mark.full
@pytest.mark.usefixtures("switches")
@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_products_of_float32_on_cuda(arch, monkeypatch):
    """In all bits, forward and backward; a call behind a switch to TF32 has fewer."""
    target = {"kind": "cuda", "arch": arch}
    on_emulator = functools.partial(tvmtile.compile, execution_backend="emulator")
    monkeypatch.setattr(kernels, "chosen_target", lambda: target)
    monkeypatch.setattr(kernels, "compile_program", on_emulator)
    monkeypatch.setattr(torch_matmul, "_plans", kernels.Plans())
    for module in (torch_matmul, torch_attention):
        monkeypatch.setattr(module, "_kernel", module._kernel.__wrapped__)
    torch.manual_seed(0)
    a, b = random(40, 72), random(72, 24)
    q, k, v = (random(1, 2, n, 40) for n in (20, 30, 30))
    for ours, theirs, tensors in (
        (ops.matmul, torch.matmul, (a, b)),
        (ops.attention, sdpa, (q, k, v)),
    ):
        wide = [x.detach().double().requires_grad_() for x in tensors]
        result, expected = ours(*tensors), theirs(*wide)
        given = torch.randn(expected.shape)
        gradients = torch.autograd.grad(result, tensors, given)
        references = torch.autograd.grad(expected, wide, given.double())
        assert_near([result, *gradients], [expected, *references], 1e-6)
    MATMUL.fp32_precision = "tf32"
    error = (ops.matmul(a, b) - a.double() @ b.double()).abs().max()
    assert 1e-3 < error < 0.1
