"""`tvmtile.ops.matmul`, `attention`, `softmax` and the norms on tensors: against torch in float64."""

import pytest
import torch
import torch.nn.functional as F

from tvmtile import ops
from tvmtile.errors import ArgumentError, InvalidValue
from tvmtile.ops import configurations, torch_attention, torch_matmul, torch_rows

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
TOLERANCE[torch.float64] = TOLERANCE[torch.float32]  # in which rows are computed


def random(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype).requires_grad_()


def assert_near(result, expected):
    assert result.shape == expected.shape
    scale = expected.abs().max().item()
    tolerance = TOLERANCE[result.dtype] * scale
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=tolerance)


def assert_same(function, reference, *tensors):
    """Results and gradients, by autograd's path and by the one without it."""
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    result, expected = function(*tensors), reference(*wide)
    assert_near(result, expected)
    gradient = torch.randn(expected.shape)
    gradients = torch.autograd.grad(result, tensors, gradient.to(result.dtype))
    for ours, theirs in zip(
        gradients, torch.autograd.grad(expected, wide, gradient.double()), strict=True
    ):
        assert_near(ours, theirs)
    with torch.no_grad():
        assert_near(function(*tensors), expected)


@pytest.mark.full
@pytest.mark.parametrize(
    ("dtype", "activation"),
    [
        (torch.float32, None),
        (torch.float32, "relu"),
        (torch.float16, "gelu"),
        (torch.bfloat16, "silu"),
    ],
)
def test_matmul_with_an_epilogue_and_its_gradients(dtype, activation):
    a, w, bias = (random(*shape, dtype=dtype) for shape in ((3, 5, 40), (24, 40), (24,)))
    act = getattr(F, activation) if activation else (lambda x: x)
    assert_same(
        lambda a, w, bias: ops.matmul(a, w.T, bias, activation=activation),
        lambda a, w, bias: act(F.linear(a, w, bias)),
        a, w, bias,
    )  # fmt: skip


@pytest.mark.full
def test_gradients_of_a_single_row():
    x, w, bias = random(40), random(24, 40), random(24)
    assert_same(lambda x, w, b: ops.matmul(x, w.T, b), F.linear, x, w, bias)
    weight, shift = random(40), random(40)
    assert_same(ops.rms_norm, lambda x, w: F.rms_norm(x, (40,), w, 1e-6), x, weight)
    assert_same(ops.layer_norm, lambda x, w, b: F.layer_norm(x, (40,), w, b), x, weight, shift)


def test_relu_passes_on_no_infinite_gradient_where_it_is_zero():
    a, b = torch.eye(2).requires_grad_(), torch.tensor([[1.0], [-1.0]])
    given = torch.full((2, 1), torch.inf)
    (ours,) = torch.autograd.grad(ops.matmul(a, b, activation="relu"), a, given)
    (theirs,) = torch.autograd.grad(torch.relu(a @ b), a, given)
    assert torch.equal(ours, theirs)
    assert torch.equal(ours[1], torch.zeros(2))


@pytest.mark.parametrize("gradient", [True, False])
def test_an_activation_that_is_not_known(gradient):
    a = torch.ones(2, 2).requires_grad_(gradient)
    with pytest.raises(InvalidValue, match="activation='tanh' is not known\n(.*\n)+.*'relu', "):
        ops.matmul(a, a, activation="tanh")


@pytest.mark.full
def test_matmul_of_batches_however_they_lie():
    assert_same(torch_matmul.matmul, torch.matmul, random(2, 3, 20, 30), random(2, 3, 30, 10))
    a, b = torch.randn(2, 21, 30), torch.randn(2, 10, 30)
    expected = a.double() @ b.double().mT
    assert_near(ops.matmul(a, b, transpose_b=True), expected)
    assert_near(ops.matmul(a.mT.contiguous(), b, transpose_a=True, transpose_b=True), expected)
    assert_near(
        ops.matmul(a[..., ::2], b[..., ::2].mT), a[..., ::2].double() @ b[..., ::2].double().mT
    )
    assert_near(ops.matmul(a[0, 0], b[0].T), expected[0, 0])


def test_matmul_of_nothing():
    assert torch.equal(ops.matmul(torch.ones(3, 0), torch.ones(0, 4)), torch.zeros(3, 4))
    assert ops.matmul(torch.ones(0, 3), torch.ones(3, 4)).shape == (0, 4)
    assert torch.equal(ops.matmul(torch.ones(2, 3, 0), torch.ones(0, 4)), torch.zeros(2, 3, 4))
    assert ops.matmul(torch.ones(2, 0, 0), torch.ones(0, 4)).shape == (2, 0, 4)


