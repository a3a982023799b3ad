"""Integers that TVM can't ask LLVM for, in LLVM's intermediate language.

Sums, differences and products of unsigned integers that wrap: TVM marks those of 32 and 64 bits `nuw`,
so LLVM, and TVM's simplifier, take for granted that they fit. A function that LLVM inlines keeps the
instruction plain. Divisors that processors can divide by: to TVM's simplifier a choice is one more case
of all that is computed from it. And a zero that LLVM does not know.
"""

from __future__ import annotations

from functools import cache

from tvm import DataType

from tvmtile.ir.operands import integer_range

_FUNCTION = """\
define {type} @{name}({type} %a, {type} %b) alwaysinline {{
  %result = {operation} {type} %a, %b
  ret {type} %result
}}
"""
_DIVISOR = """\
define {type} @{name}({type} %a, {type} %b) alwaysinline {{
  %is_zero = icmp eq {type} %b, {zero}
  %is_minus_one = icmp eq {type} %b, {minus_one}
  %is_least = icmp eq {type} %a, {least}
  %wraps = and {truth} %is_minus_one, %is_least
  %is_bad = or {truth} %is_zero, %wraps
  %result = select {truth} %is_bad, {type} {one}, {type} %b
  ret {type} %result
}}
"""
_ZERO = """\
define i{bits} @{name}() alwaysinline {{
  %result = call i{bits} asm "", "=r,0"(i{bits} 0)
  ret i{bits} %result
}}
"""


@cache
def wrapping_function(operation: str, dtype: str) -> tuple[str, str]:
    """The name and the text of a function that does an operation modulo 2^32 or 2^64, in each lane."""
    name = f"tvmtile_{operation}_{dtype}"
    return name, _FUNCTION.format(name=name, operation=operation, type=_in_llvm(dtype))


@cache
def divisor_function(dtype: str) -> tuple[str, str]:
    """The name and the text of a function of two signed integers, of which one divides the other.

    It gives the divisor, or 1 where there is no quotient: for 0, and for -1 and the least dividend.
    """
    lanes, bits = DataType(dtype).lanes, DataType(dtype).bits
    least, _ = integer_range(str(DataType(dtype).with_lanes(1)))
    numbers = {"zero": "0", "one": "1", "minus_one": "-1", "least": str(least)}
    name = f"tvmtile_divisor_{dtype}"
    types = {"type": _in_llvm(dtype), "truth": _in_llvm(f"int1x{lanes}")}
    if lanes > 1:
        numbers = {role: f"splat (i{bits} {number})" for role, number in numbers.items()}
    return name, _DIVISOR.format(name=name, **types, **numbers)


def _in_llvm(dtype: str) -> str:
    """The name of a type of integers, or of a vector of them."""
    scalar, lanes = f"i{DataType(dtype).bits}", DataType(dtype).lanes
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


@cache
def unknown_zero(dtype: str) -> tuple[str, str]:
    """A zero that LLVM can't fold: an assembler text without instructions, which may change it.

    The function takes nothing; its name and its text are returned.
    """
    name = f"tvmtile_zero_{dtype}"
    return name, _ZERO.format(name=name, bits=dtype.removeprefix("u").removeprefix("int"))
