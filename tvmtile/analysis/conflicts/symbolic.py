"""Expressions as numbers, one for each of many points, plus a term that is the same for all.

The numbers are those of the machine: casts and unsigned arithmetic wrap around, shifts lose bits.
Arithmetic on int32 and int64 is taken not to overflow, as TVM and C++ take it. Where targets differ
(C++ promotes 8 and 16 bits to int, others wrap) an expression is not separable. A term holds nothing
that wraps, so that what is known of ranges holds for it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from tvm import DataType, DataTypeCode, ir, tirx

from tvmtile.ir.calls import is_if_then_else, op_name
from tvmtile.ir.operands import literal
from tvmtile.ir.rewriting import contains
from tvmtile.ir.types import Binary


class NotSeparable(Exception):
    """An expression that is no sum of numbers and a uniform term."""


@dataclass(frozen=True)
class Value:
    """`numbers + term`."""

    numbers: Any
    """One number for all points, or one for each."""
    term: Any = None
    """The part that is the same at all points, and not known; None for 0."""

    @cached_property
    def least(self) -> int:
        """The smallest of the numbers."""
        return int(np.min(self.numbers))

    @cached_property
    def most(self) -> int:
        """The largest of the numbers."""
        return int(np.max(self.numbers))

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
_SHIFTS = (ir.prim.LShift, ir.prim.RShift)
_WITHOUT_ZERO = (ir.prim.BitwiseOr, ir.prim.BitwiseXor)
_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)
_TRANSPARENT = ("tirx.likely",)


def evaluate(
    expression: ir.Expr,
    points: Mapping[ir.Var, Any],
    is_uniform: Callable[[ir.Var], bool],
    lanes: int | np.ndarray,
) -> Value:
    """Evaluate an expression at many points.

    Of integers or booleans. `is_uniform` tells whether a variable that has no value in `points` has
    one, unknown, for all of them; `lanes` are the lanes of a vector that the points are.

    Raises
    ------
    NotSeparable
        If it reads memory, or mixes numbers and uniform variables other than by sums.
    """

    def visit(node: Any) -> Value:
        kind = type(node)
        if kind is tirx.IntImm:
            return Value(int(node.value))
        if kind is ir.Var:
            return _variable(node, points, is_uniform)
        if kind is tirx.Add or kind is tirx.Sub:
            sign = 1 if kind is tirx.Add else -1
            return _held(node, _sum(visit(node.a), visit(node.b), sign))
        if kind is tirx.Mul:
            return _held(node, _product(node, visit(node.a), visit(node.b)))
        if kind in _OPERATIONS:
            return _held(node, _operation(node, visit(node.a), visit(node.b)))
        if kind is tirx.Cast:
            return _cast(node, visit(node.value))
        if kind is tirx.Broadcast:
            return visit(node.value)
        if kind is tirx.Not:
            return Value(np.logical_not(_number(visit(node.a))))
        if kind is tirx.Ramp:
            return _sum(visit(node.base), Value(_number(visit(node.stride)) * lanes), 1)
        if kind is tirx.Select:
            return _choice(*map(visit, (node.condition, node.true_value, node.false_value)))
        if op_name(node) in _TRANSPARENT:
            return visit(node.args[0])
        if is_if_then_else(node):
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


def _operation(node: Binary, a: Value, b: Value) -> Value:
    if isinstance(node, _DIVISIONS) and b.term is None and not np.all(b.numbers):
        raise NotSeparable  # some divisor is 0
    if isinstance(node, _SHIFTS):
        _check_shift(node, b)
    if isinstance(node, _WITHOUT_ZERO) and literal(node.b) == 0:
        return a
    if a.term is None and b.term is None:
        numbers = _OPERATIONS[type(node)](a.numbers, b.numbers)
        if _shifts_64_bits(node) and np.any(numbers >> b.numbers != a.numbers):
            raise NotSeparable  # bits are lost, and numpy has no larger numbers to tell which
        return Value(numbers)
    return Value(0, type(node)(_uniform(a, node.a), _uniform(b, node.b)))


def _shifts_64_bits(node: ir.Expr) -> bool:
    return isinstance(node, ir.prim.LShift) and int(DataType(str(node.ty.dtype)).bits) == 64


def _check_shift(node: ir.Expr, count: Value) -> None:
    """Bits are shifted by less than there are, or nobody knows where to."""
    number = np.asarray(_number(count))
    integer = _integer(str(node.ty.dtype))
    if integer is None or np.any(number < 0) or np.any(number >= integer.bits):
        raise NotSeparable


# What a machine holds -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Integer:
    bits: int
    is_signed: bool

    @property
    def is_index(self) -> bool:
        return self.is_signed and self.bits >= 32

    @property
    def is_promoted(self) -> bool:
        """C++ makes an int of it before it computes."""
        return 1 < self.bits < 32

    def holds(self, other: _Integer) -> bool:
        """Tell whether all values of another dtype are values of this one."""
        if other.is_signed and not self.is_signed:
            return False
        return self.bits - self.is_signed >= other.bits - other.is_signed

    def contains(self, numbers: np.ndarray) -> bool:
        if not np.size(numbers):
            return True  # conditions have left out every point
        low, high = int(np.min(numbers)), int(np.max(numbers))
        least = -(1 << (self.bits - 1)) if self.is_signed else 0
        return least <= low and high < least + (1 << self.bits)

    def wrapped(self, numbers: Any) -> np.ndarray:
        """Numbers as the low bits of them are read."""
        if self.contains(numbers):
            return numbers
        if self.bits == 64:
            raise NotSeparable
        low = numbers & ((1 << self.bits) - 1)
        return (low ^ (1 << (self.bits - 1))) - (1 << (self.bits - 1)) if self.is_signed else low


@functools.cache
def _integer(dtype: str) -> _Integer | None:
    kind = DataType(dtype)
    if kind.type_code == DataTypeCode.BOOL:
        return _Integer(1, is_signed=False)
    signs = {DataTypeCode.INT: True, DataTypeCode.UINT: False}
    sign = signs.get(kind.type_code)
    return None if sign is None else _Integer(int(kind.bits), sign)


def may_wrap(expression: ir.Expr) -> bool:
    """Tell whether an expression may wrap around, which TVM's analyzer knows nothing of."""

    def wraps(node: Any) -> bool:
        if isinstance(node, ir.prim.LShift):
            return True
        integer = _integer(str(node.ty.dtype)) if ir.is_prim_expr(node) else None
        if isinstance(node, ir.Var):
            return integer is not None and not (integer.is_index or integer.bits == 1)
        source = _integer(str(node.value.ty.dtype))
        return (
            integer is None or source is None or not integer.is_index or not integer.holds(source)
        )

    return contains(expression, (tirx.Cast, ir.prim.LShift, ir.Var), wraps)


