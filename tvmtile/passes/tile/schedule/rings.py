"""Rings of buffer copies: iteration `k` works on copy `k % n` for the `k // n`-th time.

Its mbarriers have the same number, and the parity of their phase is that of `k // n`: who waits for an
iteration knows both by `k` alone. Where the loop is run several times, `k` counts on from one time to
the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T
from tvm_ffi import structural_equal

from tvmtile._tvm import Mutator, buffer_of, indices_of, mutated, ranges_of
from tvmtile.analysis.kernel_info import KernelInfo
from tvmtile.ir.operators import operator_for, operator_of
from tvmtile.ir.rewriting import substitute
from tvmtile.ir.scopes import MBARRIER_SCOPE
from tvmtile.ir.threads import WARP_SIZE
from tvmtile.ir.types import Index


@dataclass(frozen=True, eq=False)
class Mbarriers:
    """One mbarrier for each iteration that may be under way."""

    buffer: ir.Var
    """The buffer of the mbarriers, one element each."""
    arrivals: int
    """How many threads arrive in a phase."""

    @classmethod
    def named(cls, name: str, count: int, arrivals: int = 1) -> Mbarriers:
        """So many mbarriers."""
        return cls(tirx.decl_buffer((count,), "uint64", name=name, scope=MBARRIER_SCOPE), arrivals)

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self.buffer.ty.shape[0])

    def declared(self) -> list[tirx.Stmt]:
        """Their allocation and initialisation."""
        init = operator_for("mbarriers")(self.buffer, [self.arrivals] * self.count)
        return [tirx.AllocBuffer(self.buffer), tirx.Evaluate(init.to_call())]

    def number(self, iteration: ir.Expr) -> ir.Expr:
        """Which of them an iteration has."""
        return tirx.floormod(iteration, _like(iteration, self.count))

    def of(self, iteration: ir.Expr) -> ir.TensorLoad:
        """The mbarrier that an iteration uses, as an element of the buffer."""
        number = self.number(iteration)
        is_int32 = str(number.ty.dtype) == "int32"
        return tirx.BufferLoad(self.buffer, [number if is_int32 else tirx.Cast("int32", number)])

    def parity(self, iteration: ir.Expr) -> ir.Expr:
        """The parity, 0 or 1, of the phase that ends with an iteration: what a thread waits for."""
        phase = tirx.floordiv(iteration, _like(iteration, self.count))
        return tirx.Cast("int32", tirx.floormod(phase, _like(iteration, 2)))


def _like(iteration: ir.Expr, value: int) -> ir.Expr:
    return tirx.const(value, str(iteration.ty.dtype))


# Copies of one role -------------------------------------------------------------------------------


class Phases:
    """The mbarriers of a stage's copies.

    So many iterations may be under way at once; `is_repeated`: the loop may be run several times.

    Attributes
    ----------
    setup : list of Stmt
        What a block does first.
    """

    def __init__(self, count: int, *, is_repeated: bool) -> None:
        self._arrived = Mbarriers.named("arrived", count)
        self._former: Any = None
        self.setup = self._arrived.declared()
        if is_repeated:
            self._former = tirx.decl_buffer((1,), "uint32", name="iterations", scope="local")
            zero = tirx.const(0, "uint32")
            self.setup += [
                tirx.AllocBuffer(self._former),
                tirx.BufferStore(self._former, zero, [0]),
            ]

    def begun(self, copy: Any, iteration: Index) -> tirx.Stmt:
        """A copy of an iteration, begun by one thread."""
        op = operator_of(copy)
        begun = None if op is None else op.begun_on(self._barrier(iteration))
        assert begun is not None, "only such copies complete on mbarriers"
        return tirx.Evaluate(begun.to_call(copy.value.span), copy.span)

    def ended(self, iteration: Index) -> tirx.Stmt:
        """Behind the copies of an iteration, if there are any: nothing else is waited for."""
        end = operator_for("end of phase")(self._barrier(iteration))
        return tirx.Evaluate(end.to_call())

    def awaited(self, iteration: Index) -> tirx.Stmt:
        """Wait for the copies of an iteration."""
        parity = self._arrived.parity(self._position(iteration))
        wait = operator_for("wait for phase")(self._barrier(iteration), parity)
        return tirx.Evaluate(wait.to_call())

    def after(self, iterations: ir.Expr) -> list[tirx.Stmt]:
        """Behind the loop: what is done of another one's iterations."""
        if self._former is None:
            return []
        return [tirx.BufferStore(self._former, self._position(iterations), [0])]

    def _position(self, iteration: Index) -> Any:
        if self._former is None:
            return iteration
        return tirx.BufferLoad(self._former, [0]) + tirx.Cast("uint32", iteration)

    def _barrier(self, iteration: Index) -> ir.TensorLoad:
        return self._arrived.of(self._position(iteration))


