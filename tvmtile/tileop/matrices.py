"""Operands that are matrices: the last two axes of a tile, whose others have extent 1."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile.errors import InvalidOperand
from tvmtile.tileop.operands import constant, describe, extents_of

__all__ = ["check_matrix", "element_of", "oriented"]


def check_matrix(operator: str, name: str, operand: Any) -> None:
    """Refuse an operand that is no matrix.

    Parameters
    ----------
    operator, name : str
        How the operator and the operand are called.
    operand : buffer, region or element
        What the user wrote.

    Raises
    ------
    InvalidOperand
        If it has no extents, or more than two that are not 1.
    """
    extents = extents_of(operand)
    if extents is None:
        raise InvalidOperand(
            f"{operator}: {name} is the element {describe(operand)}, which has no extents",
            help="give a whole buffer or a region, `A[i0:i1, j0:j1]`",
        )
    if len(extents) < 2 or any(constant(extent) != 1 for extent in extents[:-2]):
        raise InvalidOperand(
            f"{operator}: {name} is {describe(operand)}, which is not a matrix",
            help="the last two axes are the matrix; others must have extent 1: slice a region of them",
        )


def oriented(operand: Any, transposed: bool = False) -> tuple[Any, Any]:
    """The rows and columns of a matrix, or of its transpose."""
    rows, columns = (extents_of(operand) or [])[-2:]
    return (columns, rows) if transposed else (rows, columns)


def element_of(operand: ir.TensorRegion, transposed: bool, row: Any, column: Any) -> ir.TensorLoad:
    """The element of a matrix, or of its transpose, at a row and a column."""
    if transposed:
        row, column = column, row
    *outer, rows, columns = operand.region
    indices = [*(axis.min for axis in outer), rows.min + row, columns.min + column]
    return tirx.BufferLoad(operand.source, indices)
