"""Rings of buffer copies: iteration `k` works on copy `k % n` for the `k // n`-th time.

Its mbarriers have the same number, and the parity of their phase is that of `k // n`: who waits for an
iteration knows both by `k` alone. Where the loop is run several times, `k` counts on from one time to
the next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T
from tvm_ffi import structural_equal

from tvmtile._tvm import Mutator, buffer_of, indices_of, mapped, mutated, ranges_of
from tvmtile.analysis.kernel_info import KernelInfo
from tvmtile.ir.operators import begun_on, fixed_layouts, operator_for, operator_of
from tvmtile.ir.rewriting import substitute
from tvmtile.ir.scopes import MBARRIER_SCOPE
from tvmtile.ir.threads import WARP_SIZE


@dataclass(frozen=True)
class Position:
    """The position of an iteration in a ring."""

    slot: Any
    """The buffer copy that it works on."""
    parity: Any
    """The parity, 0 or 1, of the phase that ends with it: what a thread waits for."""

    @classmethod
    def of(cls, number: Any, stages: int) -> Position:
        """The position of the iteration of a number, where there are so many copies."""
        dtype = str(number.ty.dtype)
        count = tirx.const(stages, dtype)
        phase = tirx.floormod(tirx.floordiv(number, count), tirx.const(2, dtype))
        return cls(tirx.floormod(number, count), tirx.Cast("int32", phase))

    def at(self, iteration: dict[ir.Var, Any]) -> Position:
        """The position of another iteration, by what stands for the names of this one."""
        return Position(*(folded(substitute(x, iteration)) for x in (self.slot, self.parity)))


def folded(node: ir.Node) -> Any:
    """Compute what is constant, as of `0 * 32` where the iteration is known."""
    return mapped(
        node,
        (tirx.Add, lambda n: n.a + n.b),
        (tirx.Sub, lambda n: n.a - n.b),
        (tirx.Mul, lambda n: n.a * n.b),
        (tirx.FloorDiv, lambda n: tirx.floordiv(n.a, n.b)),
        (tirx.FloorMod, lambda n: tirx.floormod(n.a, n.b)),
    )


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
        """Their number."""
        return int(self.buffer.ty.shape[0])

    def declared(self) -> list[tirx.Stmt]:
        """Their allocation and initialisation."""
        init = operator_for("mbarriers")(self.buffer, [self.arrivals] * self.count)
        return [tirx.AllocBuffer(self.buffer), tirx.Evaluate(init.to_call())]

    def at(self, position: Position) -> ir.TensorLoad:
        """The mbarrier of an iteration, as an element of the buffer."""
        slot = position.slot
        is_int32 = str(slot.ty.dtype) == "int32"
        return tirx.BufferLoad(self.buffer, [slot if is_int32 else tirx.Cast("int32", slot)])


# Tiles that a producer fills and consumers use ----------------------------------------------------


@dataclass(frozen=True, eq=False)
class Ring:
    """The buffer copies of some tiles, which are filled and used together.

    Mbarriers say when they have come, and when they may be filled again. A ring without tiles is an
    order between roles.
    """

    tiles: tuple[ir.Var, ...]
    units: tuple[int, ...]
    """The statements of the loop that fill the tiles."""
    position: Position
    """Where the iteration is in it."""
    full: Mbarriers
    """The tiles of an iteration have come."""
    empty: Mbarriers | None = None
    """The warps that use them need them no more; None where the role that fills them uses them."""

    @property
    def slots(self) -> int:
        """The number of mbarriers."""
        return self.full.count

    def declared(self) -> list[tirx.Stmt]:
        """The mbarriers, ready for use."""
        return [stmt for each in (self.full, self.empty) if each for stmt in each.declared()]

    # What a thread does in an iteration ----------------------------------------------------------

    def wait_until_empty(self) -> tirx.Stmt:
        """Wait for the consumers of the iteration that has used the copy before, if there is one."""
        assert self.empty is not None, "another role uses the tiles"
        parity = tirx.const(1, "int32") - self.position.parity
        return _act(self.empty.at(self.position), parity, "wait")

    def wait_until_full(self) -> tirx.Stmt:
        """Wait for the tiles of the iteration."""
        if self.empty is None:
            wait = operator_for("wait for phase")(self.arrives_on, self.position.parity)
            return tirx.Evaluate(wait.to_call())
        return _act(self.arrives_on, self.position.parity, "wait")

    @property
    def arrives_on(self) -> ir.TensorLoad:
        """The mbarrier on which the tiles of the iteration arrive."""
        return self.full.at(self.position)

    def arriving(self, stmt: tirx.Stmt) -> tirx.Stmt:
        """A copy, which arrives on the mbarrier."""

        def rewrite(call: ir.Call) -> ir.Expr:
            op = operator_of(call)
            begun = begun_on(op, self.arrives_on)
            return call if begun is None else begun.to_call(call.span)

        return mapped(stmt, (ir.Call, rewrite))

    def ended(self) -> tirx.Stmt:
        """The end of copies that a block begins and uses: one thread ends their phase."""
        return tirx.Evaluate(operator_for("end of phase")(self.arrives_on).to_call())

    def release(self, thread: ir.Expr, condition: ir.Expr | None = None) -> list[tirx.Stmt]:
        """Let the producer have the copy again: a thread of each warp says so.

        `thread` is a number among the consumers'; `condition` says whether there is such an iteration.
        FenceLoads sees to it that loads of the threads are over by then.
        """
        assert self.empty is not None, "another role fills the tiles"
        copy = self.empty.at(self.position)
        return _of_warps(thread, _act(copy, tirx.const(1, "int32"), "arrive"), condition)


@dataclass(frozen=True)
class Filling:
    """The filling of a ring by the threads of a producer.

    One thread says that there are no more copies where it begins them all. Where all threads copy, each
    arrives as soon as its asynchronous copies have, and a thread of each warp for what the warp has
    stored. What they have computed they store while the copies are under way, and each thread orders
    its stores before asynchronous reads, as those of `wgmma` are.

    Warps without a copy do not wait for an empty tile: nothing keeps consumers from getting two phases
    ahead of them, and a wait by parity would then not end.
    """

    ring: Ring
    thread: ir.Expr
    """A number among the producer's, which has so many `threads`."""
    threads: int
    by_threads: bool = False
    """A condition may leave out any of these copies."""
    computes: bool = False

    def acquired(self) -> tirx.Stmt:
        """Wait until the tiles are free."""
        wait = self.ring.wait_until_empty()
        if self.threads <= WARP_SIZE or self.by_threads or self.computes:
            return wait
        return tirx.IfThenElse(self.thread < WARP_SIZE, wait, None)

    def copied(self) -> tirx.Stmt:
        """The statements behind the asynchronous copies of threads."""
        return _act(self.ring.arrives_on, tirx.const(1, "int32"), "arrive_when_copied")

    def filled(self) -> list[tirx.Stmt]:
        """The statements behind all that fills the tiles."""
        arrive = _act(self.ring.arrives_on, tirx.const(1, "int32"), "arrive")
        if not self.by_threads and not self.computes:
            return [tirx.IfThenElse(self.thread == 0, arrive, None)]
        fence = tirx.Evaluate(operator_for("proxy fence")().to_call())
        return [*([fence] if self.computes else []), *_of_warps(self.thread, arrive)]


