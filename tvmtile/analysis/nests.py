"""Nests of `T.Parallel` loops, and the elements that an iteration touches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvmtile._tvm import Mutator, is_buffer_var, mutated, walk
from tvmtile.ir.kernels import is_parallel
from tvmtile.ir.operands import constant, origin_of
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import substitute

__all__ = ["Nest", "NestAccess", "nests_in"]


@dataclass(frozen=True)
class NestAccess:
    """An element that a nest reads or writes.

    Attributes
    ----------
    buffer : Var
        The buffer.
    indices : tuple of Expr
        In terms of the loop variables; names that the nest binds are replaced by their values.
    writes : bool
        Whether it is written.
    """

    buffer: ir.Var
    indices: tuple[Any, ...]
    writes: bool


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
    def accesses(self) -> list[NestAccess]:
        """The elements that an iteration touches, in program order, once each."""
        return _accesses_in(self.body)


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


def _accesses_in(body: tirx.Stmt) -> list[NestAccess]:
    found: list[NestAccess] = []
    names: dict[ir.Var, Any] = {}

    def note(buffer: ir.Var, indices: Any, writes: bool) -> None:
        access = NestAccess(buffer, tuple(substitute(i, names) for i in indices), writes)
        if not any(_same_access(access, other) for other in found):
            found.append(access)

    def bind(node: tirx.Bind) -> None:
        names[node.var] = substitute(node.value, names)

    def call(node: ir.Call) -> None:
        op = operator_of(node)
        if op is None:
            return
        for operand in op.writes():
            if is_buffer_var(getattr(operand, "source", operand)):
                note(getattr(operand, "source", operand), origin_of(operand), True)

    walk(
        body,
        (tirx.Bind, bind),
        (tirx.BufferStore, lambda node: note(node.buffer, node.indices, True)),
        (ir.TensorLoad, lambda node: note(node.source, node.indices, False)),
        (ir.Call, call),
        order="pre",
    )
    return found


def _same_access(a: NestAccess, b: NestAccess) -> bool:
    if not a.buffer.same_as(b.buffer) or a.writes != b.writes:
        return False
    return all(tvm_ffi.structural_equal(x, y) for x, y in zip(a.indices, b.indices, strict=True))
