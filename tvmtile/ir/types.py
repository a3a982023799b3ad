"""Kinds of TVM's nodes: names for annotations, and tests of integers."""

from __future__ import annotations

from typing import Literal, TypeAlias

from tvm import ir, tirx

Binary: TypeAlias = (
    tirx.Add | tirx.Sub | tirx.Mul | tirx.Div | tirx.Mod | tirx.FloorDiv | tirx.FloorMod
    | tirx.Min | tirx.Max | tirx.EQ | tirx.NE | tirx.LT | tirx.LE | tirx.GT | tirx.GE
    | tirx.And | tirx.Or
)  # fmt: skip
"""An operation of two operands, `a` and `b`."""

ORDERS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)
"""The comparisons that say which of two operands is larger."""

COMPARISONS = (tirx.EQ, tirx.NE, *ORDERS)
"""The operations whose result is a truth value of two operands of any dtype."""

Index: TypeAlias = ir.Expr | int
"""An index or an extent."""

Value: TypeAlias = ir.Expr | float
"""A value of a kernel: an expression, or a number of Python's (`float` takes in `int`)."""

TileOperand: TypeAlias = ir.Var | ir.TensorRegion | ir.TensorLoad
"""An operand as it is written: a buffer, a region, or the element where a tile begins."""

Precision: TypeAlias = Literal["tf32", "ieee"]
"""How products of float32 are computed: of factors with 11 bits, or of all their bits."""


def is_integer(value: ir.Expr) -> bool:
    """Tell whether a value is an integer, signed or not, or a vector of them."""
    return ir.is_prim_expr(value) and str(value.ty.dtype).startswith(("int", "uint"))


def is_signed_integer(value: ir.Expr) -> bool:
    """Tell whether a value is an integer with a sign, or a vector of them."""
    return ir.is_prim_expr(value) and str(value.ty.dtype).startswith("int")
