"""Calls of a Relax function that a tile kernel takes the place of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import tirx

import tvmtile.language as T
from tvmtile.ir.types import Index

DTYPES = ("float16", "bfloat16", "float32")
"""Of the tensors that kernels are put in for."""


class Left(Exception):
    """The reason why operators stay as they are."""


@dataclass(frozen=True)
class Found:
    """Operators that one tile program computes."""

    name: str
    """The operators."""
    inside: list[Any]
    """All of them; the last one's result is that of the program."""
    arguments: list[tuple[Any, tuple[Any, ...]]]
    """The program's arguments, in the shapes that it takes."""
    shape: tuple[Any, ...]
    """Of its result."""
    make: Callable[[Any], tirx.PrimFunc]
    """`make(target)` is the program."""


class Extents:
    """Names extents for a program: equal ones, which only a call knows, are one variable."""

    def __init__(self) -> None:
        self._named: list[tuple[Any, Any]] = []

    def __call__(self, name: str, extent: Index) -> Index:
        """An int as it is, and a variable for anything else."""
        if isinstance(extent, int):
            return extent
        for known, variable in self._named:
            if known.same_as(extent):
                return variable
        variable = T.dynamic(name)
        self._named.append((extent, variable))
        return variable


def fixed(name: str, extent: Index) -> int:
    """An extent that a program needs to know.

    Raises
    ------
    Left
        If only a call knows it.
    """
    if not isinstance(extent, int):
        raise Left(f"{name} is {extent}, which only a call knows")
    return extent


def common_dtype(*exprs: Any) -> str:
    """The dtype of tensors.

    Raises
    ------
    Left
        If they differ, or no kernel is put in for it.
    """
    dtypes = {str(expr.ty.dtype) for expr in exprs}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        raise Left(
            f"its tensors are of {', '.join(sorted(dtypes))}; kernels take {', '.join(DTYPES)}"
        )
    return dtypes.pop()
