"""Sums, differences and products of unsigned integers that wrap, in LLVM's intermediate language.

TVM marks those of 32 and 64 bits `nuw`: LLVM, and TVM's simplifier, take for granted that they fit. A
function that LLVM inlines keeps the instruction plain.
"""

from __future__ import annotations

from functools import cache

__all__ = ["WRAPPING", "wrapping_function"]

WRAPPING = ("uint32", "uint64")
"""The dtypes whose arithmetic TVM takes for free of overflow."""
_FUNCTION = """\
define i{bits} @{name}(i{bits} %a, i{bits} %b) alwaysinline {{
  %result = {operation} i{bits} %a, %b
  ret i{bits} %result
}}
"""


@cache
def wrapping_function(operation: str, dtype: str) -> tuple[str, str]:
    """An operation modulo 2^32 or 2^64 as a function.

    Parameters
    ----------
    operation : {"add", "sub", "mul"}
        What it computes.
    dtype : {"uint32", "uint64"}
        Of operands and result.

    Returns
    -------
    (str, str)
        Its name and its text.
    """
    name = f"tvmtile_{operation}_{dtype}"
    bits = dtype.removeprefix("uint")
    return name, _FUNCTION.format(bits=bits, name=name, operation=operation)
