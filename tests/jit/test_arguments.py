"""Arguments of compiled kernels: what is taken without a copy, and what is said of the rest."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import tvm

import tvmtile
import tvmtile.language as T
from tvmtile.errors import ArgumentError, InvalidOperand
from tvmtile.jit.arguments import explain
from tvmtile.jit.kernel import Kernel


@pytest.fixture(scope="module")
def add():
    m, n = T.dynamic("m, n")

    @T.prim_func
    def add(A: T.Tensor((m, n), "float32"), B: T.Tensor((m, n), "float32")):
        with T.Kernel(T.ceildiv(m, 4), T.ceildiv(n, 4)) as (bx, by):
            for i, j in T.Parallel(4, 4):
                B[bx * 4 + i, by * 4 + j] = A[bx * 4 + i, by * 4 + j] + 1

    return tvmtile.compile(add, out_idx=-1)


@pytest.fixture(scope="module")
def scale():
    """Constant extents, an extent that depends on another one, scalars."""
    m = T.dynamic("m")

    @T.prim_func
    def scale(
        A: T.Tensor((m, 8), "float32"),
        n: T.int32,
        x: T.float32,
        B: T.Tensor((2 * m,), "float32"),
    ):
        with T.Kernel(T.ceildiv(m, 4)) as bx:
            for i in T.Parallel(4):
                if bx * 4 + i < m:
                    B[bx * 4 + i] = A[bx * 4 + i, 0] * x + n
                    B[m + bx * 4 + i] = A[bx * 4 + i, 1]

    return tvmtile.compile(scale)


@pytest.fixture(scope="module")
def strided():
    s = T.dynamic("s")

    @T.prim_func
    def strided(
        A: T.StridedTensor((4, 8), (16, 1), "float32"),
        B: T.StridedTensor((4, 8), (s, 1), "float32"),
        C: T.StridedTensor((4, 8), (s, 1), "float32"),
    ):
        with T.Kernel(1):
            for i, j in T.Parallel(4, 8):
                C[i, j] = A[i, j] + B[i, j]

    return tvmtile.compile(strided)


def zeros(*shape, **options):
    return torch.zeros(shape, **options)


@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (1, 4), (8, 1), (0, 4), (4, 0), (0, 0)])
def test_shapes_with_one_and_with_nothing(add, shape):
    a = torch.randn(shape)
    torch.testing.assert_close(add(a), a + 1)


def test_a_tensor_that_requires_a_gradient(add):
    a = torch.randn(3, 4, requires_grad=True)
    torch.testing.assert_close(add(a), a.detach() + 1)


@pytest.mark.parametrize("offset", range(4))
def test_numpy_in_numpy_out_at_any_alignment(add, offset):
    numbers = np.random.default_rng(0).standard_normal(12 + offset, dtype=np.float32)
    a = numbers[offset:].reshape(3, 4)
    result = add(a)
    assert isinstance(result, np.ndarray)
    np.testing.assert_allclose(result, a + 1)


def test_tvm_in_tvm_out(add):
    a = np.random.default_rng(0).standard_normal((3, 4), dtype=np.float32)
    result = add(tvm.runtime.tensor(a))
    assert isinstance(result, tvm.runtime.Tensor)
    np.testing.assert_allclose(result.numpy(), a + 1)


def test_results_given_by_the_caller_are_written(add):
    a, b = torch.randn(3, 4), torch.zeros(3, 4)
    add(a, b)
    torch.testing.assert_close(b, a + 1)


def test_numpy_scalars_are_numbers(scale):
    b = zeros(6)
    scale(torch.ones(3, 8), np.int64(2), np.float32(0.5), b)
    assert b.tolist() == [2.5, 2.5, 2.5, 1, 1, 1]


@pytest.mark.parametrize("number", [np.int64(2**31), np.uint32(2**31), 2**31])
def test_a_number_that_does_not_fit_is_an_error(scale, number):
    with pytest.raises(ArgumentError, match=f"n is an int32; {number} does not fit"):
        scale(zeros(3, 8), number, 0.5, zeros(6))


@pytest.mark.parametrize(
    "given",
    [
        lambda: (zeros(3, 8), np.int64(2), np.float32(0.5), zeros(6)),
        lambda: (zeros(0, 8), 2, 0.5, zeros(0)),
        lambda: (np.zeros((3, 8), np.float32), 2, 0.5, np.zeros(6, np.float32)),
    ],
)
def test_a_program_that_fails_has_run_once(scale, given):
    calls = []

    def failing(*args):
        calls.append(args)
        raise RuntimeError("after the kernel has begun")

    adapter = SimpleNamespace(call=failing, device="cpu")
    kernel = Kernel(scale.prim_func, scale.artifact, scale.out_idx, {}, adapter)
    for count in (1, 2):  # how it is called is chosen in the first call
        with pytest.raises(RuntimeError, match="after the kernel has begun"):
            kernel(*given())
        assert len(calls) == count


def test_a_bool_of_numpy_is_a_number(scale):
    b = zeros(6)
    scale(torch.ones(3, 8), np.bool_(True), np.array(0.5), b)
    assert b.tolist() == [1.5, 1.5, 1.5, 1, 1, 1]


def test_results_whose_extents_come_from_anywhere():
    m, n = T.dynamic("m, n")

    @T.prim_func
    def kernel(
        B: T.Tensor((m,), "float32"),
        A: T.Tensor((2 * n,), "float32"),
        k: T.int32,
        C: T.Tensor((n + m, 3), "float32"),
        Unused: T.Tensor((m,), "float32"),
        D: T.Tensor((2, m), "int32"),
    ):
        with T.Kernel(1):
            T.fill(B, 1)
            T.fill(C, 2)
            T.fill(D, k)

    call = tvmtile.compile(kernel, out_idx=[5, 0, 3])
    for unused in (torch.zeros(4), np.zeros(4, np.float32)):
        d, b, c = call(unused + 0, 2, unused)
        assert (tuple(d.shape), tuple(b.shape), tuple(c.shape)) == ((2, 4), (4,), (6, 3))
        assert type(d) is type(b) is type(unused)
    with pytest.raises(ArgumentError, match="kernel takes 3 arguments"):
        call(torch.zeros(4))


def test_declared_strides(strided):
    a, b = torch.randn(4, 16)[:, :8], torch.randn(4, 12)[:, :8]
    c = zeros(4, 12)[:, :8]
    strided(a, b, c)
    torch.testing.assert_close(c, a + b)


M8 = "scale: A is a tensor [m, 8] of float32; it got"
NO_MEMORY = (
    "@tvmtile.torch_op over the kernel, or kernel.as_torch_op(name), makes an operator that computes "
    "the shapes of its results"
)
MISFITS = {
    "too few arguments": (
        "scale",
        lambda: (zeros(3, 8), 1),
        "scale takes 4 arguments (A, n, x, B), not 2",
        "give every parameter; out_idx makes parameters results",
    ),
    "too many arguments": (
        "add",
        lambda: (zeros(1, 1), zeros(1, 1), zeros(1, 1)),
        "add takes 1 argument (A), not 3",
        "results are allocated by the call",
    ),
    "dtype": (
        "scale",
        lambda: (zeros(3, 8, dtype=torch.float64), 1, 1.0, zeros(6)),
        f"{M8} float64",
        "convert it, e.g. `x.to(torch.float32)`",
    ),
    "dtype of a numpy array": (
        "add",
        lambda: (np.zeros((3, 4)),),
        "add: A is a tensor [m, n] of float32; it got float64",
        'convert it, e.g. `x.astype("float32")`',
    ),
    "dtype of a tvm tensor": (
        "add",
        lambda: (tvm.runtime.tensor(np.zeros((3, 4))),),
        "add: A is a tensor [m, n] of float32; it got float64",
        "convert it, e.g. `x.to(torch.float32)`",
    ),
    "rank": (
        "scale",
        lambda: (zeros(3), 1, 1.0, zeros(6)),
        f"{M8} 1 dimension, [3]",
        "reshape it",
    ),
    "rank of an argument that gives the shape of a result": (
        "add",
        lambda: (zeros(3, 4, 5),),
        "add: A is a tensor [m, n] of float32; it got 3 dimensions, [3, 4, 5]",
        "reshape it",
    ),
    "constant extent": (
        "scale",
        lambda: (zeros(3, 9), 1, 1.0, zeros(6)),
        f"{M8} shape [3, 9]: axis 1 needs 8, not 9",
        None,
    ),
    "extent bound twice": (
        "add",
        lambda: (zeros(3, 4), zeros(3, 5)),
        (
            "add: B is a tensor [m, n] of float32; it got shape [3, 5]: "
            "axis 1 is n, which is 4 by axis 1 of A, not 5"
        ),
        None,
    ),
    "extent that follows from another one": (
        "scale",
        lambda: (zeros(3, 8), 1, 1.0, zeros(7)),
        "scale: B is a tensor [2 * m] of float32; it got shape [7]: axis 0 needs 6 (2 * m), not 7",
        None,
    ),
    "extent of a numpy array": (
        "add",
        lambda: (np.zeros((3, 4), "float32"), np.zeros((2, 4), "float32")),
        (
            "add: B is a tensor [m, n] of float32; it got shape [2, 4]: "
            "axis 0 is m, which is 3 by axis 0 of A, not 2"
        ),
        None,
    ),
    "what is wrong after a conversion": (
        "add",
        lambda: (zeros(3, 4, requires_grad=True), zeros(3, 5)),
        (
            "add: B is a tensor [m, n] of float32; it got shape [3, 5]: "
            "axis 1 is n, which is 4 by axis 1 of A, not 5"
        ),
        None,
    ),
    "transposed": (
        "add",
        lambda: (zeros(4, 3).t(),),
        "add: A must be contiguous, with strides [4, 1]; it got strides [1, 3]",
        "pass `x.contiguous()`, or declare the parameter as T.StridedTensor",
    ),
    "every second column": (
        "add",
        lambda: (zeros(4, 6)[:, ::2], zeros(4, 3)),
        "add: A must be contiguous, with strides [3, 1]; it got strides [6, 2]",
        "pass `x.contiguous()`, or declare the parameter as T.StridedTensor",
    ),
    "transposed numpy array": (
        "add",
        lambda: (np.zeros((4, 3), "float32").T,),
        "add: A must be contiguous, with strides [4, 1]; it got strides [1, 3]",
        "pass `numpy.ascontiguousarray(x)`, or declare the parameter as T.StridedTensor",
    ),
    "read-only numpy array": (
        "add",
        lambda: (np.broadcast_to(np.float32(1), (3, 4)),),
        "add: A is a read-only array",
        "pass `x.copy()`: DLPack can't pass read-only memory",
    ),
    "declared stride": (
        "strided",
        lambda: (zeros(4, 8), zeros(4, 8), zeros(4, 8)),
        "strided: A got strides [8, 1]: the stride of axis 0 needs 16, not 8",
        "strides count elements, not bytes",
    ),
    "stride bound twice": (
        "strided",
        lambda: (zeros(4, 16)[:, :8], zeros(4, 8), zeros(4, 16)[:, :8]),
        (
            "strided: C got strides [16, 1]: "
            "the stride of axis 0 is s, which is 8 by the stride of axis 0 of B, not 16"
        ),
        "strides count elements, not bytes",
    ),
    "device": (
        "add",
        lambda: (torch.empty(3, 4, device="meta"),),
        "add: A is a tensor without memory",
        NO_MEMORY,
    ),
    "device of a result": (
        "add",
        lambda: (zeros(3, 4), torch.empty(3, 4, device="meta")),
        "add: B is a tensor without memory",
        NO_MEMORY,
    ),
    "no tensor": (
        "add",
        lambda: (3.0,),
        "add: A is a tensor [m, n] of float32; it got a float",
        "pass a tensor",
    ),
    "None": (
        "add",
        lambda: (None,),
        "add: A is a tensor [m, n] of float32; it got a NoneType",
        "pass a tensor",
    ),
    "float for an integer": (
        "scale",
        lambda: (zeros(3, 8), 1.5, 1.0, zeros(6)),
        "scale: n is an int32; it got the float 1.5",
        "pass an int",
    ),
    "integer that does not fit": (
        "scale",
        lambda: (zeros(3, 8), 2**40, 1.0, zeros(6)),
        "scale: n is an int32; 1099511627776 does not fit",
        "it holds -2147483648 to 2147483647",
    ),
    "text for a number": (
        "scale",
        lambda: (zeros(3, 8), 1, "half", zeros(6)),
        "scale: x is a float32; it got a str",
        "pass a Python number",
    ),
    "tensor for a number": (
        "scale",
        lambda: (zeros(3, 8), torch.tensor(1), 1.0, zeros(6)),
        "scale: n is an int32; it got a Tensor",
        "pass a Python number",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit(request, name):
    kernel, arguments, message, remedy = MISFITS[name]
    function, given = request.getfixturevalue(kernel), arguments()
    with pytest.raises(ArgumentError) as caught:
        function(*given)  # the line of the call
    assert (caught.value.message, caught.value.help) == (message, remedy)
    assert caught.value.location.file == __file__
    assert caught.value.location.text == "function(*given)  # the line of the call"
    own_frames = [entry for entry in caught.traceback if "tvmtile" in str(entry.path)]
    assert [entry.name for entry in own_frames if entry.name != request.node.originalname] == [
        "__call__"
    ]


@pytest.fixture(scope="module")
def eager():
    @tvmtile.jit
    def eager(A, B):
        M, N = T.const("M, N")
        A: T.Tensor((M, N), T.float32)
        B: T.Tensor((N,), T.float32)
        C = T.empty((M, N), T.float32)
        with T.Kernel(T.ceildiv(M, 16)) as bx:
            for i, j in T.Parallel(16, N):
                C[bx * 16 + i, j] = A[bx * 16 + i, j] + B[j]
        return C

    return eager


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            lambda: (zeros(3, 4), zeros(5)),
            "eager: B is a tensor [4] of float32; it got shape [5]: axis 0 needs 4, not 5",
        ),
        (
            lambda: (zeros(3, 4, dtype=torch.int8), zeros(4)),
            "eager: A is a tensor [3, 4] of float32; it got int8",
        ),
        (lambda: (zeros(3), zeros(4)), "'A' has 1 dimension; axis 1 gives 'N'"),
    ],
)
def test_eager_kernels_check_their_arguments(eager, arguments, message):
    with pytest.raises(ArgumentError, match=re.escape(message)):
        eager(*arguments())


@pytest.mark.parametrize("out_idx", [2, -3, [0, 5]])
def test_result_that_is_no_parameter(out_idx):
    @T.prim_func
    def kernel(A: T.Tensor((4,), "float32"), B: T.Tensor((4,), "float32")):
        with T.Kernel(1):
            T.copy(A, B)

    index = out_idx if isinstance(out_idx, int) else 5
    with pytest.raises(InvalidOperand) as caught:
        tvmtile.compile(kernel, out_idx=out_idx)
    assert caught.value.message == f"out_idx={index} is outside the 2 parameters of the kernel"


def test_none_for_a_tensor_that_is_not_used():
    def bias(is_used):
        n = T.dynamic("n")

        @T.prim_func
        def bias(A: T.Tensor((n,), "float32"), Bias: T.Tensor((n,), "float32")):
            with T.Kernel(1):
                for i in T.Parallel(n):
                    A[i] = A[i] + (Bias[i] if is_used else 1)

        return tvmtile.compile(bias)

    a = torch.zeros(5)
    bias(False)(a, None)
    assert a.eq(1).all()
    with pytest.raises(ArgumentError, match="Bias is a tensor .* it got a NoneType"):
        bias(True)(a, None)


def test_none_for_a_tensor_whose_extent_no_other_argument_has():
    def bias(is_extent_used):
        n, m = T.dynamic("n, m")

        @T.prim_func
        def bias(A: T.Tensor((n,), "float32"), Bias: T.Tensor((m, m + 1), "float32")):
            with T.Kernel(1):
                for i in T.Parallel(n):
                    A[i] = A[i] + (m if is_extent_used else 1)

        return tvmtile.compile(bias)

    a = torch.zeros(5)
    bias(False)(a, None)
    assert a.eq(1).all()
    with pytest.raises(ArgumentError, match="the extent m .* is not known"):
        bias(True)(a, None)


def test_a_tensor_that_tvm_does_not_have_on_the_gpu():
    @T.prim_func
    def fill(A: T.Tensor((4,), "float32")):
        with T.Kernel(1):
            T.fill(A, 1)

    class OfAGpu:  # there is none here
        shape, dtype, device = (4,), torch.float32, torch.device("cuda")

    error = explain("fill", list(fill.params), (), (OfAGpu(),))
    assert error.message == "fill: A must be on the CPU; it is on cuda"
    assert error.help == "move it with `.cpu()`"
    error = explain("fill", list(fill.params), (), (torch.zeros(4),), "metal")
    assert error.message == "fill: A must be a TVM tensor on metal; it is on cpu"
    assert "tvm.metal()" in error.help


def test_a_sparse_tensor(add):
    message = r"A is a tensor \[m, n\] of float32; it got a sparse tensor\n(.*\n)*.*x\.to_dense\(\)"
    with pytest.raises(ArgumentError, match=message):
        add(torch.eye(8).to_sparse())
