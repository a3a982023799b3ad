"""ReduceBehindLoops: sums that a loop only adds up are exchanged between threads behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, indices_of, mapped, mutated
from tvmtile.analysis.effects import Effect, effects_of
from tvmtile.analysis.linearity import is_linear
from tvmtile.analysis.nests import Nest
from tvmtile.ir.kernels import (
    Launch,
    flattened,
    is_parallel,
    leaves_loop,
    with_kernels,
    with_launch_body,
    without,
)
from tvmtile.ir.operands import as_region, constant, dtype_of
from tvmtile.ir.operators import operator_for, operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, for_loop, nest, seq
from tvmtile.ir.threads import group_of_region
from tvmtile.layout.fragment import layout_of
from tvmtile.passes.gpu.sums_in_parts import (
    SumGroup,
    layout_of_parts,
    next_group,
    store_of,
    sum_of,
    sums_in,
)


@prim_func_pass("ReduceBehindLoops", requires=(Property.FRAGMENT_LAYOUTS,))
def ReduceBehindLoops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let each thread add up its part of sums in a loop, and put the parts together behind it.

    The threads that hold the elements of a row would exchange their sums in each iteration. Where the
    sums are only scaled and added up, `total[i] = total[i] * scale[i] + sum[i]`, the same may be done
    to the parts: the scale of a row is the same in all of its threads. In place of `sum` and `total`
    are fragments with an element for each of these threads. Behind the last sum the parts of `total`
    are reduced, and what follows reads `total`.

    That is done to sums of whole fragments into fragments if all that touches these, from the first to
    the last sum, is such a reduction or a store of an expression that is linear in them, one of the
    sums stands in a loop, and no `break` or `continue` between them leaves a loop around. Sums of
    floats are taken in another order, and scaled before they are added.
    """
    return with_kernels(func, _behind_loops)


def _behind_loops(kernel: tirx.For) -> tirx.For:
    tried: set[ir.Var] = set()
    while (group := next_group(kernel, tried)) is not None:
        rewriter = _GroupRewriter(group, kernel)
        launch = Launch(kernel)
        body = rewriter.rewrite(launch.body)
        if rewriter.found:
            allocated = [tirx.AllocBuffer(part) for part in group.parts.values()]
            kernel = with_launch_body(kernel, seq([*allocated, _without_unused(body, group)]))
    return kernel