def _held(node: ir.Expr, value: Value) -> Value:
    """The value of an operation as the machine holds it."""
    integer = _integer(str(node.ty.dtype))
    if integer is None:
        raise NotSeparable
    is_exact = integer.is_index and not isinstance(node, ir.prim.LShift)
    if integer.bits == 1 or is_exact:
        return value
    if value.term is None and _shifts_64_bits(node) and integer.contains(value.numbers):
        return value
    if value.term is not None or integer.bits == 64:  # numpy has no larger ones to see what is lost
        raise NotSeparable
    if integer.is_promoted and not integer.contains(value.numbers):
        raise NotSeparable
    return Value(integer.wrapped(value.numbers))


def _cast(node: tirx.Cast, value: Value) -> Value:
    source, target = (_integer(str(each.ty.dtype)) for each in (node.value, node))
    if source is None or target is None:
        raise NotSeparable
    if target.bits == 1 and source.bits > 1:
        return Value(_number(value) != 0)
    if target.holds(source):
        return Value(value.numbers * 1, value.term)  # truth is a number
    return Value(target.wrapped(_number(value)))


def _choice(condition: Value, then: Value, otherwise: Value) -> Value:
    return Value(np.where(_number(condition), _number(then), _number(otherwise)))


def _number(value: Value) -> int | np.ndarray:
    if value.term is not None:
        raise NotSeparable
    return value.numbers


def _uniform(value: Value, node: ir.Expr) -> ir.Expr:
    """A value as an expression of the dtype of a node."""
    if isinstance(value.numbers, np.ndarray) and value.numbers.ndim:
        raise NotSeparable
    number, dtype = int(value.numbers), str(node.ty.dtype)
    if value.term is None:
        return tirx.const(number, dtype)
    term = value.term + number if number else value.term
    return term if str(term.ty.dtype) == dtype else tirx.Cast(dtype, term)
