"""Every operator on elements, for every dtype: Metal's compiler takes it, and computes what it means.

Integers of 8 and 16 bits, and those without a sign, wrap around; wider ones do not overflow here.
"""

from __future__ import annotations

import operator

import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T

FLOATS = ("float32", "float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COUNT = 64


def one(value):
    return T.cast(1, str(value.ty.dtype))


def same(name):
    """A function of one argument that T and torch have under one name."""
    return lambda a, _: getattr(T, name)(a), lambda a, _: getattr(torch, name)(a)


def same_of_two(name):
    return getattr(T, name), getattr(torch, name)


def class_of(name):
    return (
        lambda a, _: T.cast(getattr(T, name)(a), str(a.ty.dtype)),
        lambda a, _: getattr(torch, name)(a).double(),
    )


UNARY = (
    "exp exp2 log log2 log10 log1p sqrt rsqrt sin cos tan sinh cosh tanh asin acos atan asinh atanh"
)
UNARY += " ceil floor trunc round erf sigmoid abs"
# A function of T, and what it means for tensors of float64.
OF_FLOATS = {
    **{name: same(name) for name in UNARY.split()},
    **{name: same_of_two(name) for name in ("pow", "atan2", "fmod", "hypot", "copysign")},
    **{name: class_of(name) for name in ("isnan", "isinf", "isfinite")},
    "acosh": (lambda a, _: T.acosh(a + one(a)), lambda a, _: torch.acosh(a + 1)),
    "nearbyint": (lambda a, _: T.nearbyint(a), lambda a, _: torch.round(a)),
    "nextafter": (T.nextafter, lambda a, _: a),
    "exp10": (lambda a, _: T.exp10(a), lambda a, _: 10**a),
    "ldexp": (lambda a, _: T.ldexp(a, T.int32(3)), lambda a, _: a * 8),
    "+ - * /": (lambda a, b: (a + b) * (a - b) / b, lambda a, b: (a + b) * (a - b) / b),
    "max, min": (
        lambda a, b: T.max(a + b, b) - T.min(a - b, a),
        lambda a, b: torch.maximum(a + b, b) - torch.minimum(a - b, a),
    ),
    "if_then_else": (
        lambda a, b: T.if_then_else(a > b, a + b, b),
        lambda a, b: torch.where(a > b, a + b, b),
    ),
    "Select": (lambda a, b: T.Select(a > b, a * b, b), lambda a, b: torch.where(a > b, a * b, b)),
    "clamp": (lambda a, b: T.clamp(a, one(a), b), lambda a, b: torch.clamp(a, 1).minimum(b)),
}
# TVM refuses these for bfloat16, on every target.
NOT_OF_BFLOAT = ("exp10", "pow", "isnan", "isinf", "isfinite")


def unsigned(a):
    return a.view(f"uint{8 * a.itemsize}")


# A function of T, and what it means for arrays of the dtype.
OF_INTEGERS = {
    "+": (operator.add, operator.add),
    "-": (operator.sub, operator.sub),
    "*": (operator.mul, operator.mul),
    "max": (lambda a, b: T.max(a + b, b), lambda a, b: np.maximum(a + b, b)),
    "min": (lambda a, b: T.min(a - b, b), lambda a, b: np.minimum(a - b, b)),
    "if_then_else": (
        lambda a, b: T.if_then_else(a > b, a + b, b),
        lambda a, b: np.where(a > b, a + b, b),
    ),
    "Select": (lambda a, b: T.Select(a > b, a + b, b), lambda a, b: np.where(a > b, a + b, b)),
    "clamp": (lambda a, b: T.clamp(a, one(a), b), lambda a, b: np.minimum(np.maximum(a, 1), b)),
    "comparison": (
        lambda a, b: T.cast(a + b > a - b, str(a.ty.dtype)),
        lambda a, b: (a + b > a - b).astype(a.dtype),
    ),
    "and, or, not": (
        lambda a, b: T.cast(T.Or(T.And(a > b, a < b + b), T.Not(b > a)), str(a.ty.dtype)),
        lambda a, b: (((a > b) & (a < b + b)) | ~(b > a)).astype(a.dtype),
    ),
    "//": (operator.floordiv, lambda a, b: a // b),
    "%": (operator.mod, lambda a, b: a % b),
    "truncdiv": (T.truncdiv, lambda a, b: (a - np.fmod(a, b)) // b),
    "truncmod": (T.truncmod, np.fmod),
    "ceildiv": (lambda a, b: T.ceildiv(a & one(a), b & one(a) | one(a)), lambda a, _: a & 1),
    "//, of a sum": (lambda a, b: (a + b) // b, lambda a, b: (a + b) // b),
    "& | ^": (lambda a, b: T.max(a & b, a ^ b) | one(a), lambda a, b: np.maximum(a & b, a ^ b) | 1),
    "~": (lambda a, b: T.min(~a, b), lambda a, b: np.minimum(~a, b)),
    "<<": (lambda a, b: T.max(a << (b & one(b)), b), lambda a, b: np.maximum(a << (b & 1), b)),
    ">>": (lambda a, b: (a + b) >> (b & one(b)), lambda a, b: (a + b) >> (b & 1)),
    "abs": (lambda a, b: T.max(T.abs(a), b), lambda a, b: np.maximum(np.abs(a), b)),
    "popcount": (
        lambda a, b: T.popcount(a & b) + b,
        lambda a, b: np.bitwise_count(unsigned(a & b)).astype(a.dtype) + b,
    ),
}


def program(dtype, functions):
    @T.prim_func
    def main(
        A: T.Tensor((COUNT,), dtype),
        B: T.Tensor((COUNT,), dtype),
        C: T.Tensor((len(functions), COUNT), dtype),
    ):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(COUNT):
                for row, function in enumerate(functions):
                    C[row, i] = function(A[i], B[i])

    return main


def on_metal(main):
    return tvmtile.compile(main, target="metal", execution_backend="emulator")


@pytest.mark.full
@pytest.mark.parametrize("dtype", FLOATS)
def test_operators_on_floats(dtype):
    skipped = NOT_OF_BFLOAT if dtype == "bfloat16" else ()
    table = {name: pair for name, pair in OF_FLOATS.items() if name not in skipped}
    a = ((torch.arange(COUNT) + 1) / (COUNT + 2)).to(getattr(torch, dtype))
    b = (1.5 - a.double().flip(0)).to(a.dtype)
    got = torch.zeros((len(table), COUNT), dtype=a.dtype)
    on_metal(program(dtype, [pair[0] for pair in table.values()]))(a, b, got)
    tolerance = {"float32": 4e-6, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    for row, (name, (_, reference)) in enumerate(table.items()):
        expected = reference(a.double(), b.double())
        torch.testing.assert_close(
            got[row].double(),
            expected,
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def integers(dtype):
    """Two arrays; the second has no zero."""
    limits = np.iinfo(dtype)
    wraps = limits.bits < 32 or limits.min == 0
    low, high = (limits.min, limits.max) if wraps else (-(2 ** (limits.bits // 2 - 2)),) * 2
    high = high if wraps else -low
    a, b = np.random.default_rng(limits.bits).integers(low, high, (2, COUNT), dtype, endpoint=True)
    b[b == 0] = 1
    return a, b


@pytest.mark.full(but=1)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_operators_on_integers(dtype):
    a, b = integers(dtype)
    got = np.zeros((len(OF_INTEGERS), COUNT), dtype)
    on_metal(program(dtype, [pair[0] for pair in OF_INTEGERS.values()]))(a, b, got)
    with np.errstate(over="ignore", divide="ignore"):
        for row, (name, (_, reference)) in enumerate(OF_INTEGERS.items()):
            np.testing.assert_array_equal(got[row], reference(a, b), err_msg=name)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("source", FLOATS + INTEGERS + ("bool",))
def test_conversions(source):
    targets = FLOATS + INTEGERS + ("bool",)

    @T.prim_func
    def main(A: T.Tensor((COUNT,), source), C: T.Tensor((len(targets), COUNT), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(COUNT):
                for row, dtype in enumerate(targets):
                    C[row, i] = T.cast(T.cast(A[i], dtype), "float32")

    a = (torch.arange(COUNT) % 50).to(getattr(torch, source))
    got = torch.zeros(len(targets), COUNT)
    on_metal(main)(a, got)
    for row, dtype in enumerate(targets):
        assert torch.equal(got[row], a.to(getattr(torch, dtype)).float()), dtype


@pytest.mark.full(but=1)
@pytest.mark.parametrize("dtype", ["int64", "uint64", "bfloat16", "float16", "bool"])
def test_shuffles(dtype):
    """Of 64 bits, of bfloat and of bool, which Metal's own shuffles do not take."""

    @T.prim_func
    def main(A: T.Tensor((32,), dtype), C: T.Tensor((4, 32), dtype)):
        with T.Kernel(1, threads=32):
            lane = T.get_lane_idx()
            C[0, lane] = T.shfl_xor(A[lane], 1)
            C[1, lane] = T.shfl_down(A[lane], 2)
            C[2, lane] = T.shfl_up(A[lane], 3)
            C[3, lane] = T.shfl_sync(A[lane], 5)

    a = torch.randint(-(2**62), 2**62, (32,)).to(getattr(torch, dtype))
    got = torch.zeros((4, 32), dtype=a.dtype)
    on_metal(main)(a, got)
    lanes = torch.arange(32)
    down, up = lanes + 2, lanes - 3
    sources = [
        lanes ^ 1,
        torch.where(down < 32, down, lanes),
        torch.where(up >= 0, up, lanes),
        lanes * 0 + 5,
    ]
    assert torch.equal(got, torch.stack([a[source] for source in sources]))


@pytest.mark.full(but=1)
@pytest.mark.parametrize("dtype", ["int64", "uint64", "bfloat16", "int8"])
def test_reductions_and_scans_over_lanes(dtype):
    @T.prim_func
    def main(
        A: T.Tensor((4, 64), dtype), Sums: T.Tensor((4,), dtype), Scans: T.Tensor((4, 64), dtype)
    ):
        with T.Kernel(1, threads=64):
            rows = T.alloc_fragment((4, 64), dtype)
            sums = T.alloc_fragment((4,), dtype)
            T.copy(A, rows)
            T.reduce_max(rows, sums, dim=1)
            T.copy(sums, Sums)
            tile = T.alloc_shared((4, 64), dtype)
            T.copy(A, tile)
            T.cumsum(tile, dim=1)
            T.copy(tile, Scans)

    a = torch.randint(0, 2, (4, 64)).to(getattr(torch, dtype))
    a[:, 7] = 3
    sums, scans = torch.zeros(4, dtype=a.dtype), torch.zeros_like(a)
    on_metal(main)(a, sums, scans)
    assert sums.tolist() == [3] * 4
    assert torch.equal(scans.long(), a.long().cumsum(1))


@pytest.mark.full(but=1)
@pytest.mark.parametrize("dtype", ["int8", "uint16", "float16", "bfloat16"])
def test_atomics_on_parts_of_words_in_threadgroup_memory(dtype):
    """The word around an element lies in the array, which needs the alignment of a word."""

    @T.prim_func
    def main(A: T.Tensor((64,), dtype), C: T.Tensor((4,), dtype)):
        with T.Kernel(1, threads=64):
            sums = T.alloc_shared((4,), dtype)
            T.clear(sums)
            for i in T.Parallel(64):
                T.atomic_add(sums[i % 4], A[i])
            T.copy(sums, C)

    a = torch.ones(64).to(getattr(torch, dtype))
    got = torch.zeros(4, dtype=a.dtype)
    on_metal(main)(a, got)
    assert got.tolist() == [16] * 4
