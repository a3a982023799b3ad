"""InsertIndexChecks: indices outside of tiles, and divisors of 0, stop a kernel that asks for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm_ffi import structural_equal

from tvmtile._tvm import Mutator, Replacement, buffer_of, indices_of, mutated, nodes_in, ranges_of
from tvmtile.errors import SourceLocation
from tvmtile.ir.calls import is_if_then_else, op_name, takes_address
from tvmtile.ir.divisions import DIVISIONS, divides_integers
from tvmtile.ir.kernels import with_body
from tvmtile.ir.operands import constant, describe
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, has_effect, replace_loop, seq, substitute
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.scopes import is_global
from tvmtile.ir.spans import first_location, location_of
from tvmtile.ir.types import Binary

CHECK_INDICES = "tvmtile.check_indices"
"""Attribute of a function, and option of a compilation, that asks for the checks."""


@prim_func_pass("InsertIndexChecks", requires=(Property.REGIONS,))
def InsertIndexChecks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Check every index of a tile before its use, in a function with `tvmtile.check_indices`.

    Divisors of integers too. An index that is certainly inside needs no check. One that is used under a
    condition is looked at under the same condition. Vectors with a check become serial loops.
    """
    if func.attrs is None or not func.attrs.get(CHECK_INDICES, False):
        return func
    return with_body(func, _Checks().rewrite(func.body))


class _Checks(ScopedRewriter):
    """Puts the checks of each statement's own expressions before it."""

    def others(self) -> list[Replacement]:
        return [
            (tirx.SeqStmt, lambda node: seq([self.mutate(child) for child in node.seq])),
            (tirx.While, self.visit_while),
            (tirx.AssertStmt, lambda node: self._checked(node, node.condition)),
        ]

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        checks = self._checks(loop, loop.min, loop.extent)
        inside = self.descend_loop(loop)
        if inside.kind == tirx.ForKind.VECTORIZED and contains(inside.body, ir.Call, _is_report):
            inside = replace_loop(inside, kind=tirx.ForKind.SERIAL)
        return seq([*checks, inside])

    def visit_while(self, loop: tirx.While) -> tirx.Stmt:
        checks = self._checks(loop, loop.condition)
        if not checks:
            return self.descend(loop)
        leave = tirx.Evaluate(tirx.break_loop())
        ended = tirx.IfThenElse(tirx.Not(loop.condition), leave, None)
        return tirx.While(tirx.const(True, "bool"), seq([*checks, ended, self.mutate(loop.body)]))

    def visit_if(self, branch: tirx.IfThenElse) -> tirx.Stmt:
        return seq([*self._checks(branch, branch.condition), super().visit_if(branch)])

    def visit_bind(self, bind: tirx.Bind) -> tirx.Stmt:
        checks = self._checks(bind, bind.value)
        return seq([*checks, super().visit_bind(bind)])

    def visit_evaluate(self, node: tirx.Evaluate) -> tirx.Stmt:
        return self._checked(node, node.value)

    def visit_store(self, node: tirx.BufferStore) -> tirx.Stmt:
        return self._checked(node, node.value, tirx.BufferLoad(buffer_of(node), indices_of(node)))

    def _checked(self, node: tirx.Stmt, *expressions: Any) -> tirx.Stmt:
        return seq([*self._checks(node, *expressions), node])

    def _checks(self, node: tirx.Stmt, *expressions: Any) -> list[tirx.Stmt]:
        checks: list[tirx.Stmt] = []
        located = filter(None, map(location_of, (node, *expressions)))
        location = next(located, None) or first_location(node)
        for use in _uses_in(expressions, location):
            check = self._check(use)
            if check is not None and not any(structural_equal(check, other) for other in checks):
                checks.append(check)
        return checks

    def _check(self, use: _Access | _Division) -> tirx.Stmt | None:
        unproven = [
            mistake for mistake in use.mistakes() if not self.analyzer.can_prove(tirx.Not(mistake))
        ]
        if not unproven or any(map(has_effect, unproven)):
            return None
        report, *arguments = use.report()
        location = use.location
        place = ("", 0) if location is None else (location.file, location.line)
        call = tirx.call_packed(f"tvmtile.report_{report}", *place, *arguments)
        check = tirx.IfThenElse(tirx.any(*unproven), tirx.Evaluate(call), None)
        for guard in reversed(use.guards):
            check = tirx.IfThenElse(guard, check, None)
        return check


def _is_report(call: ir.Call) -> bool:
    return op_name(call) == "tirx.tvm_call_packed"


@dataclass(frozen=True)
class _Access:
    """A use of a tile: its first and last element, and under which conditions it comes to it."""

    buffer: ir.Var
    low: list[Any]
    high: list[ir.Expr]
    guards: tuple[ir.Expr, ...]
    location: SourceLocation | None

    def mistakes(self) -> list[ir.Expr]:
        """The conditions under which it lies outside."""
        return [
            mistake
            for low, high, size in zip(self.low, self.high, self.buffer.ty.shape, strict=True)
            for end in ((low,) if structural_equal(low, high) else (low, high))
            for mistake in (end < 0, end >= size)
        ]

    def report(self) -> tuple[Any, ...]:
        """The function to call in that case, and its arguments."""
        return "out_of_bounds", describe(self.buffer), *self.low, *self.high, *self.buffer.ty.shape