# Tiles that a producer fills and consumers use ----------------------------------------------------


@dataclass(frozen=True)
class Ring:
    """The buffer copies of some tiles, which are filled and used together."""

    iteration: Any
    """The number of the iteration, of all that the kernel does."""
    units: tuple[int, ...]
    """The statements of the loop that fill the tiles."""
    first: int
    last: int
    """The first and the last statement that uses one of them."""
    in_flight: bool
    """A statement that uses them goes on until the next iteration has issued its own."""
    full: Mbarriers
    empty: Mbarriers
    """The tiles of an iteration have come; the warps that use them need them no more."""

    @property
    def stages(self) -> int:
        """How many copies there are."""
        return self.full.count

    @property
    def index(self) -> ir.Expr:
        """The copy that the iteration works on."""
        return self.full.number(self.iteration)

    def declared(self) -> list[tirx.Stmt]:
        """The mbarriers, ready for use."""
        return [*self.full.declared(), *self.empty.declared()]

    def at(self, iteration: dict[ir.Var, Any]) -> Ring:
        """The ring at another iteration, by what stands for the names of this one."""
        return replace(self, iteration=substitute(self.iteration, iteration))

    # What a thread does in an iteration ----------------------------------------------------------

    def wait_until_empty(self) -> tirx.Stmt:
        """Wait for the consumers of the iteration that has used the copy before, if there is one."""
        parity = self.empty.parity(self.iteration)
        return _act(self.empty.of(self.iteration), tirx.const(1, "int32") - parity, "wait")

    def wait_until_full(self) -> tirx.Stmt:
        """Wait for the tiles of the iteration."""
        return _act(self.full.of(self.iteration), self.full.parity(self.iteration), "wait")

    @property
    def arrives_on(self) -> ir.TensorLoad:
        """The mbarrier on which the tiles of the iteration arrive."""
        return self.full.of(self.iteration)

    def fill(
        self,
        by_threads: Sequence[tirx.Stmt],
        copies: Sequence[tirx.Stmt],
        thread: ir.Expr,
        threads: int,
        computed: Sequence[tirx.Stmt] = (),
    ) -> list[tirx.Stmt]:
        """Begin copies that arrive on the mbarrier, and say that there are no more.

        One thread says so where it begins them all. Where all threads copy, each arrives as soon as its
        asynchronous copies have, and a thread of each warp for what the warp has stored. What they
        have `computed` they store while the copies are under way, and each thread orders its stores
        before asynchronous reads, as those of `wgmma` are.

        `thread` is a number among the producer's, which has so many `threads`. A condition may leave
        out any of the copies by threads. Warps without a copy do not wait for an empty tile: nothing
        keeps consumers from getting two phases ahead of them, and a wait by parity would then not end.
        """
        one = tirx.const(1, "int32")
        arrive = _act(self.arrives_on, one, "arrive")
        if not by_threads and not computed:
            wait = self.wait_until_empty()
            if threads > WARP_SIZE:
                wait = tirx.IfThenElse(thread < WARP_SIZE, wait, None)
            return [wait, *copies, tirx.IfThenElse(thread == 0, arrive, None)]
        moved = [*by_threads, _act(self.arrives_on, one, "arrive_when_copied")]
        fence = tirx.Evaluate(operator_for("proxy fence")().to_call())
        return [
            self.wait_until_empty(),
            *(moved if by_threads else ()),
            *copies,
            *((*computed, fence) if computed else ()),
            *_of_warps(thread, arrive),
        ]

    def release(self, thread: ir.Expr, condition: ir.Expr | None = None) -> list[tirx.Stmt]:
        """Let the producer have the copy again: a thread of each warp says so.

        `thread` is a number among the consumers'; `condition` says whether there is such an iteration.
        FenceLoads sees to it that loads of the threads are over by then.
        """
        copy = self.empty.of(self.iteration)
        return _of_warps(thread, _act(copy, tirx.const(1, "int32"), "arrive"), condition)


def _of_warps(
    thread: ir.Expr, stmt: tirx.Stmt, condition: ir.Expr | None = None
) -> list[tirx.Stmt]:
    """What the first thread of each warp does for all of them."""
    leads = tirx.floormod(thread, WARP_SIZE) == 0
    if condition is not None:
        leads = tirx.all(condition, leads)
    return [tirx.Evaluate(T.tvm_storage_sync("warp")), tirx.IfThenElse(leads, stmt, None)]


def _act(mbarrier: ir.TensorLoad, value: ir.Expr, action: str) -> tirx.Stmt:
    return tirx.Evaluate(operator_for("mbarrier")(mbarrier, value, action).to_call())


# The axis of buffer copies that tiles get ---------------------------------------------------------


