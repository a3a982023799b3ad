"""Nests of `T.Parallel` loops, and the elements that an iteration touches."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvmtile._tvm import Mutator, mutated
from tvmtile.analysis.effects import Effect, effects_of
from tvmtile.analysis.kernel_info import let_values
from tvmtile.ir.kernels import is_parallel
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import substitute


class Nest:
    """A nest of `T.Parallel` loops, taken apart.

    Attributes
    ----------
    loops : list of For
        The loops, outermost first.
    body : Stmt
        What an iteration does.
    """

    def __init__(self, loop: tirx.For) -> None:
        self.loops: list[tirx.For] = []
        node: Any = loop
        while is_parallel(node):
            self.loops.append(node)
            node = node.body
        self.body: tirx.Stmt = node

    @property
    def variables(self) -> list[ir.Var]:
        """The loop variables, outermost first."""
        return [loop.loop_var for loop in self.loops]

    @cached_property
    def extents(self) -> list[int | None]:
        """The extents of the loops; None for one that is known at run time only."""
        return [constant(loop.extent) for loop in self.loops]

    @cached_property
    def accesses(self) -> list[Effect]:
        """The elements that an iteration touches, once each, those that it writes first.

        Names that it binds are replaced by their values.
        """
        names = let_values(self.body)
        found: dict[Any, Effect] = {}
        for access in sorted(elements_in(self.body, names), key=lambda access: not access.writes):
            place = tvm_ffi.StructuralKey(access.indices)
            found.setdefault((access.buffer, access.writes, place), access)
        return list(found.values())


def nests_in(statement: tirx.Stmt) -> list[Nest]:
    """The nests of a statement, in program order."""
    found: list[Nest] = []

    def visit(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        if is_parallel(loop):
            found.append(Nest(loop))
            return loop
        return mutator.default_mutate(loop)

    mutated(statement, (tirx.For, visit))
    return found


def elements_in(stmt: tirx.Stmt, names: dict[ir.Var, ir.Expr]) -> list[Effect]:
    """The effects on single elements in a statement, in its order, with names replaced by values."""

    def known(expressions: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        return tuple(substitute(each, names) for each in expressions)

    return [
        replace(
            each,
            indices=known(each.indices),
            value=None if each.value is None else substitute(each.value, names),
            conditions=known(each.conditions),
        )
        for each in effects_of(stmt)
        if each.indices
    ]
