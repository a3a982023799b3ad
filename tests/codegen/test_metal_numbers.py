"""Numbers on Metal: constants, functions of floats, and floats of 8 bits."""

from __future__ import annotations

import math

import pytest
import torch

import tvmtile
import tvmtile.language as T

FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")


def on_metal(program):
    return tvmtile.compile(program, target="metal", execution_backend="emulator")


@pytest.mark.full
def test_constants_keep_their_values():
    values = [16777217.0 - 1, 0.1, 1.0000001, -math.inf, 1e-42, 3.4028234663852886e38]

    @T.prim_func
    def main(
        A: T.Tensor((6,), "float32"), B: T.Tensor((2,), "bfloat16"), C: T.Tensor((1,), "int32")
    ):
        with T.Kernel(1, threads=32):
            for place, value in enumerate(values):
                A[place] = T.float32(value)
            B[0] = T.bfloat16(1e30)
            B[1] = T.if_then_else(C[0] > 0, T.bfloat16(2e30), T.bfloat16(-math.inf))
            C[0] = T.min(C[0], -(2**31))

    a, b, c = torch.zeros(6), torch.zeros(2, dtype=torch.bfloat16), torch.ones(1, dtype=torch.int32)
    on_metal(main)(a, b, c)
    assert a.tolist() == torch.tensor(values).tolist()
    assert b.tolist() == torch.tensor([1e30, 2e30], dtype=torch.bfloat16).tolist()
    assert c.item() == -(2**31)


FUNCTIONS = {
    "acosh": (T.acosh, lambda x: torch.acosh(1 + x)),
    "asin": (T.asin, torch.asin),
    "atan": (T.atan, torch.atan),
    "erf": (T.erf, torch.erf),
    "exp10": (T.exp10, lambda x: 10**x),
    "log1p": (T.log1p, torch.log1p),
    "nearbyint": (T.nearbyint, torch.round),
    "rsqrt": (T.rsqrt, torch.rsqrt),
    "sigmoid": (T.sigmoid, torch.sigmoid),
    "tan": (T.tan, torch.tan),
    "tanh": (T.tanh, torch.tanh),
}


@pytest.mark.full(but=1)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_functions(dtype):
    """One kernel computes them all."""
    names = [n for n in FUNCTIONS if not (dtype == "bfloat16" and n == "exp10")]

    @T.prim_func
    def main(A: T.Tensor((64,), dtype), C: T.Tensor((len(names), 64), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                for row, name in enumerate(names):
                    C[row, i] = FUNCTIONS[name][0](A[i] + 1 if name == "acosh" else A[i])

    kind = getattr(torch, dtype)
    a, c = (torch.arange(1, 65) / 66).to(kind), torch.zeros(len(names), 64, dtype=kind)
    on_metal(main)(a, c)
    tolerance = {"float32": 3e-6, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    for row, name in enumerate(names):
        x = (a + 1).double() - 1 if name == "acosh" else a.double()
        expected = FUNCTIONS[name][1](x)
        torch.testing.assert_close(
            c[row].double(), expected, rtol=tolerance, atol=tolerance, msg=name
        )


def test_functions_of_two_values():
    @T.prim_func
    def main(
        A: T.Tensor((32,), "float32"),
        B: T.Tensor((32,), "float32"),
        C: T.Tensor((5, 32), "float32"),
    ):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                C[0, i] = T.atan2(A[i], B[i])
                C[1, i] = T.hypot(A[i], B[i])
                C[2, i] = T.copysign(A[i], B[i])
                C[3, i] = T.pow(T.abs(A[i]), B[i])
                C[4, i] = T.fmod(A[i], B[i])

    a, b, c = torch.randn(32), torch.randn(32), torch.zeros(5, 32)
    on_metal(main)(a, b, c)
    x, y = a.double(), b.double()
    expected = [
        torch.atan2(x, y),
        torch.hypot(x, y),
        torch.copysign(x, y),
        x.abs() ** y,
        torch.fmod(x, y),
    ]
    torch.testing.assert_close(c.double(), torch.stack(expected), rtol=5e-6, atol=2e-6)


def conversions_of_8_bits(dtype):
    """A program that decodes and encodes floats of 8 bits, all codes, and floats near to them.

    Among the floats are codes, what is half-way between codes, and others.
    """
    count = 2048

    @T.prim_func
    def main(
        codes: T.Tensor((256,), dtype),
        decoded: T.Tensor((256,), "float32"),
        values: T.Tensor((count,), "float32"),
        encoded: T.Tensor((count,), dtype),
    ):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((256,), dtype)
            T.copy(codes, tile)
            T.copy(tile, decoded)
            T.copy(values, encoded)

    codes = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype))
    exact = codes.float()
    near = torch.cat(
        [exact, exact * (1 + 2**-9), (exact + exact.roll(1)) / 2, torch.randn(count - 768)]
    )
    return main, codes, near


def converted(kernel, codes, near):
    """What a kernel of `conversions_of_8_bits` encodes; all codes decode bit by bit."""
    decoded = torch.zeros(256)
    encoded = torch.zeros(len(near), dtype=torch.uint8).view(codes.dtype)
    kernel(codes, decoded, near, encoded)
    torch.testing.assert_close(decoded, codes.float(), rtol=0, atol=0, equal_nan=True)
    return encoded


@pytest.mark.full(but=1)
@pytest.mark.parametrize("dtype", FLOAT8)
def test_floats_of_8_bits(dtype):
    """All codes decode bit by bit; floats near to codes and half-way between encode as on the CPU."""
    program, codes, near = conversions_of_8_bits(dtype)
    got, expected = (converted(c(program), codes, near) for c in (on_metal, tvmtile.compile))
    assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))


def test_bits_of_a_narrow_integer_that_was_computed_are_those_of_its_dtype():
    @T.prim_func
    def main(A: T.Tensor((32,), "uint8"), C: T.Tensor((32,), "int8")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                C[i] = T.reinterpret(T.int8, (A[i] & T.uint8(15)) << T.uint8(4)) >> T.int8(4)

    A = torch.arange(32, dtype=torch.uint8)
    C = torch.empty(32, dtype=torch.int8)
    tvmtile.compile(main, target="metal", execution_backend="emulator")(A, C)
    low = (A & 15).to(torch.int16)
    assert torch.equal(C.to(torch.int16), torch.where(low > 7, low - 16, low))