@pytest.mark.full
def test_matmul_gives_another_dtype_than_its_operands():
    a, b = torch.randn(70, 40).half(), torch.randn(40, 30).half()
    result = ops.matmul(a, b, out_dtype=torch.float32)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, a.float() @ b.float(), rtol=1e-5, atol=1e-4)


@pytest.mark.full
def test_matmul_whose_configuration_splits_k(monkeypatch):
    blocks = configurations.MATMUL[0].values | {"block_M": 8, "block_N": 16, "block_K": 16}
    row = configurations.Row("llvm", {**blocks, "splits": 3, "swapped": 1}, "nothing measured")
    monkeypatch.setattr(configurations, "MATMUL", (row,))
    monkeypatch.setattr(configurations, "_SHORTEST_PART", 8)
    monkeypatch.setattr(torch_matmul, "_plans", {})
    torch_matmul._kernel.cache_clear()
    a, w, bias = random(3, 5, 40), random(24, 40), random(24)
    try:
        assert_same(
            lambda a, w, bias: ops.matmul(a, w.T, bias, activation="relu"),
            lambda a, w, bias: F.linear(a, w, bias).relu(),
            a, w, bias,
        )  # fmt: skip
    finally:
        torch_matmul._kernel.cache_clear()
    assert 2 in {plan.splits for plan in torch_matmul._plans.values()}


@pytest.mark.full
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
def test_attention_with_shared_heads_and_its_gradients(swapped, causal):
    def heads(*tensors):
        return [tensor.transpose(1, 2) if swapped else tensor for tensor in tensors]

    shapes = [(2, 4, 70, 32), (2, 2, 90, 32), (2, 2, 90, 16)]
    tensors = [random(*(s[i] for i in ((0, 2, 1, 3) if swapped else range(4)))) for s in shapes]
    result = ops.attention(*(x.detach() for x in heads(*tensors)))
    assert result.transpose(1, 2).is_contiguous() == swapped
    assert_same(
        lambda *x: ops.attention(*heads(*x), causal=causal),
        lambda *x: F.scaled_dot_product_attention(*heads(*x), is_causal=causal, enable_gqa=True),
        *tensors,
    )


@pytest.mark.full
def test_attention_of_few_queries_reads_shared_heads_once():
    q, k, v = torch.randn(2, 8, 1, 32), torch.randn(2, 2, 70, 32), torch.randn(2, 2, 70, 32)
    expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), enable_gqa=True)
    assert_near(ops.attention(q, k, v), expected)
    assert torch.equal(ops.attention(q, k[:, :, :0], v[:, :, :0]), torch.zeros_like(q))


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_rows_and_their_gradients(dtype):
    x, weight, bias = (random(*shape, dtype=dtype) for shape in ((3, 4, 50), (50,), (50,)))
    assert_same(ops.softmax, lambda x: x.softmax(-1), x)
    assert_same(lambda x: ops.softmax(x, 1), lambda x: x.softmax(1), x)
    assert_same(ops.rms_norm, lambda x, w: F.rms_norm(x, (50,), w, 1e-6), x, weight)
    assert_same(ops.rms_norm, lambda x: F.rms_norm(x, (50,), None, 1e-6), x)
    assert_same(ops.layer_norm, lambda *t: F.layer_norm(t[0], (50,), *t[1:]), x, weight, bias)
    assert_same(ops.layer_norm, lambda x: F.layer_norm(x, (50,)), x)


@pytest.mark.parametrize(
    ("ours", "theirs", "count"),
    [
        (ops.softmax, lambda x: x.softmax(-1), 1),
        (ops.rms_norm, lambda x, w: F.rms_norm(x, (50,), w, 1e-6), 2),
        (ops.layer_norm, lambda x, w, b: F.layer_norm(x, (50,), w, b), 3),
    ],
)
def test_gradients_of_gradients_of_rows(ours, theirs, count):
    """What is kept of a row depends on it."""
    tensors = [random(4, 50), random(50), random(50)][:count]
    wide = [tensor.detach().double().requires_grad_() for tensor in tensors]
    weights = [torch.randn(tensor.shape) for tensor in tensors]

    def twice(function, inputs):
        result = function(*inputs)
        first = torch.autograd.grad(result.square().sum(), inputs, create_graph=True)
        total = sum((g * w.to(g.dtype)).sum() for g, w in zip(first, weights, strict=True))
        return torch.autograd.grad(total, inputs)

    for own, other in zip(twice(ours, tensors), twice(theirs, wide), strict=True):
        torch.testing.assert_close(
            own.double(), other, rtol=0, atol=1e-4 * other.abs().max().item()
        )


