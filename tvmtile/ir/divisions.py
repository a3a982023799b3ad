"""Divisions by a divisor that is known at run time only.

A GPU takes some twenty instructions for one, and TVM prints it as five comparisons and a selection,
so it is worth a name. Divisions by constants are shifts and multiplications.
"""

from __future__ import annotations

from typing import TypeGuard

import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import mapped
from tvmtile.ir.types import Binary, is_integer

DIVISIONS = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)
_TO_ZERO = {tirx.FloorDiv: tirx.Div, tirx.FloorMod: tirx.Mod}


def is_division(value: ir.Expr) -> TypeGuard[Binary]:
    """Tell whether a value is a division, or its remainder, whose divisor is no constant."""
    return isinstance(value, DIVISIONS) and not isinstance(value.b, tirx.IntImm | tirx.FloatImm)


def divides_integers(value: ir.Expr) -> TypeGuard[Binary]:
    """Tell whether a value is such a division of integers, signed or not: some have no value."""
    return is_division(value) and is_integer(value)


def rounded_to_zero(division: Binary) -> ir.Expr:
    """A division that rounds down as one that rounds to zero, which processors have.

    Of numbers that are not negative it is the same.
    """
    kind = _TO_ZERO.get(type(division))
    return division if kind is None else kind(division.a, division.b)


def named_divisions(values: list[ir.Expr], name: str) -> tuple[list[tirx.Bind], list[ir.Expr]]:
    """Name the integer divisions in some values, inner ones first; equal ones share a name.

    The values read no memory, and none of their divisions stands behind a condition. Returned are what
    binds the names, which begin with `name`, and the values with them. A value that is a division stays
    one.
    """
    analyzer = Analyzer()
    named: list[tirx.Bind] = []

    def replace(node: ir.Expr) -> ir.Expr:
        simple = analyzer.simplify(node)
        if not is_division(simple):
            return simple
        for bind in named:
            if tvm_ffi.structural_equal(bind.value, simple):
                return bind.var
        named.append(tirx.Bind(ir.Var(name, simple.ty), simple))
        return named[-1].var

    results = []
    for value in values:
        known = len(named)
        result = mapped(value, (DIVISIONS, replace))
        is_new = len(named) > known and result.same_as(named[-1].var)
        results.append(named.pop().value if is_new else result)
    return named, results
