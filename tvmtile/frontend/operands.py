"""What a kernel gives an operator as an operand."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import InvalidOperand
from tvmtile.frontend.tracer import current_tracer
from tvmtile.ir.operands import constant, region

__all__ = ["check_operand"]


def check_operand(operator: str, name: str, value: Any) -> Any:
    """Accept what can be an operand; a variable's value or a number is an error.

    Raises
    ------
    InvalidOperand
        If `value` is neither a buffer, a region nor an element.
    """
    if isinstance(value, ir.TensorRegion):
        return _with_known_extents(value)
    if isinstance(value, ir.TensorLoad) or is_buffer_var(value):
        return value
    if hasattr(value, "load"):
        return value.load()
    raise InvalidOperand(
        f"{operator}: {name} is {_kind(value)}, not a tile",
        help="a tile is a buffer, a region `A[i0:i1, j0:j1]`, or an element `A[i, j]` at its origin",
    )


def _with_known_extents(operand: ir.TensorRegion) -> ir.TensorRegion:
    """Make extents constants that are so only by the values of names: `A[start:stop]`."""
    tracer = current_tracer()
    if tracer is None or all(constant(r.extent) is not None for r in operand.region):
        return operand
    origin = [r.min for r in operand.region]
    extents = [tracer.analyzer.simplify(r.extent) for r in operand.region]
    known = [
        new if isinstance(new, tirx.IntImm) else r.extent
        for new, r in zip(extents, operand.region, strict=True)
    ]
    return region(operand.source, origin, known)


def _kind(value: Any) -> str:
    if isinstance(value, ir.Expr):
        return f"the expression `{value}`"
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