@dataclass(frozen=True)
class StageAxis:
    """The buffer copies of a tile in a loop."""

    count: int
    """How many there are."""
    index: ir.Expr
    """Which one an iteration works on, in terms of the loop's variable."""


def with_stage_axes(
    kernel: tirx.For, tiles: KernelInfo, axes: Mapping[ir.Var, Mapping[ir.Var, StageAxis]]
) -> tirx.For:
    """Give tiles a leading axis of buffer copies; what stands outside of the loops works on copy 0.

    The axes are given by the variable of a loop, then by tile.
    """
    return _Expander(tiles, axes).rewrite(kernel)


class _Expander:
    """Gives tiles their axis of buffer copies, and every use of them an index along it."""

    def __init__(
        self, tiles: KernelInfo, axes: Mapping[ir.Var, Mapping[ir.Var, StageAxis]]
    ) -> None:
        self._tiles = tiles
        self._axes = axes
        self._index: dict[ir.Var, ir.Expr] = {}  # of each tile, where the rewriting is
        self._new: dict[ir.Var, ir.Var] = {}
        for tile, count in self._counts().items():
            self._new[tile] = _with_stage_axis(tile, count, tile)
            for view in tiles.views_of(tile):
                self._new[view] = _with_stage_axis(view, count, tile)

    def _counts(self) -> dict[ir.Var, int]:
        counts: dict[ir.Var, int] = {}
        for of_loop in self._axes.values():
            for tile, axis in of_loop.items():
                counts[tile] = max(counts.get(tile, 1), axis.count)
        return counts

    def rewrite(self, kernel: tirx.For) -> tirx.For:
        return mutated(
            kernel,
            (tirx.For, self._loop),
            (tirx.BufferStore, self._store),
            (ir.TensorLoad, self._load),
            (ir.TensorRegion, self._region),
            (ir.Call, self._call),
            (ir.Var, self._variable),
        )

    def _variable(self, var: ir.Var, _: Mutator) -> ir.Var:
        return self._new.get(var, var)

    def _loop(self, loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        outer = self._index
        own = self._axes.get(loop.loop_var, {})
        self._index = {**outer, **{tile: axis.index for tile, axis in own.items()}}
        result = mutator.default_mutate(loop)
        self._index = outer
        return result

    def _at(self, buffer: ir.Var) -> ir.Expr:
        return self._index.get(self._tiles.root(buffer), tirx.const(0, "int32"))

    def _load(self, load: ir.TensorLoad, mutator: Mutator) -> ir.Expr:
        if buffer_of(load) not in self._new:
            return mutator.default_mutate(load)
        indices = [
            self._at(buffer_of(load)),
            *(mutator.mutate(index) for index in indices_of(load)),
        ]
        return tirx.BufferLoad(self._new[buffer_of(load)], indices, load.span)

    def _store(self, store: tirx.BufferStore, mutator: Mutator) -> tirx.Stmt:
        if buffer_of(store) not in self._new:
            return mutator.default_mutate(store)
        indices = [
            self._at(buffer_of(store)),
            *(mutator.mutate(index) for index in indices_of(store)),
        ]
        value = mutator.mutate(store.value)
        return tirx.BufferStore(self._new[buffer_of(store)], value, indices, span=store.span)

    def _region(self, region: ir.TensorRegion, mutator: Mutator) -> ir.Expr:
        if buffer_of(region) not in self._new:
            return mutator.default_mutate(region)
        stage = ir.Range.from_min_extent(self._at(buffer_of(region)), tirx.const(1, "int32"))
        ranges = [
            ir.Range.from_min_extent(mutator.mutate(r.min), mutator.mutate(r.extent))
            for r in ranges_of(region)
        ]
        return tirx.BufferRegion(self._new[buffer_of(region)], [stage, *ranges])

    def _call(self, call: ir.Call, mutator: Mutator) -> ir.Expr:
        result = mutator.default_mutate(call)
        op = operator_of(result)
        if op is None:
            return result
        new = set(self._new.values())
        operands = [*op.reads(), *op.writes(), *op.fixed_layouts()]
        grown = [operand for operand in operands if buffer_of(operand) in new]
        return op.with_buffer_copies(grown).to_call(call.span) if grown else result


def _with_stage_axis(buffer: ir.Var, count: int, allocated: ir.Var) -> ir.Var:
    """A buffer like another one with a leading axis; views in the layout of their source keep it."""
    ty = buffer.ty
    keeps = structural_equal(ty.layout, allocated.ty.layout)
    shape = allocated.ty.shape if keeps else ty.shape
    layout = tirx.decl_buffer([count, *shape], str(ty.dtype)).ty.layout
    return tirx.decl_buffer(
        [count, *ty.shape],
        str(ty.dtype),
        name=buffer.name,
        scope=ty.storage_scope,
        data_alignment=ty.data_alignment,
        layout=layout,
        span=buffer.span,
    )
