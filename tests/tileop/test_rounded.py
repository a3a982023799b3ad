"""Arithmetic and conversions with a chosen rounding, bit by bit against exact arithmetic."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.codegen.narrow_floats import FORMATS
from tvmtile.codegen.rounding import OPERATIONS, ROUNDINGS

TARGETS = {
    "llvm": {"target": "llvm"},
    "metal": {"target": "metal", "execution_backend": "emulator"},
}
FUNCTIONS = {
    "add": T.ieee_add,
    "sub": T.ieee_sub,
    "mul": T.ieee_mul,
    "div": T.ieee_fdiv,
    "fma": T.ieee_fmaf,
    "sqrt": T.ieee_fsqrt,
    "rcp": T.ieee_frcp,
}
HOPPER = {"kind": "cuda", "arch": "sm_90a"}
COUNT = 256
PRECISION = {"float32": (24, -149), "float64": (53, -1074)}
UNSIGNED = {"float32": np.uint32, "float64": np.uint64}


def program(functions, kind, result=None):
    """`out[n, i] = functions[n](a[i], b[i], c[i])`, each by a thread."""

    @T.prim_func
    def main(
        A: T.Tensor((COUNT,), kind),
        B: T.Tensor((COUNT,), kind),
        C: T.Tensor((COUNT,), kind),
        D: T.Tensor((len(functions), COUNT), result or kind),
    ):
        with T.Kernel(1, threads=128):
            for number, function in enumerate(functions):
                for i in T.Parallel(COUNT):
                    D[number, i] = function(A[i], B[i], C[i])

    return main


def called(operation, rounding):
    count = OPERATIONS[operation].operands
    return lambda *values: FUNCTIONS[operation](*values[:count], rounding)


def operands(kind):
    """Numbers of all magnitudes, close ones, and those that have no bits to lose."""
    rng = np.random.default_rng(7)
    bits = np.iinfo(UNSIGNED[kind]).bits
    wild = [rng.integers(0, 2**bits, COUNT, UNSIGNED[kind]).view(kind) for _ in range(3)]
    near = [rng.uniform(-4, 4, COUNT).astype(kind) for _ in range(3)]
    simple = [rng.integers(-9, 9, COUNT).astype(kind) for _ in range(3)]
    for k, pick in enumerate(rng.integers(0, 3, COUNT)):
        for a, b, c in zip(wild, near, simple, strict=True):
            a[k] = (a, b, c)[pick][k]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, np.finfo(kind).tiny / 2]
    for index, x in enumerate(special):
        for other, y in enumerate(special):
            wild[0][7 * index + other], wild[1][7 * index + other] = x, y
    with np.errstate(all="ignore"):  # the sum of a product and this is below its last place
        wild[2][-64:] = -(wild[0][-64:] * wild[1][-64:])
    return [np.ascontiguousarray(x) for x in wild]


def rounded(exact, kind, rounding):
    """A fraction that is not 0 as a number of a dtype, rounded as IEEE 754 says."""
    precision, least = PRECISION[kind]
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent = max(exponent - (magnitude < Fraction(2) ** exponent) - precision + 1, least)
    scaled = magnitude / Fraction(2) ** exponent
    whole, rest = divmod(scaled, 1)
    up = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1),
        "rz": False,
        "ru": rest > 0 and exact > 0,
        "rd": rest > 0 and exact < 0,
    }[rounding]
    value = (int(whole) + up) * Fraction(2) ** exponent
    largest = Fraction(float(np.finfo(kind).max))
    if value > largest:
        outward = rounding == "rn" or rounding == ("ru" if exact > 0 else "rd")
        value = np.inf if outward else float(largest)
    return np.copysign(float(value), float(exact > 0) - 0.5)


def root(x, kind, rounding):
    """The square root of a fraction, to more bits than the dtype has, and one bit for the rest."""
    scale = 4 ** (PRECISION[kind][0] + 600)
    number = x.numerator * scale // x.denominator
    found = math.isqrt(number)
    exact = found * found * x.denominator == x.numerator * scale
    bound = Fraction(found, 2 ** (PRECISION[kind][0] + 600))
    return rounded(bound if exact else bound * (1 + Fraction(1, 2**400)), kind, rounding)


def expected(operation, values, kind, rounding):
    """The result of one operation by IEEE 754; None where the sign of a zero or a NaN decides."""
    if not all(np.isfinite(v) for v in values):
        return None
    a, b, c = (Fraction(float(v)) for v in values)
    if operation in ("div", "rcp", "sqrt"):
        if operation == "sqrt":
            return root(a, kind, rounding) if a > 0 else None
        top, bottom = (Fraction(1), a) if operation == "rcp" else (a, b)
        return rounded(top / bottom, kind, rounding) if top and bottom else None
    exact = {"add": a + b, "sub": a - b, "mul": a * b, "fma": a * b + c}[operation]
    return rounded(exact, kind, rounding) if exact else None


CASES = list(itertools.product(FUNCTIONS, ROUNDINGS))


@functools.cache
def computed(target, kind):
    """The results of a target, for each operation and rounding."""
    a, b, c = operands(kind)
    d = np.empty((len(CASES), COUNT), kind)
    functions = [called(*operation) for operation in CASES]
    tvmtile.compile(program(functions, kind), **TARGETS[target])(a, b, c, d)
    return d


@pytest.mark.parametrize(
    ("target", "kind"), [("llvm", "float32"), ("llvm", "float64"), ("metal", "float32")]
)
def test_arithmetic_is_exact_and_rounded_once(target, kind):
    for (operation, rounding), d in zip(CASES, computed(target, kind), strict=True):
        checked = 0
        for *given, found in zip(*operands(kind), d, strict=True):
            wanted = expected(operation, given, kind, rounding)
            if wanted is not None:
                checked += 1
                assert found == wanted, (operation, rounding, given, wanted)
        assert checked > COUNT // 4


def test_what_is_no_number_and_zeros_are_the_same_everywhere():
    results = [computed(target, "float32") for target in TARGETS]
    np.testing.assert_array_equal(
        *(np.where(np.isnan(d), np.uint32(0), d.view(np.uint32) + np.uint32(1)) for d in results)
    )


@pytest.mark.parametrize("target", TARGETS)
def test_reciprocals_and_their_roots_of_one_operand(target):
    """Of roots the nearest; a fast reciprocal is close."""
    a, near = np.abs(operands("float32")[0]), np.random.default_rng(0).uniform(0.1, 9, COUNT)
    near, d = near.astype("float32"), np.empty((2, COUNT), "float32")
    functions = [lambda x, *_: T.ieee_frsqrt(x), lambda x, y, _: T.fast_rcp(y)]
    tvmtile.compile(program(functions, "float32"), **TARGETS[target])(a, near, a, d)
    for x, y in zip(a, d[0], strict=True):
        if np.isfinite(x) and x > 0:
            assert y == root(1 / Fraction(float(x)), "float32", "rn"), x
    assert np.isnan(d[0][np.isnan(a)]).all()
    assert np.isinf(d[0][a == 0]).all()
    assert (d[0][np.isinf(a)] == 0).all()
    np.testing.assert_allclose(d[1], 1 / near, rtol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_narrow_floats_are_rounded_once(target, kind):
    dtype = getattr(torch, kind)
    generator = torch.Generator().manual_seed(3)
    bits = torch.randint(-(2**15), 2**15, (3, COUNT), generator=generator, dtype=torch.int16)
    a, b, c = bits.view(dtype)
    d = torch.empty(1, COUNT, dtype=dtype)
    c = torch.where(torch.arange(COUNT) % 2 == 0, -(a.float() * b.float()).to(dtype), c)
    tvmtile.compile(program([T.ieee_fmaf], kind), **TARGETS[target])(a, b, c, d)
    # Exact in float64: the exponents that would need more bits are left out.
    exact = a.double() * b.double() + c.double()
    near = (a.double() * b.double()).abs() < 2.0**20 * c.double().abs().clamp(min=2.0**-14)
    near &= c.double().abs() < 2.0**20 * (a.double() * b.double()).abs()
    near &= exact.isfinite() & (exact.abs() > 1e-30)
    assert near.sum() > 20
    wanted = torch.tensor([_to_narrow(x, dtype) for x in exact[near].tolist()], dtype=dtype)
    assert torch.equal(d[0][near], wanted)


def _to_narrow(x, dtype):
    """Rounded to nearest once: torch goes from float64 to these through float32."""
    info = torch.finfo(dtype)
    precision = {torch.float16: 11, torch.bfloat16: 8}[dtype]
    exponent = max(np.frexp(x)[1] - precision, np.log2(info.smallest_normal) - precision + 1)
    value = np.rint(x / 2.0**exponent) * 2.0**exponent
    return float(np.copysign(np.inf, x)) if abs(value) > info.max else value


# Conversions ---------------------------------------------------------------------------------------


def numbers_of(name):
    """The magnitudes that a dtype holds, in order, and their codes."""
    kind = FORMATS[name]
    codes = np.arange(kind.largest + 1).astype(kind.storage)
    return codes.view(getattr(ml_dtypes, name, name)).astype(np.float64)


def empty_tensor(name, rows):
    """A tensor of COUNT elements a row; two of 4 bits lie in a byte."""
    if FORMATS[name].bits == 4:
        return torch.empty(rows, COUNT // 2, dtype=torch.uint8)
    return torch.empty(rows, COUNT, dtype=getattr(torch, name))


def codes_of(tensor, name):
    kind = FORMATS[name]
    bits = tensor.view(getattr(torch, kind.storage)).numpy().astype(np.int64)
    if kind.bits == 4:
        bits = np.stack([bits & 15, bits >> 4], -1).reshape(len(bits), -1)
    return bits


def cast_reference(x, name, rounding, saturate, random=0):
    """The code without a sign, and whether there is a sign, of one float32."""
    kind, table = FORMATS[name], numbers_of(name)
    beyond = kind.nan if kind.infinity is None else kind.infinity
    negative, magnitude = bool(np.signbit(x)), abs(float(x))
    if np.isnan(x):
        return kind.nan, negative == kind.has_nan
    if np.isinf(x):
        return (kind.largest if saturate else beyond), negative
    step = table[-1] - table[-2]
    extended = np.append(table, table[-1] + step)  # as if exponents went on
    below = int(np.searchsorted(extended, magnitude, side="right")) - 1
    if below >= kind.largest + 1:
        below, up = kind.largest + 1, 0
    else:
        rest = (Fraction(magnitude) - Fraction(extended[below])) / (
            Fraction(extended[below + 1]) - Fraction(extended[below])
        )
        up = {
            "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and below % 2 == 1),
            "rz": False,
            "rp": rest > 0 and not negative,
            "rm": rest > 0 and negative,
            "rs": rest + Fraction(random, 2**32) >= 1,
        }[rounding]
    code = below + int(up)
    if code > kind.largest:
        inward = saturate or rounding == "rz" or rounding == ("rp" if negative else "rm")
        code = kind.largest if inward else beyond
    return code, negative


def values_around(name):
    """Numbers of a dtype, between them, near both, beyond the largest, and what is no number."""
    table = numbers_of(name)
    rng = np.random.default_rng(11)
    picked = np.unique(
        np.r_[0:12, rng.integers(0, len(table) - 1, 30), len(table) - 3, len(table) - 2]
    )
    picked = picked[picked < len(table) - 1]
    low, high = table[picked], table[picked + 1]
    mixed = [low, (low + high) / 2, np.nextafter((low + high) / 2, 0), low + (high - low) * 0.3]
    ends = [0.0, np.inf, np.nan, table[-1] * 1.01, table[-1] * 4, table[1] * 1e-4, 1e-45, 3e38]
    with np.errstate(over="ignore"):
        x = np.concatenate([*mixed, ends]).astype(np.float32)
    x = np.concatenate([x, -x])[: 2 * COUNT]
    x = np.resize(x, 2 * COUNT)
    return x.reshape(2, COUNT)


CASTS = list(itertools.product(["rn", "rz", "rp", "rm", "rs"], [True, False]))


def casts(name):
    """Conversions from float32 with each rounding, with the largest number for more, or without."""

    def cast(rounding, saturate):
        def function(x, y, z):
            bits = {"rbits": T.reinterpret(y, "uint32")} if rounding == "rs" else {}
            return T.cast(x, name, round=rounding, sat=saturate, **bits)

        return function

    chosen = [each for each in CASTS if each[1] or FORMATS[name].has_nan]
    return chosen, program([cast(*each) for each in chosen], "float32", name)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("target", TARGETS)
def test_conversions_with_a_rounding(target, name):
    kind, (chosen, main) = FORMATS[name], casts(name)
    random = np.random.default_rng(5).integers(0, 2**32, COUNT, np.uint32)
    kernel = tvmtile.compile(main, **TARGETS[target])
    for x in values_around(name):
        out = empty_tensor(name, len(chosen))
        kernel(
            torch.from_numpy(x), torch.from_numpy(random.view(np.float32)), torch.from_numpy(x), out
        )
        for (rounding, saturate), codes in zip(chosen, codes_of(out, name), strict=True):
            for value, bits, code in zip(x, random, codes, strict=True):
                lost = _lost_bits(value, kind)
                seen = (int(bits) >> (32 - lost)) << (32 - lost) if lost < 32 else int(bits)
                wanted, negative = cast_reference(value, name, rounding, saturate, seen)
                plain = kind.is_signed_zero_nan and wanted in (0, kind.nan)
                wanted += kind.sign if negative and not plain else 0
                assert code == wanted, (rounding, saturate, value, code)


def _lost_bits(value, kind):
    """Of how many bits a float32 loses: so many of the random ones count."""
    field = max(int(np.float32(value).view(np.uint32)) >> 23 & 0xFF, 1)
    return min(23 - kind.mantissa + max(128 - kind.bias - field, 0), 31)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32"])
def test_to_the_nearest_float_of_4_bits_is_what_a_conversion_is_without_a_rounding(target, source):
    to = "float4_e2m1fn"
    functions = [lambda x, *_: T.cast(x, to, round="rn"), lambda x, *_: T.cast(x, to)]
    kernel = tvmtile.compile(program(functions, source, to), **TARGETS[target])
    for x in values_around(to):
        out, given = empty_tensor(to, 2), torch.from_numpy(x).to(getattr(torch, source))
        kernel(given, given, given, out)
        assert torch.equal(*out)


# CUDA ------------------------------------------------------------------------------------------------


def test_cuda_has_an_instruction_for_each_rounding():
    for kind, prefix in (("float32", "f"), ("float64", "d")):
        functions = [called(*operation) for operation in CASES]
        functions.append(lambda x, *_: T.fast_rcp(x) if kind == "float64" else T.ieee_frsqrt(x))
        kernel = tvmtile.compile(program(functions, kind), target=HOPPER)
        assert kernel.cubin
        source = kernel.get_kernel_source()
        assert all(
            f"__{prefix}{name}_ru(" in source for name in ("add", "sub", "mul", "div", "rcp")
        )


@pytest.mark.full(but=1)
@pytest.mark.parametrize("name", FORMATS)
def test_cuda_compiles_conversions_with_a_rounding(name):
    assert tvmtile.compile(casts(name)[1], target=HOPPER).cubin
