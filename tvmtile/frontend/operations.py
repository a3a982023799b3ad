"""What expressions, and stores of elements, mean in a kernel, wherever they stand in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import InvalidOperand, warn
from tvmtile.frontend.untraced import refuse_lost_assignment
from tvmtile.frontend.unusable import Unusable, raise_unusable
from tvmtile.frontend.values import as_condition, binary, described, is_number, store_element
from tvmtile.frontend.variables import Reference, is_scalar_variable


class _IndexBuilder:
    def __getitem__(self, index: object) -> Any:
        return index


class Expressions:
    """Operators, conditions and elements: the part of a tracer that keeps nothing."""

    index = _IndexBuilder()

    def store(self, target: Any, index: Any, value: Any) -> None:
        if isinstance(target, Unusable):
            raise_unusable(target)
        if is_scalar_variable(target):
            target = target.source  # `v[0] = e` is `v = e`
        if isinstance(target, Reference):
            target.store(value, index)
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
        """What stands before the brackets of `target[index]` where it is read."""
        from tvmtile.frontend.elements import Elements

        if is_scalar_variable(target):
            target = target.source
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
        return binary(op, left, right)

    def logical_and(self, left: object, right: Callable[[], object]) -> Any:
        left = as_condition(left, keep=True)
        if not isinstance(left, ir.Expr):
            return left and right()
        rhs = as_condition(right(), keep=True)
        if isinstance(rhs, ir.Expr):
            return tirx.all(left, rhs)
        return left if rhs else False

    def logical_or(self, left: object, right: Callable[[], object]) -> Any:
        left = as_condition(left, keep=True)
        if not isinstance(left, ir.Expr):
            return left or right()
        rhs = as_condition(right(), keep=True)
        if isinstance(rhs, ir.Expr):
            return tirx.any(left, rhs)
        return True if rhs else left

    def logical_not(self, operand: object) -> Any:
        operand = as_condition(operand)
        return tirx.Not(operand) if isinstance(operand, ir.Expr) else not operand

    def if_else(
        self, condition: object, then: Callable[[], Any], otherwise: Callable[[], Any]
    ) -> Any:
        test = as_condition(condition)
        if not isinstance(test, ir.Expr):
            return then() if test else otherwise()
        from tvmtile.frontend.math import if_then_else

        return if_then_else(test, then(), otherwise())
