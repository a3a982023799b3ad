"""Expressions as numbers, one for each of many points, plus a term that is the same for all."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, tirx

__all__ = ["NotSeparable", "Value", "evaluate"]


class NotSeparable(Exception):
    """An expression that is no sum of numbers and a uniform term."""


@dataclass(frozen=True)
class Value:
    """`numbers + term`.

    Attributes
    ----------
    numbers : int or ndarray
        One number for all points, or one for each.
    term : Expr or None
        What is the same at all points, and not known; None for 0.
    """

    numbers: Any
    term: Any = None

    def __add__(self, other: Value) -> Value:
        return _sum(self, other, 1)

    def scaled(self, factor: int) -> Value:
        """The value times a number."""
        if factor == 1:
            return self
        return Value(self.numbers * factor, None if self.term is None else self.term * factor)


_OPERATIONS: dict[type, Callable[[Any, Any], Any]] = {
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.EQ: operator.eq,
    tirx.NE: operator.ne,
    tirx.LT: operator.lt,
    tirx.LE: operator.le,
    tirx.GT: operator.gt,
    tirx.GE: operator.ge,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
    ir.prim.BitwiseAnd: operator.and_,
    ir.prim.BitwiseOr: operator.or_,
    ir.prim.BitwiseXor: operator.xor,
    ir.prim.LShift: operator.lshift,
    ir.prim.RShift: operator.rshift,
}
_TRANSPARENT = ("tirx.likely",)
_CONDITIONAL = "prim.if_then_else"


def evaluate(
    expression: Any, points: Mapping[ir.Var, Any], is_uniform: Callable[[ir.Var], bool], lanes: Any
) -> Value:
    """Evaluate an expression at many points.

    Parameters
    ----------
    expression : Expr
        Of integers or booleans.
    points : mapping of Var to ndarray
        The values of variables at the points.
    is_uniform : callable
        Tells whether another variable has one value, unknown, for all points.
    lanes : ndarray or int
        The lane of a vector that each point is.

    Returns
    -------
    Value

    Raises
    ------
    NotSeparable
        If it reads memory, or mixes numbers and uniform variables other than by sums.
    """

    def visit(node: Any) -> Value:
        if isinstance(node, tirx.IntImm):
            return Value(int(node.value))
        if isinstance(node, ir.Var):
            return _variable(node, points, is_uniform)
        if isinstance(node, tirx.Add | tirx.Sub):
            return _sum(visit(node.a), visit(node.b), 1 if isinstance(node, tirx.Add) else -1)
        if isinstance(node, tirx.Mul):
            return _product(node, visit(node.a), visit(node.b))
        if type(node) in _OPERATIONS:
            return _operation(node, visit(node.a), visit(node.b))
        if isinstance(node, tirx.Cast | tirx.Broadcast):
            return visit(node.value)
        if isinstance(node, tirx.Not):
            return Value(np.logical_not(_number(visit(node.a))))
        if isinstance(node, tirx.Ramp):
            return _sum(visit(node.base), Value(_number(visit(node.stride)) * lanes), 1)
        if isinstance(node, tirx.Select):
            return _choice(*map(visit, (node.condition, node.true_value, node.false_value)))
        if isinstance(node, ir.Call) and isinstance(node.op, ir.Op):
            if node.op.name in _TRANSPARENT:
                return visit(node.args[0])
            if node.op.name == _CONDITIONAL:
                return _choice(*map(visit, node.args))
        raise NotSeparable

    return visit(expression)


def _variable(
    var: ir.Var, points: Mapping[ir.Var, Any], is_uniform: Callable[[ir.Var], bool]
) -> Value:
    if var in points:
        return Value(points[var])
    if is_uniform(var):
        return Value(0, var)
    raise NotSeparable


def _sum(a: Value, b: Value, sign: int) -> Value:
    numbers = a.numbers + sign * b.numbers
    if b.term is None:
        return Value(numbers, a.term)
    added = b.term * sign
    return Value(numbers, added if a.term is None else a.term + added)


def _product(node: tirx.Mul, a: Value, b: Value) -> Value:
    if a.term is None and b.term is None:
        return Value(a.numbers * b.numbers)
    if a.term is not None and b.term is not None:
        return Value(0, tirx.Mul(_uniform(a, node.a), _uniform(b, node.b)))
    factor, other = (a, b) if a.term is None else (b, a)
    if isinstance(factor.numbers, np.ndarray):
        raise NotSeparable
    return Value(other.numbers * factor.numbers, other.term * int(factor.numbers))


def _operation(node: Any, a: Value, b: Value) -> Value:
    if a.term is None and b.term is None:
        return Value(_OPERATIONS[type(node)](a.numbers, b.numbers))
    return Value(0, type(node)(_uniform(a, node.a), _uniform(b, node.b)))


def _choice(condition: Value, then: Value, otherwise: Value) -> Value:
    return Value(np.where(_number(condition), _number(then), _number(otherwise)))


def _number(value: Value) -> Any:
    if value.term is not None:
        raise NotSeparable
    return value.numbers


def _uniform(value: Value, node: Any) -> Any:
    """A value as an expression of the dtype of a node."""
    if isinstance(value.numbers, np.ndarray) and value.numbers.ndim:
        raise NotSeparable
    number = int(value.numbers)
    if value.term is None:
        return tirx.const(number, str(node.ty.dtype))
    return value.term + number if number else value.term
