"""`T.reduce` on a GPU: in the registers of a thread, across lanes by shuffles, then through memory.

A tile in memory is loaded into registers first, spread over all threads. The result of a reduction
ends up in every thread that held some element of it, which is where a fragment that follows from the
source's layout wants it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvm import DataType, ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.ir.combiners import accumulator_dtype
from tvmtile.ir.operands import as_region, constant, dtype_of
from tvmtile.ir.rewriting import for_loop, seq, substitute
from tvmtile.ir.scopes import FRAGMENT_SCOPE, SHARED_SCOPE, is_fragment
from tvmtile.ir.types import Index
from tvmtile.layout.fragment import (
    Digit,
    FragmentLayout,
    common_refinement,
    gaps,
    layout_of,
    spread,
    widest_vector,
    with_weights,
)
from tvmtile.tileop.across_threads import all_reduce
from tvmtile.tileop.copy import Copy
from tvmtile.tileop.elementwise import converted, element, moving_axes, over_region
from tvmtile.tileop.reduce import PartialReduce, Reduce
from tvmtile.tileop.registry import Decline, LoweringContext, lowering


def _is_in_memory(op: Reduce, _: LoweringContext) -> None:
    if is_fragment(buffer_of(op.src)):
        raise Decline("the source is a fragment")
    if not all(constant(r.extent) for r in ranges_of(op.src)):
        raise Decline("the extents of the source are not constants")


def _is_in_registers(op: Reduce, _: LoweringContext) -> None:
    if not is_fragment(buffer_of(op.src)):
        raise Decline("the source is no fragment")


@lowering(Reduce, target=("metal", "cuda"), variant="memory", priority=10, fits=_is_in_memory)
def reduce_memory(op: Reduce, context: LoweringContext) -> tirx.Stmt:
    """Load a tile in memory into registers, and reduce it there."""
    extents = tuple(constant(r.extent) or 0 for r in ranges_of(op.src))
    dtype = dtype_of(op.src)
    vector = widest_vector(int(DataType(dtype).bits))
    layout = spread(extents, context.threads, vector)
    held = tirx.decl_buffer(
        layout.shape,
        dtype,
        name=f"{buffer_of(op.src).name}_held",
        scope=FRAGMENT_SCOPE,
        layout=layout.to_tvm(),
    )
    tile = as_region(tirx.BufferLoad(held, [0] * len(extents)), extents)
    load = Copy(op.src, tile).as_loops()
    reduce = Reduce(tile, op.dst, op.kind, op.dim, op.clear, op.nan_propagate)
    return seq([tirx.AllocBuffer(held), load, reduce_registers(reduce, context)])


@lowering(Reduce, target=("metal", "cuda"), variant="registers", priority=20, fits=_is_in_registers)
def reduce_registers(op: Reduce, context: LoweringContext) -> tirx.Stmt:
    """Combine a thread's elements, then those of the lanes, then those of the groups of lanes."""
    layout = layout_of(buffer_of(op.src))
    assert layout is not None
    return _RegisterReduction(op, layout, context).statement()


@lowering(PartialReduce, target=("metal", "cuda"), variant="registers")
def partial_reduce_registers(op: PartialReduce, context: LoweringContext) -> tirx.Stmt:
    """Combine a thread's elements."""
    layout = layout_of(buffer_of(op.src))
    assert layout is not None, "ReduceBehindLoops makes such operators of fragments with layouts"
    return _RegisterReduction(op, layout, context).partial()


@dataclass(frozen=True)
class _Loop:
    """A loop over a register digit of an index."""

    axis: int
    weight: int
    digit: Digit
    variable: ir.Var


