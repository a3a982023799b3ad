"""Integers that TVM can't ask LLVM for, in LLVM's intermediate language.

Sums, differences and products of unsigned integers that wrap: TVM marks those of 32 and 64 bits `nuw`,
so LLVM, and TVM's simplifier, take for granted that they fit. A function that LLVM inlines keeps the
instruction plain. And a zero that LLVM does not know.
"""

from __future__ import annotations

from functools import cache

WRAPPING = ("uint32", "uint64")
"""The dtypes whose arithmetic TVM takes for free of overflow."""
_FUNCTION = """\
define i{bits} @{name}(i{bits} %a, i{bits} %b) alwaysinline {{
  %result = {operation} i{bits} %a, %b
  ret i{bits} %result
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
    """The name and the text of a function that does an operation modulo 2^32 or 2^64."""
    name = f"tvmtile_{operation}_{dtype}"
    bits = dtype.removeprefix("uint")
    return name, _FUNCTION.format(bits=bits, name=name, operation=operation)


@cache
def unknown_zero(dtype: str) -> tuple[str, str]:
    """A zero that LLVM can't fold: an assembler text without instructions, which may change it.

    The function takes nothing; its name and its text are returned.
    """
    name = f"tvmtile_zero_{dtype}"
    return name, _ZERO.format(name=name, bits=dtype.removeprefix("u").removeprefix("int"))