def _of_warps(
    thread: ir.Expr, stmt: tirx.Stmt, condition: ir.Expr | None = None
) -> list[tirx.Stmt]:
    """The statements in which the first thread of each warp acts for all of them."""
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
    """The copy that an iteration works on, in terms of the loop's variable."""


def with_stage_axes(
    kernel: tirx.For, tiles: KernelInfo, axes: Mapping[ir.Var, Mapping[ir.Var, StageAxis]]
) -> tuple[tirx.For, dict[ir.Var, ir.Var]]:
    """Give tiles a leading axis of buffer copies; what stands outside of the loops works on copy 0.

    The axes are given by the variable of a loop, then by tile. With the kernel come the new tiles by
    the ones that were.
    """
    expander = _Expander(tiles, axes)
    return expander.rewrite(kernel), expander.new


class _Expander:
    """Gives tiles their axis of buffer copies, and every use of them an index along it."""

    def __init__(
        self, tiles: KernelInfo, axes: Mapping[ir.Var, Mapping[ir.Var, StageAxis]]
    ) -> None:
        self._tiles = tiles
        self._axes = axes
        self._index: dict[ir.Var, ir.Expr] = {}  # of each tile, where the rewriting is
        self.new: dict[ir.Var, ir.Var] = {}
        for tile, count in self._counts().items():
            self.new[tile] = _with_stage_axis(tile, count, tile)
            for view in tiles.views_of(tile):
                self.new[view] = _with_stage_axis(view, count, tile)

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
        return self.new.get(var, var)

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
        if buffer_of(load) not in self.new:
            return mutator.default_mutate(load)
        indices = [
            self._at(buffer_of(load)),
            *(mutator.mutate(index) for index in indices_of(load)),
        ]
        return tirx.BufferLoad(self.new[buffer_of(load)], indices, load.span)

    def _store(self, store: tirx.BufferStore, mutator: Mutator) -> tirx.Stmt:
        if buffer_of(store) not in self.new:
            return mutator.default_mutate(store)
        indices = [
            self._at(buffer_of(store)),
            *(mutator.mutate(index) for index in indices_of(store)),
        ]
        value = mutator.mutate(store.value)
        return tirx.BufferStore(self.new[buffer_of(store)], value, indices, span=store.span)

    def _region(self, region: ir.TensorRegion, mutator: Mutator) -> ir.Expr:
        if buffer_of(region) not in self.new:
            return mutator.default_mutate(region)
        stage = ir.Range.from_min_extent(self._at(buffer_of(region)), tirx.const(1, "int32"))
        ranges = [
            ir.Range.from_min_extent(mutator.mutate(r.min), mutator.mutate(r.extent))
            for r in ranges_of(region)
        ]
        return tirx.BufferRegion(self.new[buffer_of(region)], [stage, *ranges])

    def _call(self, call: ir.Call, mutator: Mutator) -> ir.Expr:
        result = mutator.default_mutate(call)
        op = operator_of(result)
        if op is None:
            return result
        new = set(self.new.values())
        operands = [*op.reads(), *op.writes(), *fixed_layouts(op)]
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