@dataclass(frozen=True)
class _Division:
    """A division of integers, and under which conditions it comes to it."""

    divisor: ir.Expr
    guards: tuple[ir.Expr, ...]
    location: SourceLocation | None

    def mistakes(self) -> list[ir.Expr]:
        """The case in which the division has no value."""
        return [tirx.EQ(self.divisor, tirx.const(0, str(self.divisor.ty.dtype)))]

    def report(self) -> tuple[Any, ...]:
        """The function to call in that case."""
        return ("division_by_zero",)


def _uses_in(
    expressions: Iterable[ir.Expr], location: SourceLocation | None
) -> list[_Access | _Division]:
    uses = _IndexUses(location)
    for expression in expressions:
        uses.visit(expression)
    return uses.found


class _IndexUses:
    """Collects the uses of tiles, and divisions, in expressions: those in an index before its own."""

    def __init__(self, location: SourceLocation | None) -> None:
        self.found: list[_Access | _Division] = []
        self._location = location
        self._guards: tuple[ir.Expr, ...] = ()

    def visit(self, expression: ir.Expr) -> None:
        mutated(
            expression,
            ((tirx.And, tirx.Or), self._short_circuit),
            (tirx.Select, self._select),
            (tirx.Let, self._let),
            (ir.Call, self._call),
            (ir.TensorLoad, self._load),
            (ir.TensorRegion, self._region),
            (DIVISIONS, self._division),
        )

    def _under(self, condition: ir.Expr, node: ir.Expr, mutator: Mutator) -> None:
        outer, self._guards = self._guards, (*self._guards, condition)
        mutator.mutate(node)
        self._guards = outer

    def _short_circuit(self, node: Binary, mutator: Mutator) -> Any:
        mutator.mutate(node.a)
        condition = node.a if isinstance(node, tirx.And) else tirx.Not(node.a)
        self._under(condition, node.b, mutator)
        return node

    def _select(self, node: tirx.Select, mutator: Mutator) -> ir.Expr:
        self._cases(node.condition, node.true_value, node.false_value, mutator)
        return node

    def _cases(
        self, condition: ir.Expr, true_value: ir.Expr, false_value: ir.Expr, mutator: Mutator
    ) -> None:
        mutator.mutate(condition)
        self._under(condition, true_value, mutator)
        self._under(tirx.Not(condition), false_value, mutator)

    def _let(self, node: tirx.Let, mutator: Mutator) -> ir.Expr:
        mutator.mutate(node.value)
        mutator.mutate(substitute(node.body, {node.var: node.value}))
        return node

    def _call(self, call: ir.Call, mutator: Mutator) -> ir.Expr:
        if is_if_then_else(call):
            condition, true_value, false_value = call.args
            self._cases(condition, true_value, false_value, mutator)
        elif takes_address(call):
            if isinstance(call.args[0], ir.TensorLoad):  # its address, which is not used yet
                for index in indices_of(call.args[0]):
                    mutator.mutate(index)
        else:
            mutator.default_mutate(call)
        return call

    def _load(self, load: ir.TensorLoad, mutator: Mutator) -> ir.Expr:
        mutator.default_mutate(load)
        indices = indices_of(load)
        self._note(buffer_of(load), indices, [_last(index) for index in indices], load)
        return load

    def _division(self, node: Binary, mutator: Mutator) -> ir.Expr:
        mutator.default_mutate(node)
        if divides_integers(node):
            located = filter(None, map(location_of, nodes_in(node, ir.TensorLoad)))
            location = location_of(node) or next(located, self._location)
            self.found.append(_Division(node.b, self._guards, location))
        return node

    def _region(self, region: ir.TensorRegion, mutator: Mutator) -> ir.Expr:
        mutator.default_mutate(region)
        outer = self._guards  # a region without elements lies nowhere
        self._guards += tuple(r.extent > 0 for r in ranges_of(region) if constant(r.extent) is None)
        high = [r.min + r.extent - 1 for r in ranges_of(region)]
        self._note(buffer_of(region), [r.min for r in ranges_of(region)], high, region)
        self._guards = outer
        return region

    def _note(
        self, buffer: ir.Var, low: Iterable[ir.Expr], high: list[ir.Expr], node: ir.Expr
    ) -> None:
        if not is_global(buffer):
            first = [index.base if isinstance(index, tirx.Ramp) else index for index in low]
            location = location_of(node) or self._location
            self.found.append(_Access(buffer, first, high, self._guards, location))


def _last(index: ir.Expr) -> ir.Expr:
    if isinstance(index, tirx.Ramp):
        return index.base + (index.lanes - 1) * index.stride
    return index