class _RegisterReduction:
    """The code of a reduction, for one thread."""

    def __init__(self, op: Reduce, layout: FragmentLayout, context: LoweringContext) -> None:
        self._op = op
        self._layout = layout
        self._context = context
        self._thread = context.thread_index
        self._threads = context.threads
        self._analyzer = Analyzer()
        context.bind_threads(self._analyzer)
        self._dtype = accumulator_dtype(dtype_of(op.src), dtype_of(op.dst))
        self._combiner = op.combiner
        self._identity = self._combiner.identity(self._dtype)
        self._kept = self._loops(axis for axis in range(len(layout.axes)) if axis not in op.dims)
        self._reduced = self._loops(op.dims)
        self._totals = tirx.decl_buffer(
            (math.prod(loop.digit.extent for loop in self._kept),),
            self._dtype,
            name="total",
            scope="local",
        )

    def _loops(self, axes: Any) -> list[_Loop]:
        loops = []
        for axis in axes:
            for weight, digit in with_weights(self._layout.axes[axis]):
                if digit.is_thread:
                    continue
                variable = tirx.Var("r" if axis in self._op.dims else "o", "int32")
                self._analyzer.bind(variable, ir.Range(0, digit.extent))
                loops.append(_Loop(axis, weight, digit, variable))
        return loops

    def statement(self) -> tirx.Stmt:
        reduced = (digit for axis in self._op.dims for digit in self._layout.axes[axis])
        exchange = all_reduce(
            self._totals,
            lambda body: self._over(self._kept, body([self._number])),
            self._combiner,
            [digit for digit in reduced if digit.is_thread],
            self._context,
        )
        return seq([tirx.AllocBuffer(self._totals), self._in_thread(), exchange, self._store()])

    def partial(self) -> tirx.Stmt:
        """The code without what threads exchange; a total goes to the thread's place along the axes."""
        indices = [
            self._place(axis) if axis in self._op.dims else self._index(axis)
            for axis in range(len(self._layout.axes))
        ]
        store = self._guarded(self._assigned(self._op.dst, indices, self._total))
        return seq(
            [tirx.AllocBuffer(self._totals), self._in_thread(), self._over(self._kept, store)]
        )

    def _place(self, axis: int) -> ir.Expr:
        """The place of the thread along an axis."""
        place: ir.Expr = tirx.const(0, "int32")
        for digit in self._layout.axes[axis]:
            if digit.is_thread:
                place = place * digit.extent + digit.value_in(self._thread, self._threads)
        return self._analyzer.simplify(place)

    # Indices -------------------------------------------------------------------------------------

    def _index(self, axis: int) -> ir.Expr:
        """The index along an axis, for this thread and the values of the loop variables."""
        value: ir.Expr = tirx.const(0, "int32")
        loops = {(loop.axis, loop.weight): loop.variable for loop in (*self._kept, *self._reduced)}
        for weight, digit in with_weights(self._layout.axes[axis]):
            number = (
                digit.value_in(self._thread, self._threads)
                if digit.is_thread
                else loops[axis, weight]
            )
            value = value + number * weight
        return self._analyzer.simplify(value)

    @cached_property
    def _number(self) -> ir.Expr:
        """The number of the thread's total for the values of the loop variables."""
        number: ir.Expr = tirx.const(0, "int32")
        for loop in self._kept:
            number = number * loop.digit.extent + loop.variable
        return number

    def _inside(self, axis: int) -> list[ir.Expr]:
        """The conditions that an index lies in the region that is reduced."""
        region, index = ranges_of(self._op.src)[axis], self._index(axis)
        conditions = [index < region.min + region.extent, index >= region.min]
        return [c for c in conditions if not self._analyzer.can_prove(c)]

    def _over(self, loops: Sequence[_Loop], body: tirx.Stmt) -> tirx.Stmt:
        """Loops of their own variables, since the same ones are run through more than once."""
        for loop in reversed(loops):
            variable = tirx.Var(loop.variable.name, "int32")
            body = substitute(body, {loop.variable: variable})
            body = for_loop(variable, loop.digit.extent, body, tirx.ForKind.UNROLLED)
        return body

    @property
    def _total(self) -> ir.Expr:
        return tirx.BufferLoad(self._totals, [self._number])

    def _set(self, value: ir.Expr) -> tirx.Stmt:
        return tirx.BufferStore(self._totals, value, [self._number])

    # Code ----------------------------------------------------------------------------------------

    def _in_thread(self) -> tirx.Stmt:
        op = self._op
        indices = [self._index(axis) for axis in range(len(self._layout.axes))]
        load = tirx.BufferLoad(buffer_of(op.src), indices)
        value = self._combiner.element(converted(load, self._dtype))
        outside = [condition for axis in op.dims for condition in self._inside(axis)]
        if outside:
            value = tirx.Select(tirx.all(*outside), value, self._identity)
        step = self._set(self._combiner.combine(value, self._total))
        return self._over(
            self._kept, seq([self._set(self._identity), self._over(self._reduced, step)])
        )

    # The result ------------------------------------------------------------------------------------

    def _store(self) -> tirx.Stmt:
        dst = self._op.dst
        if is_fragment(buffer_of(dst)) and self._lies_in_place():
            return self._over(self._kept, self._guarded(self._assignment(dst)))
        repeated = gaps(self._threads, self._kept_digits())
        owner = [digit.value_in(self._thread, self._threads) == 0 for digit in repeated]
        if not is_fragment(buffer_of(dst)):
            return self._over(self._kept, self._guarded(self._assignment(dst), owner))
        extents = [constant(r.extent) or 1 for r in ranges_of(dst)]
        shared = tirx.decl_buffer(extents, self._dtype, name="reduced", scope=SHARED_SCOPE)
        tile = as_region(shared)
        leave = self._guarded(tirx.BufferStore(shared, self._total, self._indices_in(tile)), owner)
        fetch = self._fetched(tile)
        return seq([tirx.AllocBuffer(shared), self._over(self._kept, leave), fetch])

    def _fetched(self, tile: ir.TensorRegion) -> tirx.Stmt:
        """Let every thread take the results it needs from memory."""
        dst = self._op.dst

        def body(offsets: list[Index]) -> tirx.Stmt:
            value = tirx.BufferLoad(buffer_of(tile), element(tile, offsets))
            return self._assigned(dst, element(dst, offsets), value)

        return over_region(dst, body)

    def _kept_digits(self) -> list[Digit]:
        return [
            digit
            for axis, digits in enumerate(self._layout.axes)
            if axis not in self._op.dims
            for digit in digits
        ]

    def _lies_in_place(self) -> bool:
        """Tell whether the result's layout is what the source's leaves."""
        held = layout_of(buffer_of(self._op.dst))
        kept = [a for a in moving_axes(self._op.src) if a not in self._op.dims]
        moving = moving_axes(self._op.dst)
        if held is None or len(kept) != len(moving):
            return False
        for source, target in zip(kept, moving, strict=True):
            own, theirs = self._layout.axes[source], held.axes[target]
            if math.prod(d.extent for d in own) != math.prod(d.extent for d in theirs):
                return False
            if not self._starts_at(source, target):
                return False
            pairs = common_refinement(own, theirs)
            if pairs is None or any(
                a.is_thread != b.is_thread or (a.is_thread and a.stride != b.stride)
                for a, b in pairs
            ):
                return False
        return True

    def _starts_at(self, source: int, target: int) -> bool:
        difference = ranges_of(self._op.src)[source].min - ranges_of(self._op.dst)[target].min
        return bool(self._analyzer.can_prove_equal(difference, 0))

    def _indices_in(self, target: ir.TensorRegion) -> list[ir.Expr]:
        kept = [a for a in moving_axes(self._op.src) if a not in self._op.dims]
        offsets = [self._index(axis) - ranges_of(self._op.src)[axis].min for axis in kept]
        offsets.reverse()
        return [
            r.min if constant(r.extent) == 1 else r.min + offsets.pop() for r in ranges_of(target)
        ]

    def _assignment(self, dst: ir.TensorRegion) -> tirx.Stmt:
        indices = [self._analyzer.simplify(index) for index in self._indices_in(dst)]
        return self._assigned(dst, indices, self._total)

    def _assigned(self, dst: ir.TensorRegion, indices: list[ir.Expr], value: ir.Expr) -> tirx.Stmt:
        if not self._op.clear:
            old = converted(tirx.BufferLoad(buffer_of(dst), indices), self._dtype)
            value = self._combiner.combine(old, value)
        return tirx.BufferStore(buffer_of(dst), converted(value, dtype_of(dst)), indices)

    def _guarded(self, statement: tirx.Stmt, more: Sequence[ir.Expr] = ()) -> tirx.Stmt:
        conditions = list(more)
        for axis in moving_axes(self._op.src):
            if axis not in self._op.dims:
                conditions += self._inside(axis)
        return tirx.IfThenElse(tirx.all(*conditions), statement, None) if conditions else statement
