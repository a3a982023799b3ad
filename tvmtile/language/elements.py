"""Checks of single elements, `buffer[i, j]`, when a kernel is written."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm.tirx.script import builder as T

from tvmtile.errors import InvalidOperand, OutOfBounds

__all__ = ["check_element", "lowered_index"]


def lowered_index(buffer: ir.Var, index: Any) -> list[Any]:
    """The index expressions of `buffer[index]`; a slice of the last axis becomes a vector."""
    items = list(index) if isinstance(index, tuple | list | ir.Array) else [index]
    if len(items) != len(buffer.ty.shape):
        raise InvalidOperand(
            f"{buffer.name} has {len(buffer.ty.shape)} dimensions and is indexed with {len(items)}",
            help=f"its shape is {tuple(buffer.ty.shape)}; give one index for each dimension",
        )
    return [_index(item) for item in items]


def _index(item: Any) -> Any:
    if isinstance(item, slice):
        lanes = Analyzer().simplify(item.stop - item.start)
        return item.start if int(lanes) == 1 else T.ramp(item.start, 1, int(lanes))
    if hasattr(item, "asobject"):
        return item.asobject()
    if isinstance(item, float):
        raise InvalidOperand(
            f"the index {item} is a float", help="use //; in Python, `/` makes a float"
        )
    return item


def check_element(buffer: ir.Var, indices: list[Any]) -> None:
    """Refuse a constant index that certainly lies outside the buffer."""
    for axis, (index, extent) in enumerate(zip(indices, buffer.ty.shape, strict=True)):
        value = int(index) if isinstance(index, int | tirx.IntImm) else None
        limit = int(extent) if isinstance(extent, int | tirx.IntImm) else None
        if value is not None and (value < 0 or (limit is not None and value >= limit)):
            raise OutOfBounds(
                f"{buffer.name} has {extent} elements along axis {axis}; index {value} is outside",
                help="indices run from 0; negative ones do not count from the end in a kernel",
            )
