"""The floats of 8 and 4 bits on Metal: functions in its shading language that decode and encode them.

They compute what `tvmtile.codegen.narrow_floats` does, in the same steps; as functions, since the
generator of Metal would repeat an expression wherever its value is used.
"""

from __future__ import annotations

import re
import struct
from functools import cache
from typing import Any

from tvm import ir
from tvm.tirx.script import builder as T

from tvmtile.codegen.narrow_floats import NARROW_FLOATS, NarrowFloat, overflow

_MANTISSA = 23
_BIAS = 127
_NAME = re.compile(r"tvmtile_(decode|encode|encode_half)_(float[48]_\w+)")


def decode(dtype: str, code: ir.Expr) -> ir.Expr:
    """The float32 value of a code, a uint8."""
    return T.call_pure_extern("float32", f"tvmtile_decode_{dtype}", code)


def encode(dtype: str, value: ir.Expr) -> ir.Expr:
    """The code, a uint8, of the value of a dtype that is nearest to a float32."""
    return T.call_pure_extern("uint8", f"tvmtile_encode_{dtype}", value)


def encode_half(dtype: str, value: ir.Expr) -> Any:
    """The code of a float16; None where that is `encode` of it as a float32.

    GPUs drop the sign of NaN when they widen it. It matters to a dtype that has zero for NaN.
    """
    if NARROW_FLOATS[dtype].has_nan:
        return None
    return T.call_pure_extern("uint8", f"tvmtile_encode_half_{dtype}", value)


@cache
def definition(name: str) -> str | None:
    """The text of the function of a name; None for a name of anything else."""
    match = _NAME.fullmatch(name)
    if match is None or match[2] not in NARROW_FLOATS:
        return None
    kind = NARROW_FLOATS[match[2]]
    if match[1] == "decode":
        lines = _decode_lines(kind) if kind.mantissa else _DECODE_E8M0
        head = f"inline float {name}(uchar code) {{"
    else:
        half = match[1] == "encode_half"
        lines = _encode_lines(kind, half) if kind.mantissa else _ENCODE_E8M0
        head = f"inline uchar {name}({'half' if half else 'float'} value) {{"
    return "\n".join([head, *(f"  {line}" for line in lines), "}\n"])


_DECODE_E8M0 = [
    "uint bits = code == 0 ? 0x400000u : (uint)code << 23;",
    "return as_type<float>(code == 0xff ? 0x7fc00000u : bits);",
]
_ENCODE_E8M0 = [
    "uint magnitude = as_type<uint>(value) & 0x7fffffffu;",
    "uint half_step = magnitude < 0x800000u ? 0x3fffffu : 0x400000u;",
    "uint rounded = (magnitude + half_step) >> 23;",
    "return (uchar)(magnitude >= 0x7f800000u ? 0xffu : rounded);",
]


def _decode_lines(kind: NarrowFloat) -> list[str]:
    shift = _MANTISSA - kind.mantissa
    step = _bits(2.0 ** (1 - kind.bias - kind.mantissa))
    lines = [
        f"uint magnitude = code & {kind.sign - 1:#x}u;",
        f"uint bits = (magnitude << {shift}) + {(_BIAS - kind.bias) << _MANTISSA:#x}u;",
        f"if (magnitude < {1 << kind.mantissa}u)",
        f"  bits = as_type<uint>((float)magnitude * as_type<float>({step:#x}u));",
    ]
    if kind.infinity is not None:
        lines += [
            f"if (magnitude >= {kind.infinity:#x}u)",
            f"  bits = (magnitude << {shift}) | 0x7f800000u;",
        ]
    elif kind.has_nan and not kind.is_signed_zero_nan:
        lines.append(f"if (magnitude == {kind.nan:#x}u) bits = 0x7fc00000u;")
    lines.append(f"bits |= (uint)(code & {kind.sign:#x}u) << {32 - kind.bits};")
    if kind.is_signed_zero_nan:
        lines.append(f"if (code == {kind.nan:#x}u) bits = 0x7fc00000u;")
    return [*lines, "return as_type<float>(bits);"]


_SIGN_OF_HALF = "bits = (bits & 0x7fffffffu) | ((uint)as_type<ushort>(value) & 0x8000u) << 16;"


def _encode_lines(kind: NarrowFloat, half: bool) -> list[str]:
    shift = _MANTISSA - kind.mantissa
    exponents = _BIAS - kind.bias
    smallest = (exponents + 1) << _MANTISSA
    rounder = _bits(2.0 ** (_MANTISSA + 1 - kind.bias - kind.mantissa))
    lines = [
        f"float rounder = as_type<float>({rounder:#x}u);",
        "uint bits = as_type<uint>((float)value);",
        *([_SIGN_OF_HALF] if half else []),
        "uint magnitude = bits & 0x7fffffffu;",
        f"uint odd = (magnitude >> {shift}) & 1u;",
        f"uint code = (magnitude + {(1 << (shift - 1)) - 1:#x}u + odd) >> {shift};",
        f"code -= {exponents << kind.mantissa:#x}u;",
        f"if (magnitude < {smallest:#x}u)",
        f"  code = as_type<uint>(as_type<float>(magnitude) + rounder) - {rounder:#x}u;",
        f"if (magnitude >= {overflow(kind):#x}u) code = {kind.beyond:#x}u;",
        f"uint sign = (bits >> {32 - kind.bits}) & {kind.sign:#x}u;",
    ]
    if kind.is_signed_zero_nan:
        lines.append("if (code == 0u) sign = 0u;")
    sign = "sign" if kind.has_nan else f"(sign ^ {kind.sign:#x}u)"
    nan = f"{kind.nan:#x}u" if kind.is_signed_zero_nan else f"({kind.nan:#x}u | {sign})"
    return [*lines, f"return (uchar)(magnitude > 0x7f800000u ? {nan} : (code | sign));"]


def _bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])
