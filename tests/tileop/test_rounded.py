"""Arithmetic and conversions with a chosen rounding, bit by bit against exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.codegen.rounded_floats import FORMATS
from tvmtile.tileop.rounded import OPERANDS, ROUNDINGS

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
COUNT = 256
PRECISION = {"float32": (24, -149), "float64": (53, -1074)}
UNSIGNED = {"float32": np.uint32, "float64": np.uint64}


def program(function, kind, result=None):
    """`out[i] = function(a[i], b[i], c[i])`, each by a thread."""

    @T.prim_func
    def main(
        A: T.Tensor((COUNT,), kind),
        B: T.Tensor((COUNT,), kind),
        C: T.Tensor((COUNT,), kind),
        D: T.Tensor((COUNT,), result or kind),
    ):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(COUNT):
                D[i] = function(A[i], B[i], C[i])

    return main


def called(operation, rounding):
    count = OPERANDS[operation]
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
    """What IEEE 754 says of one operation; None where the sign of a zero or a NaN decides."""
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


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("operation", FUNCTIONS)
@pytest.mark.parametrize(
    ("target", "kind"), [("llvm", "float32"), ("llvm", "float64"), ("metal", "float32")]
)
def test_arithmetic_is_exact_and_rounded_once(target, kind, operation, rounding):
    a, b, c = operands(kind)
    d = np.empty_like(a)
    tvmtile.compile(program(called(operation, rounding), kind), **TARGETS[target])(a, b, c, d)
    checked = 0
    for values in zip(a, b, c, d, strict=True):
        wanted = expected(operation, values[:3], kind, rounding)
        if wanted is not None:
            checked += 1
            assert values[3] == wanted, (operation, rounding, values, wanted)
    assert checked > COUNT // 4


@pytest.mark.parametrize("operation", FUNCTIONS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_what_is_no_number_and_zeros_are_the_same_everywhere(operation, rounding):
    a, b, c = operands("float32")
    results = []
    for options in TARGETS.values():
        d = np.empty_like(a)
        tvmtile.compile(program(called(operation, rounding), "float32"), **options)(a, b, c, d)
        results.append(np.where(np.isnan(d), np.uint32(0), d.view(np.uint32) + np.uint32(1)))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("target", TARGETS)
def test_reciprocal_square_roots_are_rounded_to_nearest(target):
    a = np.abs(operands("float32")[0])
    d = np.empty_like(a)
    tvmtile.compile(program(lambda x, *_: T.ieee_frsqrt(x), "float32"), **TARGETS[target])(
        a, a, a, d
    )
    for x, y in zip(a, d, strict=True):
        if np.isfinite(x) and x > 0:
            assert y == root(1 / Fraction(float(x)), "float32", "rn"), x
    assert np.isnan(d[np.isnan(a)]).all()
    assert np.isinf(d[a == 0]).all()
    assert (d[np.isinf(a)] == 0).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_narrow_floats_are_rounded_once(target, kind):
    dtype = getattr(torch, kind)
    generator = torch.Generator().manual_seed(3)
    bits = torch.randint(-(2**15), 2**15, (3, COUNT), generator=generator, dtype=torch.int16)
    a, b, c = bits.view(dtype)
    d = torch.empty(COUNT, dtype=dtype)
    c = torch.where(torch.arange(COUNT) % 2 == 0, -(a.float() * b.float()).to(dtype), c)
    tvmtile.compile(program(T.ieee_fmaf, kind), **TARGETS[target])(a, b, c, d)
    # Exact in float64: the exponents that would need more bits are left out.
    exact = a.double() * b.double() + c.double()
    near = (a.double() * b.double()).abs() < 2.0**20 * c.double().abs().clamp(min=2.0**-14)
    near &= c.double().abs() < 2.0**20 * (a.double() * b.double()).abs()
    near &= exact.isfinite() & (exact.abs() > 1e-30)
    assert near.sum() > 20
    wanted = torch.tensor([_to_narrow(x, dtype) for x in exact[near].tolist()], dtype=dtype)
    assert torch.equal(d[near], wanted)


def _to_narrow(x, dtype):
    """Rounded to nearest once: torch goes from float64 to these through float32."""
    info = torch.finfo(dtype)
    precision = {torch.float16: 11, torch.bfloat16: 8}[dtype]
    exponent = max(np.frexp(x)[1] - precision, np.log2(info.smallest_normal) - precision + 1)
    value = np.rint(x / 2.0**exponent) * 2.0**exponent
    return float(np.copysign(np.inf, x)) if abs(value) > info.max else value


def test_a_fast_reciprocal():
    a = np.random.default_rng(0).uniform(0.1, 9, COUNT).astype("float32")
    for options in TARGETS.values():
        d = np.empty_like(a)
        tvmtile.compile(program(lambda x, *_: T.fast_rcp(x), "float32"), **options)(a, a, a, d)
        np.testing.assert_allclose(d, 1 / a, rtol=1e-6)


# Conversions ---------------------------------------------------------------------------------------


def numbers_of(name):
    """The magnitudes that a dtype holds, in order, and their codes."""
    kind = FORMATS[name]
    codes = np.arange(kind.largest + 1).astype(kind.storage)
    return codes.view(getattr(ml_dtypes, name, name)).astype(np.float64)


def empty_tensor(name):
    """A tensor of COUNT elements; two of 4 bits lie in a byte."""
    if FORMATS[name].bits == 4:
        return torch.empty(COUNT // 2, dtype=torch.uint8)
    return torch.empty(COUNT, dtype=getattr(torch, name))


def codes_of(tensor, name):
    kind = FORMATS[name]
    bits = tensor.view(getattr(torch, kind.storage)).numpy().astype(np.int64)
    if kind.bits == 4:
        bits = np.stack([bits & 15, bits >> 4], 1).reshape(-1)
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


RESULTS = [(name, True) for name in FORMATS] + [(n, False) for n, k in FORMATS.items() if k.has_nan]


@pytest.mark.parametrize("rounding", ["rn", "rz", "rp", "rm", "rs"])
@pytest.mark.parametrize(("name", "saturate"), RESULTS)
@pytest.mark.parametrize("target", TARGETS)
def test_conversions_with_a_rounding(target, name, rounding, saturate):
    kind = FORMATS[name]
    random = np.random.default_rng(5).integers(0, 2**32, COUNT, np.uint32)

    def function(x, y, z):
        bits = {"rbits": T.reinterpret(y, "uint32")} if rounding == "rs" else {}
        return T.cast(x, name, round=rounding, sat=saturate, **bits)

    kernel = tvmtile.compile(program(function, "float32", name), **TARGETS[target])
    for x in values_around(name):
        out = empty_tensor(name)
        kernel(
            torch.from_numpy(x), torch.from_numpy(random.view(np.float32)), torch.from_numpy(x), out
        )
        for value, bits, code in zip(x, random, codes_of(out, name), strict=True):
            lost = _lost_bits(value, kind)
            seen = (int(bits) >> (32 - lost)) << (32 - lost) if lost < 32 else int(bits)
            wanted, negative = cast_reference(value, name, rounding, saturate, seen)
            plain = kind.is_signed_zero_nan and wanted in (0, kind.nan)
            assert code == wanted + (kind.sign if negative and not plain else 0), (value, code)


def _lost_bits(value, kind):
    """Of how many bits a float32 loses: so many of the random ones count."""
    field = max(int(np.float32(value).view(np.uint32)) >> 23 & 0xFF, 1)
    return min(23 - kind.mantissa + max(128 - kind.bias - field, 0), 31)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32"])
def test_to_the_nearest_float_of_4_bits_is_what_a_conversion_is_without_a_rounding(target, source):
    @T.prim_func
    def main(
        A: T.Tensor((COUNT,), source),
        B: T.Tensor((COUNT,), "float4_e2m1fn"),
        C: T.Tensor((COUNT,), "float4_e2m1fn"),
    ):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(COUNT):
                B[i] = T.cast(A[i], "float4_e2m1fn", round="rn")
            for i in T.Parallel(COUNT):
                C[i] = T.cast(A[i], "float4_e2m1fn")

    kernel = tvmtile.compile(main, **TARGETS[target])
    for x in values_around("float4_e2m1fn"):
        rounded, plain = empty_tensor("float4_e2m1fn"), empty_tensor("float4_e2m1fn")
        kernel(torch.from_numpy(x).to(getattr(torch, source)), rounded, plain)
        assert torch.equal(rounded, plain)


def test_stochastic_rounding_has_the_right_mean():
    x = np.full(COUNT, 1.0 + 0.3 / 8, np.float32)
    random = np.random.default_rng(1).integers(0, 2**32, COUNT, np.uint32).view(np.float32)
    kernel = tvmtile.compile(
        program(
            lambda x, y, z: T.cast(
                x, "float8_e4m3fn", round="rs", rbits=T.reinterpret(y, "uint32")
            ),
            "float32",
            "float8_e4m3fn",
        )
    )
    out = torch.empty(COUNT, dtype=torch.float8_e4m3fn)
    kernel(torch.from_numpy(x), torch.from_numpy(random), torch.from_numpy(x), out)
    assert set(out.float().tolist()) == {1.0, 1.125}
    assert abs((out.float().mean() - 1).item() * 8 - 0.3) < 0.1


# CUDA ------------------------------------------------------------------------------------------------


def test_cuda_has_an_instruction_for_each_rounding():
    target = {"kind": "cuda", "arch": "sm_90a"}

    def everything(a, b, c):
        total = a
        for operation, function in FUNCTIONS.items():
            for rounding in ROUNDINGS:
                values = (total, b, c)[: OPERANDS[operation]]
                total = function(*values, rounding)
        return T.fast_rcp(total) if str(total.ty.dtype) == "float64" else T.ieee_frsqrt(total)

    for kind in ("float32", "float64"):
        kernel = tvmtile.compile(program(everything, kind), target=target)
        assert kernel.cubin
        source = kernel.get_kernel_source()
        prefix = "f" if kind == "float32" else "d"
        assert all(
            f"__{prefix}{name}_ru(" in source for name in ("add", "sub", "mul", "div", "rcp")
        )


@pytest.mark.parametrize("rounding", ["rn", "rz", "rp", "rm", "rs"])
def test_cuda_compiles_conversions_with_a_rounding(rounding):
    bits = {"rbits": T.uint32(77)} if rounding == "rs" else {}
    for name in FORMATS:
        kernel = tvmtile.compile(
            program(lambda x, *_, n=name: T.cast(x, n, round=rounding, **bits), "float32", name),
            target={"kind": "cuda", "arch": "sm_90a"},
        )
        assert kernel.cubin
