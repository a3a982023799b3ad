"""Arithmetic on values of a kernel, and on Python's numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tvm import tirx

import tvmtile
import tvmtile.language as T
from tests.metal.programs import runnable
from tvmtile.errors import InvalidValue, UnsupportedDtype


def apply(function, *inputs, dtype=None):
    """The results of `function` on the elements of tensors, computed by a kernel."""
    n = len(inputs[0])
    out = torch.empty(n, dtype=dtype or inputs[0].dtype)
    kinds = [str(x.dtype).removeprefix("torch.") for x in (*inputs, out)]
    a_kind, b_kind, out_kind = kinds[0], kinds[-2], kinds[-1]

    @T.prim_func
    def kernel(A: T.Tensor((n,), a_kind), B: T.Tensor((n,), b_kind), C: T.Tensor((n,), out_kind)):
        with T.Kernel(1):
            for i in T.Parallel(n):
                C[i] = function(A[i]) if len(inputs) == 1 else function(A[i], B[i])

    tvmtile.compile(kernel)(inputs[0], inputs[-1], out)
    return out


@pytest.fixture
def floats():
    return torch.from_numpy(np.random.default_rng(1).uniform(0.1, 3, 37).astype("float32"))


@pytest.fixture
def integers():
    return torch.from_numpy(np.random.default_rng(2).integers(-50, 50, 37, dtype=np.int32))


@pytest.mark.full(but=5)
@pytest.mark.parametrize(
    ("ours", "reference"),
    [
        (T.exp10, lambda x: 10**x),
        (T.rsqrt, torch.rsqrt),
        (T.sigmoid, torch.sigmoid),
        (T.__exp, torch.exp),
        (T.__exp10, lambda x: 10**x),
        (T.__log, torch.log),
        (T.__log2, torch.log2),
        (T.__log10, torch.log10),
        (T.__sin, torch.sin),
        (T.__cos, torch.cos),
        (T.__tan, torch.tan),
        (T.__tanh, torch.tanh),
    ],
)
def test_functions_of_floats(ours, reference, floats):
    torch.testing.assert_close(
        apply(ours, floats).double(),
        reference(floats.double()),
        rtol=2e-6,
        atol=1e-6,
        check_dtype=False,
    )


@pytest.mark.parametrize("multiple", [1, 7, 32])
def test_rounding_up(integers, multiple):
    exact = [math.ceil(x / multiple) for x in integers.tolist()]
    assert apply(lambda x: T.ceildiv(x, multiple), integers).tolist() == exact
    assert apply(lambda x: T.align_up(x, multiple), integers).tolist() == [
        x * multiple for x in exact
    ]
    for x, expected in zip(integers.tolist(), exact, strict=True):
        assert T.ceildiv(x, multiple) == expected
        assert T.align_up(x, multiple) == expected * multiple


def test_clamp(floats):
    torch.testing.assert_close(apply(lambda x: T.clamp(x, 0.5, 2), floats), floats.clamp(0.5, 2))
    torch.testing.assert_close(
        apply(lambda x: T.clamp(x, min_val=1.0, max_val=1.5), floats), floats.clamp(1, 1.5)
    )
    assert T.clamp(7, 0, 5) == 5


def test_max_and_min_of_several_values(floats):
    other = floats.flip(0).contiguous()
    expected = torch.maximum(torch.maximum(floats, other), torch.full_like(floats, 1.0))
    torch.testing.assert_close(apply(lambda a, b: T.max(a, b, 1.0), floats, other), expected)
    expected = torch.minimum(torch.minimum(floats, other), torch.full_like(floats, 1.0))
    torch.testing.assert_close(apply(lambda a, b: T.min(1.0, a, b), floats, other), expected)
    assert (T.max(3, 4), T.min(2.5, 3)) == (4, 2.5)


def test_coordinates_of_a_linear_index():
    assert T.index_to_coordinates(23, (2, 3, 4)) == [1, 2, 3]
    index = torch.arange(24, dtype=torch.int32)

    def middle(i):
        return T.index_to_coordinates(i, (2, 3, 4))[1]

    assert apply(middle, index).tolist() == [i // 4 % 3 for i in range(24)]


def test_one_lane_of_a_vector():
    @T.prim_func
    def swap(A: T.Tensor((4,), "float16"), B: T.Tensor((4,), "float16")):
        with T.Kernel(1):
            vector = A[0:4]
            for lane in [0, 1, 2, 3]:
                B[3 - lane] = T.extract_lane(vector, lane)

    a, b = torch.randn(4).half(), torch.zeros(4).half()
    tvmtile.compile(swap)(a, b)
    assert b.tolist() == a.flip(0).tolist()


def constant_of(value):
    """A constant of a kernel, as torch stores it."""
    dtype = T.dtype(value.ty.dtype)

    @T.prim_func
    def store(A: T.Tensor((1,), dtype)):
        with T.Kernel(1):
            A[0] = value

    a = torch.zeros(1).to(dtype.as_torch())
    tvmtile.compile(store)(a)
    return a


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "float8_e5m2"])
def test_infinity_of_a_float(name):
    assert constant_of(T.infinity(name)).double().item() == math.inf
    if name != "float8_e5m2":  # arithmetic in it gives finite numbers
        assert constant_of(-T.infinity(name)).double().item() == -math.inf


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e8m0fnu"])
def test_a_float_without_infinity(name):
    with pytest.raises(InvalidValue, match=f"{name} has no infinity"):
        T.infinity(name)


@pytest.mark.full(but=4)
@pytest.mark.parametrize(
    "name",
    [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
    ],
)
def test_the_ends_of_a_float(name):
    limits = torch.finfo(getattr(torch, name))
    assert constant_of(T.max_value(name)).double().item() == limits.max
    assert constant_of(T.min_value(name)).double().item() == limits.min


@pytest.mark.full(but=3)
@pytest.mark.parametrize("name", ["int8", "uint8", "int32", "int64"])
def test_the_ends_of_an_integer(name):
    limits = torch.iinfo(getattr(torch, name))
    assert (
        constant_of(T.max_value(name)).item() == constant_of(T.infinity(name)).item() == limits.max
    )
    assert constant_of(T.min_value(name)).item() == limits.min


def test_rounding():
    halves = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, -0.2, 8388609.0, 3.7])
    even = apply(T.round, halves)
    assert even.tolist() == [-2, -2, 0, 0, 2, 2, 0, 0, 8388609, 4]
    away = apply(lambda x: T.round(x, "ties-away-from-zero"), halves)
    assert away.tolist() == [-3, -2, -1, 1, 2, 3, 0, 0, 8388609, 4]


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", ["llvm", "metal", "cuda"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_rounding_of_narrow_floats(dtype, target):
    @T.prim_func
    def program(A: T.Tensor((16,), dtype), B: T.Tensor((2, 16), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(16):
                B[0, i] = T.round(A[i])
                B[1, i] = T.round(A[i], "ties-away-from-zero")

    place = {"kind": "cuda", "arch": "sm_90a"} if target == "cuda" else target
    kind = getattr(torch, dtype)
    x = torch.tensor(
        [-3.5, -2.5, -1.5, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2.5, 3, 3.5, 7]
    )
    b = torch.zeros(2, 16).to(kind)
    runnable(program, place)(x.to(kind), b)
    assert b[0].float().tolist() == torch.round(x).tolist()
    assert b[1].float().tolist() == (torch.sign(x) * torch.floor(x.abs() + 0.5)).tolist()


@pytest.mark.parametrize("choose", [T.if_then_else, T.Select])
def test_a_number_is_a_condition_that_holds_where_it_is_not_zero(choose):
    values = torch.arange(8, dtype=torch.int64)
    result = apply(lambda a: choose(a & 4, 2, 3), values, dtype=torch.int32)
    assert result.tolist() == [3, 3, 3, 3, 2, 2, 2, 2]


def test_a_select_whose_condition_is_a_python_value_is_decided_when_the_kernel_is_built():
    values = torch.arange(8, dtype=torch.float32)
    assert torch.equal(apply(lambda a: T.Select(True, a, a * a), values), values)
    assert torch.equal(apply(lambda a: T.Select(False, a, a * a), values), values * values)


FUNCTIONS = {
    "abs": (T.abs, torch.abs),
    "acos": (lambda x: T.acos(x * 0.25), lambda x: torch.acos(x * 0.25)),
    "cosh": (T.cosh, torch.cosh),
    "erf": (T.erf, torch.erf),
    "exp10": (T.exp10, lambda x: 10**x),
    "floor": (T.floor, torch.floor),
    "fmod": (lambda x: T.fmod(x, 0.75), lambda x: torch.fmod(x, torch.tensor(0.75))),
    "isfinite": (lambda x: T.if_then_else(T.isfinite(x), x, x - x), lambda x: x),
    "isinf": (lambda x: T.if_then_else(T.isinf(x), x - x, x), lambda x: x),
    "isnan": (lambda x: T.if_then_else(T.isnan(x), x - x, x), lambda x: x),
    "log1p": (lambda x: T.log1p(x * x), lambda x: torch.log1p(x * x)),
    "pow": (lambda x: T.pow(x * x, x), lambda x: torch.pow(x * x, x)),
    "sigmoid": (T.sigmoid, torch.sigmoid),
    "tanh": (T.tanh, torch.tanh),
}


OF_SMALL_ARGUMENTS = {
    "erf": (T.erf, torch.erf),
    "log1p": (T.log1p, torch.log1p),
    "sin": (T.sin, torch.sin),
    "sinh": (T.sinh, torch.sinh),
    "tan": (T.tan, torch.tan),
    "tanh": (T.tanh, torch.tanh),
}


@pytest.mark.full(but=2)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("target", ["llvm", "metal"])
@pytest.mark.parametrize("name", OF_SMALL_ARGUMENTS)
def test_nothing_is_lost_of_small_arguments(name, target, dtype):
    """Where the function is a difference of what is nearly 1, all digits could be."""
    function, reference = OF_SMALL_ARGUMENTS[name]

    @T.prim_func
    def kernel(A: T.Tensor((128,), dtype), C: T.Tensor((128,), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(128):
                C[i] = function(A[i])

    a = torch.logspace(-4, 0, 64)
    a = torch.cat([a, -a[:-1], torch.zeros(1)]).to(getattr(torch, dtype))
    c = torch.empty_like(a)
    runnable(kernel, target)(a, c)
    rounding = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    torch.testing.assert_close(c.double(), reference(a.double()), rtol=rounding, atol=0)


@pytest.mark.parametrize("target", ["llvm", "metal"])
def test_tanh_of_large_arguments_and_of_what_is_no_number(target):
    @T.prim_func
    def kernel(A: T.Tensor((8,), "float32"), C: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                C[i] = T.tanh(A[i])

    infinity = float("inf")
    a = torch.tensor([9.0, 50.0, 1e30, infinity, -infinity, -100.0, float("nan"), 0.0])
    c = torch.empty(8)
    runnable(kernel, target)(a, c)
    torch.testing.assert_close(c, a.tanh(), equal_nan=True)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("target", ["llvm", "metal"])
def test_functions_in_vectors(dtype, target):
    """In a loop over T.vectorized, alone and in T.Parallel; one kernel computes them all."""
    n = len(FUNCTIONS)

    @T.prim_func
    def kernel(A: T.Tensor((128,), dtype), C: T.Tensor((n, 256), dtype)):
        with T.Kernel(1, threads=32):
            thread = T.get_thread_binding()
            for row, (function, _) in enumerate(FUNCTIONS.values()):
                for i in T.Parallel(32):
                    for v in T.vectorized(4):
                        C[row, i * 4 + v] = function(A[i * 4 + v])
                for v in T.vectorized(4):
                    C[row, 128 + thread * 4 + v] = function(A[thread * 4 + v])

    a = torch.from_numpy(np.random.default_rng(3).uniform(-2, 2, 128)).to(getattr(torch, dtype))
    c = torch.empty(n, 256, dtype=a.dtype)
    runnable(kernel, target)(a, c)
    rounding = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 3e-2}[dtype]
    for row, (_, reference) in zip(c, FUNCTIONS.values(), strict=True):
        exact = reference(a.float()).repeat(2)
        torch.testing.assert_close(row.float(), exact, rtol=rounding, atol=rounding)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_functions_in_vectors_compile_for_cuda(dtype):
    @T.prim_func
    def kernel(A: T.Tensor((128,), dtype), C: T.Tensor((14, 128), dtype)):
        with T.Kernel(1, threads=32):
            for row, (function, _) in enumerate(FUNCTIONS.values()):
                for i in T.Parallel(32):
                    for v in T.vectorized(4):
                        C[row, i * 4 + v] = function(A[i * 4 + v])

    assert tvmtile.compile(kernel, target={"kind": "cuda", "arch": "sm_90a"}).cubin


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("target", ["llvm", "metal"])
def test_the_magnitude_of_integers(dtype, target):
    @T.prim_func
    def kernel(A: T.Tensor((64,), dtype), C: T.Tensor((64,), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                C[i] = T.abs(A[i])

    a = torch.arange(-32, 32).to(getattr(torch, dtype))
    a[7] = torch.iinfo(a.dtype).min
    c = torch.empty_like(a)
    runnable(kernel, target)(a, c)
    assert torch.equal(c, a.abs())


def test_a_magnitude_does_not_repeat_its_value_three_times():
    value = tirx.Var("value", "int32")
    assert str(T.abs(T.abs(value))).count("value") == 4
    assert T.abs(-3) == 3


def test_vector_loop_that_adds_to_one_element():
    @T.prim_func
    def kernel(A: T.Tensor((8, 4), "float32"), C: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            for r in T.Parallel(8):
                total = T.alloc_var("float32", init=0)
                for k in T.vectorized(4):
                    total += A[r, k]
                C[r] = total

    a = torch.arange(32.0).view(8, 4)
    for target in ("llvm", "metal"):
        c = torch.empty(8)
        runnable(kernel, target)(a, c)
        assert torch.equal(c, a.sum(1)), target


def test_fast_functions_of_narrow_floats():
    a = torch.linspace(0.5, 2, 16).bfloat16()
    torch.testing.assert_close(apply(T.__exp10, a).float(), 10 ** a.float(), rtol=1e-2, atol=0)


def test_a_fast_tanh_is_one_instruction():
    @T.prim_func
    def kernel(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = T.__tanh(A[i])

    hopper = {"kind": "cuda", "arch": "sm_90a"}
    assert '"tanh.approx.f32' in tvmtile.compile(kernel, target=hopper).get_kernel_source()
    a, b = torch.linspace(-9, 9, 64), torch.empty(64)
    tvmtile.compile(kernel, target=hopper, execution_backend="emulator")(a, b)
    torch.testing.assert_close(b, a.tanh(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("function", [T.__exp, T.__log2, T.__cos])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64"])
def test_fast_functions_take_floats(function, dtype):
    with pytest.raises(UnsupportedDtype, match="only supports floating-point inputs") as caught:
        function(tirx.Var("x", dtype))
    assert f"T.{function.__name__}" in str(caught.value)
    assert f"but got {dtype}" in str(caught.value)
    assert "help: convert it" in str(caught.value)
