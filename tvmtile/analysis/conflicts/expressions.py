"""Helpers of the analysis of conflicts for indices, bounds and conditions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from tvm import DataType, ir, tirx

from tvmtile._tvm import mapped, nodes_in
from tvmtile.ir.operands import literal
from tvmtile.ir.rewriting import mentions
from tvmtile.ir.types import Binary


def lanes(index: Any) -> int:
    """The number of elements that an index names."""
    return int(index.lanes) if type(index) in (tirx.Ramp, tirx.Broadcast) else 1


def period(expressions: Iterable[ir.Expr], var: ir.Var) -> int:
    """The growth of a variable after which the remainders that expressions take of it repeat."""
    nodes = (n for each in expressions for n in nodes_in(each, (tirx.FloorMod, tirx.FloorDiv)))
    return math.lcm(1, *(literal(node.b) or 1 for node in nodes if mentions(node.a, var)))


def repetition(expressions: Iterable[ir.Expr], var: ir.Var) -> int | None:
    """The growth of a variable after which expressions repeat; None if they may not.

    They do where the variable stands in remainders of sums and products only.
    """
    divisors: list[int] = []

    def without_remainder(node: Binary) -> ir.Expr:
        divisor = literal(node.b)
        if not divisor or not mentions(node.a, var) or not _is_polynomial(node.a):
            return node
        divisors.append(divisor)
        return node.b

    rest = [mapped(each, (tirx.FloorMod, without_remainder)) for each in expressions]
    return None if mentions(rest, var) else math.lcm(1, *divisors)


def _is_polynomial(value: ir.Expr) -> bool:
    if isinstance(value, tirx.Add | tirx.Sub | tirx.Mul):
        return _is_polynomial(value.a) and _is_polynomial(value.b)
    return isinstance(value, ir.Var | tirx.IntImm)


def strides(buffer: ir.Var) -> list[ir.Expr]:
    """The distances in memory between neighbours along each axis, in elements."""
    if len(buffer.ty.strides):
        return list(buffer.ty.strides)
    found: list[ir.Expr] = [tirx.const(1, "int32")]
    for extent in reversed(list(buffer.ty.shape)[1:]):
        found.insert(0, found[0] * extent)
    return found[: len(buffer.ty.shape)]  # none where there are no axes


def bits(buffer: ir.Var) -> int:
    """The bits of an element in memory."""
    dtype = str(buffer.ty.dtype)
    return 8 if dtype == "bool" else int(DataType(dtype).bits)
