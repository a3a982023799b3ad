"""The iterations of a `T.parallel` nest that one thread does."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import Mutator, buffer_of, indices_of, mutated, nodes_in
from tvmtile.analysis.nests import Nest
from tvmtile.errors import VerifyError
from tvmtile.ir.kernels import flattened
from tvmtile.ir.operands import bits_of, constant
from tvmtile.ir.rewriting import (
    contains,
    for_loop,
    has_effect,
    mentions,
    reads_no_memory,
    retyped,
    seq,
    substitute,
    with_fresh_variables,
)
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.scopes import is_fragment, is_in_registers, is_private
from tvmtile.layout.fragment import Digit, layout_of, spread, widest_vector
from tvmtile.layout.loops import LoopAxis, LoopLayout, is_free, loop_layout
from tvmtile.passes.gpu.issue_async_copies import as_async_copies
from tvmtile.passes.gpu.vectorize_accesses import vectorized, without_invariant
from tvmtile.passes.unrolling import most_iterations


class ThreadIterations:
    """The iterations of a nest that one thread does."""

    def __init__(
        self, nest: Nest, thread: ir.Expr, threads: int, analyzer: Analyzer, token: str | None
    ) -> None:
        self._nest = nest
        self._thread = thread
        self._threads = threads
        self._analyzer = analyzer
        self._token = token
        self._has_fragments = any(is_fragment(a.buffer) for a in nest.accesses)
        self._is_free = is_free(nest, layout_of)

    def statement(self) -> tirx.Stmt:
        if None in self._nest.extents and self._is_free:
            return self._flat()
        return self._by_digits(self._layout())

    def _layout(self) -> LoopLayout:
        nest = self._nest
        if not self._is_free:
            found = loop_layout(nest, layout_of)
            if found is None:
                raise VerifyError(
                    f"no thread reaches all fragments of the loop\n{nest.loops[0]}",
                    help="this is a defect of tvmtile: please report it with the kernel",
                )
            return found
        extents = tuple(extent or 1 for extent in nest.extents)
        layout = spread(extents, self._threads, self._vector())
        axes = {v: LoopAxis(d) for v, d in zip(nest.variables, layout.axes, strict=True)}
        return LoopLayout(layout.threads, axes)

    def _vector(self) -> int:
        """Elements that a thread moves at once: 16 bytes of the widest that are in memory.

        What is the same along the innermost loop, such as the index of a row, is not moved.
        """
        innermost = self._nest.variables[-1]
        memory = [a for a in self._nest.accesses if not is_in_registers(a.buffer)]
        moved = [a for a in memory if any(mentions(index, innermost) for index in a.indices)]
        memory = moved or memory
        bits = [bits_of(access.buffer) for access in memory]
        return widest_vector(max([8, *bits]))

    # Loops ---------------------------------------------------------------------------------------

    def _by_digits(self, layout: LoopLayout) -> tirx.Stmt:
        loops: list[tuple[ir.Var, Digit]] = []
        values: dict[ir.Var, ir.Expr] = {}
        conditions: list[ir.Expr] = []
        for loop in self._nest.loops:
            variable, axis = loop.loop_var, layout.axes[loop.loop_var]
            value: ir.Expr = tirx.const(0, "int32")
            weight = axis.size
            for digit in axis.digits:
                weight //= digit.extent
                if digit.is_thread:
                    number = self._thread_digit(digit)
                else:
                    number = tirx.Var(variable.name, "int32")
                    _bind(self._analyzer, number, digit.extent)
                    loops.append((number, digit))
                value = value + number * weight
            values[variable] = self._typed(value - axis.base, variable)
            conditions += self._guards(loop, axis, values[variable])
        body = substitute(self._nest.body, values)
        repeated = layout.replicas
        if not repeated:
            return self._looped(loops, conditions, body)
        owner = tirx.all(*(self._thread_digit(digit) == 0 for digit in repeated))
        arrays, apart = _with_own_arrays(_steps(body), loops)
        steps = [
            self._looped(loops, [*conditions, owner], step)
            if _is_for_others(step)
            else self._looped(loops, conditions, _done_by(owner, step))
            for step in apart
        ]
        return seq([*arrays, steps[0], *map(with_fresh_variables, steps[1:])])

    def _thread_digit(self, digit: Digit) -> ir.Expr:
        return digit.value_in(self._thread, self._threads)

    def _typed(self, value: ir.Expr, variable: ir.Var) -> ir.Expr:
        dtype = str(variable.ty.dtype)
        simple = self._analyzer.simplify(value)
        return simple if str(simple.ty.dtype) == dtype else tirx.Cast(dtype, simple)

    def _guards(self, loop: tirx.For, axis: LoopAxis, value: ir.Expr) -> list[ir.Expr]:
        """The conditions for a value of the digits to be an iteration of the loop."""
        displaced = not (isinstance(axis.base, int) and axis.base == 0)
        if not displaced and isinstance(loop.extent, tirx.IntImm) and axis.size == int(loop.extent):
            return []
        lowest = axis.digits[-1].extent if axis.digits and not axis.digits[-1].is_thread else 1
        if not displaced and constant(tirx.floormod(loop.extent, lowest)) == 0:
            # Neighbours are all inside or all outside.
            value = self._analyzer.simplify(tirx.floordiv(value, lowest) * lowest)
        return [value < loop.extent, *([value >= 0] if displaced else [])]

    def _looped(
        self, loops: list[tuple[ir.Var, Digit]], conditions: list[ir.Expr], body: tirx.Stmt
    ) -> tirx.Stmt:
        lanes = loops[-1] if loops and not _mentioned(conditions, loops[-1][0]) else None
        if lanes is not None:
            loops = loops[:-1]
            body = self._moved(lanes[0], lanes[1].extent, body)
        elif self._token is not None:
            body = self._moved(tirx.Var("lane", "int32"), 1, body)
        body = _guarded(self._analyzer, conditions, body)
        count = math.prod(digit.extent for _, digit in loops)
        unrolled = self._has_fragments or count <= most_iterations(body)
        kind = tirx.ForKind.UNROLLED if unrolled else tirx.ForKind.SERIAL
        for variable, digit in reversed(loops):
            body = _repeated(variable, digit.extent, body, kind, self._analyzer)
        return body

    def _moved(self, variable: ir.Var, extent: int, body: tirx.Stmt) -> tirx.Stmt:
        """The contiguous elements that a thread moves, asynchronously where asked for and possible."""
        if self._token is not None:
            copies = as_async_copies(variable, extent, body, self._analyzer, self._token)
            if copies is not None:
                return copies
        return body if extent == 1 else vectorized(variable, extent, body, self._analyzer)

    def _flat(self) -> tirx.Stmt:
        """Extents that are known at run time only: every thread takes each n-th iteration."""
        total: Any = 1
        for loop in self._nest.loops:
            total = total * loop.extent
        step = tirx.Var("step", str(self._nest.variables[0].ty.dtype))
        flat = step * self._threads + self._thread
        values: dict[ir.Var, ir.Expr] = {}
        rest = flat
        for loop in reversed(self._nest.loops):
            is_outermost = loop is self._nest.loops[0]
            values[loop.loop_var] = rest if is_outermost else tirx.floormod(rest, loop.extent)
            rest = tirx.floordiv(rest, loop.extent)
        body = tirx.IfThenElse(flat < total, substitute(self._nest.body, values), None)
        return for_loop(step, tirx.ceildiv(total, self._threads), body)


def _mentioned(conditions: list[ir.Expr], variable: ir.Var) -> bool:
    return any(mentions(condition, variable) for condition in conditions)


def _bind(analyzer: Analyzer, variable: ir.Var, extent: int) -> None:
    analyzer.bind(variable, ir.Range(0, extent), allow_override=True)


def _guarded(analyzer: Analyzer, conditions: list[ir.Expr], body: tirx.Stmt) -> tirx.Stmt:
    needed = [c for c in conditions if not analyzer.can_prove(c)]
    if not needed:
        return body
    return tirx.IfThenElse(analyzer.simplify(tirx.all(*needed)), body, None)


def _repeated(
    variable: ir.Var, extent: int, body: tirx.Stmt, kind: tirx.ForKind, analyzer: Analyzer
) -> tirx.Stmt:
    """A loop, with the loop-invariant conditions around its body hoisted out of it."""
    condition, body = without_invariant(variable, extent, body, analyzer)
    loop = for_loop(variable, extent, body, kind)
    return loop if condition is None else tirx.IfThenElse(condition, loop, None)


def _steps(body: tirx.Stmt) -> list[tirx.Stmt]:
    """The steps of threads that repeat an iteration, one after the other, with a barrier between.

    One of them stores what others would see. Where all of them read it in the same iteration, all
    iterations do one step before the next.
    """
    if isinstance(body, tirx.IfThenElse) and body.else_case is None:
        steps = _steps(body.then_case)
        if len(steps) > 1 and reads_no_memory(body.condition):
            return [tirx.IfThenElse(body.condition, step, None, body.span) for step in steps]
        return [body]
    statements = list(flattened(body))
    if any(isinstance(s, tirx.Bind | tirx.AllocBuffer | tirx.DeclBuffer) for s in statements):
        return [body]
    done_once = filter(_is_for_others, statements)
    written = {buffer_of(store) for each in done_once for store in nodes_in(each, tirx.BufferStore)}
    kept = [each for each in statements if not _is_for_others(each)]
    if not any(mentions(each, buffer) for each in kept for buffer in written):
        return [body]
    return [seq(list(some)) for _, some in groupby(statements, _is_for_others)]


def _with_own_arrays(
    steps: list[tirx.Stmt], loops: list[tuple[ir.Var, Digit]]
) -> tuple[list[tirx.Stmt], list[tirx.Stmt]]:
    """Steps in which each iteration has private arrays of its own, and the arrays' allocations.

    All iterations do one step before the next. What an iteration computes in a private array for a
    later step would be what the last one did.
    """
    mine: dict[ir.Var, ir.Var] = {}
    for place, each in enumerate(steps[:-1], 1):
        for buffer in _private_in(each):
            used_later = any(mentions(later, buffer) for later in steps[place:])
            if used_later and buffer not in mine and _begins(steps, buffer):
                shape = [*(digit.extent for _, digit in loops), *buffer.ty.shape]
                mine[buffer] = retyped(buffer, shape=shape)
    numbers = [number for number, _ in loops]

    def load(node: ir.TensorLoad, mutator: Mutator) -> ir.Expr:
        own = mine.get(buffer_of(node))
        if own is None:
            return mutator.default_mutate(node)
        indices = [*numbers, *(mutator.mutate(index) for index in indices_of(node))]
        return tirx.BufferLoad(own, indices, node.span)

    def store(node: tirx.BufferStore, mutator: Mutator) -> tirx.Stmt:
        own = mine.get(buffer_of(node))
        if own is None:
            return mutator.default_mutate(node)
        indices = [*numbers, *(mutator.mutate(index) for index in indices_of(node))]
        return tirx.BufferStore(own, mutator.mutate(node.value), indices, span=node.span)

    if not mine:
        return [], steps
    apart = [mutated(step, (ir.TensorLoad, load), (tirx.BufferStore, store)) for step in steps]
    return [tirx.AllocBuffer(own) for own in mine.values()], apart


def _private_in(stmt: tirx.Stmt) -> list[ir.Var]:
    """The private arrays that a statement stores to and does not allocate."""
    own = {buffer_of(node) for node in nodes_in(stmt, tirx.AllocBuffer)}
    stored = dict.fromkeys(buffer_of(store) for store in nodes_in(stmt, tirx.BufferStore))
    return [each for each in stored if is_private(each) and each not in own]


def _begins(steps: list[tirx.Stmt], buffer: ir.Var) -> bool:
    """Tell whether an iteration sets an array before it uses it."""
    first = next(stmt for step in steps for stmt in _inside(step) if mentions(stmt, buffer))
    if not isinstance(first, tirx.BufferStore) or not buffer_of(first).same_as(buffer):
        return False
    return not any(mentions(part, buffer) for part in (first.value, *indices_of(first)))


def _inside(stmt: tirx.Stmt) -> Iterator[tirx.Stmt]:
    """The statements of an iteration, in order, without the conditions around them."""
    for each in flattened(stmt):
        if isinstance(each, tirx.IfThenElse) and each.else_case is None:
            yield from _inside(each.then_case)
        else:
            yield each


def _done_by(owner: Any, body: tirx.Stmt) -> tirx.Stmt:
    """Let one of the threads that repeat an iteration do what others would see."""

    class _OnOneThread(ScopedRewriter):
        def visit_if(self, node: tirx.IfThenElse) -> tirx.Stmt:
            return (
                tirx.IfThenElse(owner, node, None)
                if _is_for_others(node)
                else super().visit_if(node)
            )

        def visit_store(self, node: tirx.BufferStore) -> tirx.Stmt:
            if is_in_registers(buffer_of(node)):
                return node
            return tirx.IfThenElse(owner, node, None)

        def visit_evaluate(self, node: tirx.Evaluate) -> tirx.Stmt:
            return tirx.IfThenElse(owner, node, None) if has_effect(node.value) else node

    return _OnOneThread().rewrite(body)


def _is_for_others(stmt: tirx.Stmt) -> bool:
    """Tell whether a statement leaves nothing in the private memory of the threads that do it.

    One of the threads that repeat it is enough then, and the others must not even read what its
    conditions and values depend on: that one may be writing it.
    """
    own = {buffer_of(node) for node in nodes_in(stmt, tirx.AllocBuffer)}

    def is_kept(store: tirx.BufferStore) -> bool:
        return is_in_registers(buffer_of(store)) and buffer_of(store) not in own

    return not contains(stmt, tirx.BufferStore, is_kept)