def test_gradients_of_rows_that_are_far_from_zero():
    """The mean of squares alone would lose the digits of the deviation."""
    x = (torch.randn(5, 64) + 1000).requires_grad_()
    weight, bias, given = random(64), random(64), torch.randn(5, 64)
    wide = [tensor.detach().double().requires_grad_() for tensor in (x, weight, bias)]
    ours = torch.autograd.grad(ops.layer_norm(x, weight, bias), (x, weight, bias), given)
    theirs = torch.autograd.grad(F.layer_norm(wide[0], (64,), *wide[1:]), wide, given.double())
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            own.double(), other, rtol=0, atol=2e-3 * other.abs().max().item()
        )


def test_a_row_of_minus_infinity_is_nan_as_torch_has_it():
    x = torch.randn(3, 50)
    x[1] = -torch.inf
    x[2, :40] = -torch.inf
    torch.testing.assert_close(ops.softmax(x), x.softmax(-1), equal_nan=True)


@pytest.mark.nightly
def test_they_are_operators_that_torch_traces():
    a, b, bias = random(3, 5), random(5, 4), random(4)
    q = random(1, 4, 9, 8)
    torch.library.opcheck(torch_matmul.matmul_operator, (a, b, bias, "relu", None))
    torch.library.opcheck(torch_rows.softmax_operator, (a,))
    torch.library.opcheck(torch_rows._rms_norm, (b, bias, 1e-6))
    torch.library.opcheck(torch_rows._layer_norm, (b, bias, random(4), 1e-5))
    compiled = torch.compile(
        lambda q, w: ops.softmax(ops.rms_norm(ops.attention(q, q, q, causal=True), w)),
        fullgraph=True, dynamic=True, backend="aot_eager",
    )  # fmt: skip
    assert_same(
        compiled,
        lambda q, w: F.rms_norm(
            F.scaled_dot_product_attention(q, q, q, is_causal=True), (8,), w, 1e-6
        ).softmax(-1),
        q, random(8),
    )  # fmt: skip


@pytest.mark.full
def test_gradients_of_attention_where_the_program_has_no_blocks(monkeypatch):
    monkeypatch.setattr(configurations, "ATTENTION_BACKWARD", ())
    torch_attention._backward_blocks.cache_clear()
    q, k, v = random(1, 4, 9, 8), random(1, 2, 11, 8), random(1, 2, 11, 8)
    try:
        assert_same(
            lambda *x: ops.attention(*x, causal=True),
            lambda *x: F.scaled_dot_product_attention(*x, is_causal=True, enable_gqa=True),
            q, k, v,
        )  # fmt: skip
    finally:
        torch_attention._backward_blocks.cache_clear()


@pytest.mark.nightly
def test_attention_passes_all_of_torchs_checks_of_operators():
    q, k = random(1, 4, 9, 8), random(1, 2, 9, 8)
    torch.library.opcheck(torch_attention._operator, (q, k, k.detach(), True, 0.3))


def test_kernels_are_shared_by_numbers_of_rows():
    b = torch.randn(40, 24)
    for rows in (300, 400, 512):
        ops.matmul(torch.randn(rows, 40), b)
    before = torch_matmul._kernel.cache_info().misses
    ops.matmul(torch.randn(333, 40), b)
    assert torch_matmul._kernel.cache_info().misses == before


ONES = torch.ones(4, 6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.matmul(ONES, ONES), r"matmul: b is float32\[4, 6\](.|\n)*transpose_b=True"),
        (lambda: ops.matmul(ONES, ONES.T.half()), r"b is float16(.|\n)*b\.to\(torch\.float32\)"),
        (lambda: ops.matmul(ONES, 3), r"matmul: b is 3(.|\n)*give a tensor"),
        (
            lambda: ops.matmul(ONES.int(), ONES.T),
            r"a is int32\[4, 6\](.|\n)*its dtypes are float16",
        ),
        (
            lambda: ops.matmul(ONES, ONES.T, ONES[0]),
            r"bias is float32\[6\](.|\n)*its shape is \(4,\)",
        ),
        (lambda: ops.attention(ONES, ONES, ONES), r"attention: q is float32\[4, 6\](.|\n)*4 axes"),
        (lambda: ops.softmax(ONES, 2), r"softmax: dim=2(.|\n)*the axes are -2 to 1"),
        (lambda: ops.rms_norm(ONES, ONES[:, 0]), r"rms_norm: weight is float32\[4\](.|\n)*\(6,\)"),
        (lambda: ops.layer_norm(ONES, bias=ONES[0].to("meta")), r"layer_norm: bias is on meta"),
    ],
)
def test_what_does_not_fit_is_named_with_its_remedy(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


def test_heads_that_do_not_divide_are_an_error():
    q, k = torch.ones(1, 3, 4, 8), torch.ones(1, 2, 4, 8)
    with pytest.raises(InvalidValue, match="attention: 3 heads of q share 2 heads of k and v"):
        ops.attention(q, k, k)