class _GroupRewriter:
    """Puts the parts in place of the buffers of a group, from a first sum to a last one."""

    def __init__(self, group: SumGroup, kernel: tirx.For) -> None:
        self._group = group
        self._kernel = kernel
        self._before: list[tirx.Stmt] = []
        self._is_repeated = False
        self.found = False

    def rewrite(self, body: tirx.Stmt) -> tirx.Stmt:
        loops = (tirx.For, tirx.While)
        return mutated(body, (tirx.SeqStmt, self._sequence), (loops, self._loop))

    def _loop(self, loop: tirx.For | tirx.While, mutator: Mutator) -> tirx.Stmt:
        if is_parallel(loop):
            return loop
        is_launch = isinstance(loop, tirx.For) and loop.thread_binding is not None
        outer, self._is_repeated = self._is_repeated, not is_launch
        try:
            return mutator.default_mutate(loop)
        finally:
            self._is_repeated = outer

    def _sequence(self, node: tirx.SeqStmt, mutator: Mutator) -> tirx.Stmt:
        rest = list(flattened(node))
        known = len(self._before)
        result: list[tirx.Stmt] = []
        while rest:
            inside = self._run(rest)
            whole = self._apart(rest[: len(inside)], inside) if inside else None
            if whole is None:
                inside = [mutator.mutate(rest[0])]
            self.found = self.found or whole is not None
            result += whole or inside
            self._before += rest[: len(inside)]
            del rest[: len(inside)]
        del self._before[known:]
        return seq(result)

    def _run(self, statements: Sequence[tirx.Stmt]) -> list[tirx.Stmt]:
        """The first statements, with parts: the first one has a sum, and the last one touches parts.

        Nothing where there is no sum to be had from a loop.
        """
        found: list[tirx.Stmt] = []
        last, is_looped = 0, False
        if not self._sums_in(statements[0]):
            return []
        for number, stmt in enumerate(statements, 1):
            if leaves_loop(stmt):  # it would skip what puts the parts together
                break
            if self._group.mentioned_in(stmt):
                rewritten = self._with_parts(stmt)
                if self._group.mentioned_in(rewritten) or contains(
                    stmt, tirx.AttrStmt, lambda node: group_of_region(node) is not None
                ):
                    break
                last = number
                is_looped = is_looped or contains(stmt, tirx.For, self._adds_up)
                found.append(rewritten)
            else:
                found.append(stmt)
        return found[:last] if is_looped else []

    def _adds_up(self, loop: tirx.For) -> bool:
        return not is_parallel(loop) and bool(self._sums_in(loop))

    def _sums_in(self, stmt: tirx.Stmt) -> list[Any]:
        return [op for op in sums_in(stmt) if buffer_of(op.dst) in self._group.parts]

    def _apart(
        self, statements: Sequence[tirx.Stmt], inside: Sequence[tirx.Stmt]
    ) -> list[tirx.Stmt] | None:
        """Statements with parts, between what sets the parts and what puts them together."""
        begin: list[tirx.Stmt] = []
        end: list[tirx.Stmt] = []
        for buffer, part in self._group.parts.items():
            within = sum(len(_accesses(stmt, buffer)) for stmt in statements)
            before = sum(len(_accesses(stmt, buffer)) for stmt in self._before)
            behind = len(_accesses(self._kernel, buffer)) - within - before
            if before:
                begin.append(self._first(buffer, part))
            elif self._is_repeated and behind and not _is_set_by(statements, buffer):
                return None  # what it holds may be of the iteration before
            if behind or (before and self._is_repeated):
                end.append(self._together(buffer, part))
        return [*begin, *inside, *end]

    def _first(self, buffer: ir.Var, part: ir.Var) -> tirx.Stmt:
        """One of the parts is what the buffer holds, the others are nothing."""
        zero = tirx.const(0, dtype_of(buffer))

        def body(indices: list[ir.Var]) -> tirx.Stmt:
            own = tirx.BufferLoad(buffer, self._without_axis(indices))
            is_first = tirx.EQ(indices[self._group.dim], tirx.const(0, "int32"))
            return tirx.BufferStore(part, tirx.Select(is_first, own, zero), indices)

        return nest(part.ty.shape, body)

    def _together(self, buffer: ir.Var, part: ir.Var) -> tirx.Stmt:
        reduce = operator_for("reduction")
        op = reduce(as_region(part), as_region(buffer), "sum", self._group.dim, True)
        return tirx.Evaluate(op.to_call())

    # Statements with parts ----------------------------------------------------------------------

    def _with_parts(self, stmt: tirx.Stmt) -> tirx.Stmt:
        """A statement in which parts stand for buffers where that is the same."""

        def evaluate(node: tirx.Evaluate, _: Mutator) -> tirx.Stmt:
            op = operator_of(node)
            loops = op.as_loops() if op is not None and op.is_tile else None
            if sum_of(node) is not None:
                return self._sum(node)
            return node if loops is None or not is_parallel(loops) else self._nest(loops) or node

        def loop(node: tirx.For, mutator: Mutator) -> tirx.Stmt:
            if is_parallel(node):
                return self._nest(node) or node
            return mutator.default_mutate(node)

        return mutated(stmt, (tirx.Evaluate, evaluate), (tirx.For, loop))

    def _sum(self, node: tirx.Evaluate) -> tirx.Stmt:
        op = sum_of(node)
        part = self._group.parts.get(buffer_of(op.dst))
        layout = layout_of_parts(op)
        if part is None or layout != layout_of(part) or op.dim != self._group.dim:
            return node
        partial = operator_for("partial reduction")
        call = partial(op.src, as_region(part), op.kind, op.dim, op.clear)
        return tirx.Evaluate(call.to_call(node.span), node.span)

    def _nest(self, loop: tirx.For) -> tirx.Stmt | None:
        """A nest that stores to parts what it stores to a buffer, if that is linear."""
        store = store_of(loop)
        if store is None or buffer_of(store) not in self._group.parts:
            return None
        variables = Nest(loop).variables

        def is_element(load: ir.TensorLoad) -> bool | None:
            if buffer_of(load) not in self._group.parts:
                return False
            pairs = zip(indices_of(load), variables, strict=True)
            return all(index.same_as(variable) for index, variable in pairs) or None

        if not is_linear(store.value, is_element):
            return None
        number = ir.Var("part", "int32")
        indices = [*variables[: self._group.dim], number, *variables[self._group.dim :]]

        def load_part(load: ir.TensorLoad) -> ir.Expr:
            part = self._group.parts.get(buffer_of(load))
            return load if part is None else tirx.BufferLoad(part, indices)

        part = self._group.parts[buffer_of(store)]
        value = mapped(store.value, (ir.TensorLoad, load_part))
        body: tirx.Stmt = tirx.BufferStore(part, value, indices, store.span)
        for variable, extent in reversed(list(zip(indices, part.ty.shape, strict=True))):
            body = for_loop(variable, extent, body, tirx.ForKind.PARALLEL)
        return body

    def _without_axis(self, indices: list[ir.Var]) -> list[ir.Var]:
        return [*indices[: self._group.dim], *indices[self._group.dim + 1 :]]


def _accesses(stmt: tirx.Stmt, buffer: ir.Var) -> list[Effect]:
    return [access for access in effects_of(stmt) if access.root.same_as(buffer)]


def _is_set_by(statements: Iterable[tirx.Stmt], buffer: ir.Var) -> bool:
    """Tell whether the first of the statements that use a buffer certainly comes to set all of it."""
    stmt = next((stmt for stmt in statements if _accesses(stmt, buffer)), None)
    if stmt is None:
        return False
    if is_parallel(stmt) or isinstance(stmt, tirx.Evaluate):
        first = _accesses(stmt, buffer)[0]
        return not (first.reads or first.conditions)
    if not isinstance(stmt, tirx.For) or (constant(stmt.extent) or 0) < 1 or leaves_loop(stmt.body):
        return False
    return _is_set_by(flattened(stmt.body), buffer)


def _without_unused(body: tirx.Stmt, group: SumGroup) -> tirx.Stmt:
    """A statement without the allocations of buffers that are not used any more."""
    unused = {buffer for buffer in group.parts if not _accesses(body, buffer)}

    return without(
        body, lambda each: isinstance(each, tirx.AllocBuffer) and buffer_of(each) in unused
    )
