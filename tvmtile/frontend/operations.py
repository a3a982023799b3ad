"""The meaning of expressions, and of stores of elements, wherever they stand in a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import ir, tirx

from tvmtile._tvm import buffer_of, indices_of, is_buffer_var, traced
from tvmtile.errors import InvalidOperand, SyntaxNotSupported, warn
from tvmtile.frontend.expressions import Reference
from tvmtile.frontend.mistakes import refuse_lost_assignment
from tvmtile.frontend.proxy import Elements, Unusable, is_scalar_variable, raise_unusable
from tvmtile.frontend.values import (
    as_condition,
    binary,
    described,
    if_then_else,
    is_number,
    store_element,
)
from tvmtile.ir.operands import describe


def _is_tile(value: object) -> bool:
    if isinstance(value, ir.TensorRegion):
        return True
    return is_buffer_var(value) and not is_scalar_variable(value)


def _is_run_time(value: object) -> bool:
    return is_number(value) and not isinstance(value, bool | int | float | tirx.IntImm)


class Expressions:
    """Operators, conditions and elements: the part of a tracer that keeps nothing."""

    index = np.s_

    def store(self, target: Any, index: Any, value: Any) -> None:
        if isinstance(target, Unusable):
            raise_unusable(target)
        if is_scalar_variable(target):
            target = buffer_of(target)  # `v[0] = e` is `v = e`
        if isinstance(target, Reference):
            store_element(buffer_of(target[index]), tuple(indices_of(target)), value)
        elif is_buffer_var(target):
            store_element(target, index, value)
        elif isinstance(target, ir.Expr):
            raise InvalidOperand(
                f"{described(target)} can't be stored into",
                help="store into an element of a buffer, `buffer[i, j] = value`",
            )
        else:
            target[index] = value

    def augment_item(self, op: str, target: object, index: object, value: object) -> None:
        self.store(target, index, self.binary(op, self.elements(target)[index], value))

    def elements(self, target: Any) -> Any:
        """The view before the brackets of `target[index]` where it is read."""
        if is_scalar_variable(target):
            target = buffer_of(target)
        return Elements(target) if is_buffer_var(target) else target

    def gives(self, function: object, given: Mapping[int | str, object]) -> None:
        """A function is called on a line of its own, with arguments that are names."""
        refuse_lost_assignment(function, given)
        if function is print and any(
            is_number(v) and not isinstance(v, bool | int | float) for v in given.values()
        ):
            warn("print shows an expression while the kernel is traced; T.print(x) shows its value")

    def binary(self, op: str, left: object, right: object) -> Any:
        """An operator between two values."""
        return traced(binary(op, left, right))

    def logical_and(self, left: object, right: Callable[[], object]) -> Any:
        left = as_condition(left, keep=True)
        if not isinstance(left, ir.Expr):
            return left and right()
        rhs = as_condition(right(), keep=True)
        if isinstance(rhs, ir.Expr):
            return traced(tirx.all(left, rhs))
        return left if rhs else False

    def logical_or(self, left: object, right: Callable[[], object]) -> Any:
        left = as_condition(left, keep=True)
        if not isinstance(left, ir.Expr):
            return left or right()
        rhs = as_condition(right(), keep=True)
        if isinstance(rhs, ir.Expr):
            return traced(tirx.any(left, rhs))
        return True if rhs else left

    def logical_not(self, operand: object) -> Any:
        operand = as_condition(operand)
        return traced(tirx.Not(operand)) if isinstance(operand, ir.Expr) else not operand

    def compare(self, op: str, left: Any, right: Any) -> Any:
        """`a == b`, `a != b`, `a in b` or `a not in b`, of sequences by their elements."""
        if op == "in":
            return self._contains(right, left)
        if op == "not_in":
            return self.logical_not(self._contains(right, left))
        if _is_tile(left) != _is_tile(right) or isinstance(left, ir.TensorRegion):
            tiles = ", ".join(describe(each) for each in (left, right) if _is_tile(each))
            raise InvalidOperand(
                f"`{'==' if op == 'eq' else '!='}` works on elements, not on whole tiles: {tiles}",
                help="index the tile, `tile[i, j]`, in a loop over T.Parallel",
            )
        if isinstance(left, list | tuple) and type(left) is type(right):
            pairs = zip(left, right, strict=False)
            same = self.quantified(all, (self.compare("eq", *pair) for pair in pairs))
            if len(left) != len(right):
                same = False
            return same if op == "eq" else self.logical_not(same)
        return left == right if op == "eq" else left != right

    def _contains(self, container: Any, value: Any) -> Any:
        if isinstance(container, range) and is_number(value) and not isinstance(value, int):
            if not container:
                return False
            first, last = sorted((container[0], container[-1]))
            steps = (value - first) % abs(container.step) == 0
            return self.quantified(all, (value >= first, value <= last, steps))
        if isinstance(container, list | tuple | set | frozenset | dict):
            alike = (each for each in container if is_number(each) == is_number(value))
            return self.quantified(any, (self.compare("eq", each, value) for each in alike))
        return value in container

    def quantified(self, function: Any, items: Any) -> Any:
        """`any(items)` or `all(items)`, if the function is Python's."""
        if function not in (any, all):
            return function(items)
        result: Any = function is all
        for item in items:
            if isinstance(result, bool) and result != (function is all):
                break
            test = as_condition(item)
            combine = self.logical_and if function is all else self.logical_or
            result = combine(result, lambda test=test: test)  # type: ignore[misc]
        return result

    def positive(self, operand: Any) -> Any:
        return operand if _is_run_time(operand) else +operand

    def identical(self, left: object, right: object) -> bool:
        """`a is True`, of what may be a value of the running kernel."""
        for value, other in ((left, right), (right, left)):
            if isinstance(other, bool | int) and _is_run_time(value):
                raise SyntaxNotSupported(
                    f"`is` asks whether {described(value)} is the Python object {other}, which it "
                    "never is",
                    help="compare values with `==`, or leave the comparison with True out",
                )
        return left is right

    def matched(self, subject: Any) -> Any:
        """The subject of `match`, which chooses while the kernel is traced."""
        parts = subject if isinstance(subject, list | tuple) else (subject,)
        for part in filter(_is_run_time, parts):
            raise SyntaxNotSupported(
                f"`match` chooses while the kernel is traced, and only the running kernel has "
                f"{described(part)}",
                help="write `if x == 1: ... elif x == 2: ...`",
            )
        return subject

    def if_else(
        self, condition: object, then: Callable[[], Any], otherwise: Callable[[], Any]
    ) -> Any:
        test = as_condition(condition)
        if not isinstance(test, ir.Expr):
            return then() if test else otherwise()
        return traced(if_then_else(test, then(), otherwise()))
