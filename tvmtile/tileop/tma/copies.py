"""Parts of lowerings by tensor maps: one thread begins copies, fences order them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, nodes_in
from tvmtile.analysis.kernel_info import info_of
from tvmtile.ir.annotations import APART, ARRIVE_COUNT
from tvmtile.ir.asynchronous import BULK_STORE, signal
from tvmtile.ir.barriers import sync
from tvmtile.ir.operands import describe, dtype_of
from tvmtile.ir.operators import TileOp, operators_in
from tvmtile.ir.rewriting import defined_in, seq
from tvmtile.ir.scopes import is_shared
from tvmtile.ir.threads import WARPGROUP
from tvmtile.tileop.cluster import BlockRank
from tvmtile.tileop.mbarrier import Mbarrier, ProxyFence
from tvmtile.tileop.registry import Decline, LoweringContext, implementation_of
from tvmtile.tileop.tma.boxes import BoxCopy, check_tensor
from tvmtile.tileop.tma.instructions import BulkLoad, BulkStore


def check_fits(src: ir.TensorRegion, dst: ir.TensorRegion, context: LoweringContext) -> BoxCopy:
    """The boxes of a copy of tile and tensor; `Decline` where it can't go by tensor maps."""
    tensor = src if is_shared(buffer_of(dst)) else dst
    if dtype_of(src) != dtype_of(dst):
        raise Decline(f"elements of {describe(src)} are converted")
    check_tensor(buffer_of(tensor), context.analyzer)
    if buffer_of(tensor) in defined_in(context.launch.body):
        raise Decline(f"the address of {describe(buffer_of(tensor))} is computed by the kernel")
    copy = BoxCopy.of(src, dst, context.analyzer)
    copy.check_columns(info_of(context.launch.body).values, context.analyzer)
    return copy


def check_stores(src: ir.TensorRegion, dst: ir.TensorRegion, context: LoweringContext) -> None:
    """The same of a copy to global memory that nobody has asked to go by tensor maps."""
    copy = check_fits(src, dst, context)
    copy.check_starts(info_of(context.launch.body).values, context.analyzer)


def load(
    copy: BoxCopy, barrier: ir.TensorLoad, context: LoweringContext, *, arrives: bool = False
) -> list[tirx.Stmt]:
    """The statements of the thread that begins a load: it expects more bytes and begins the copies.

    `barrier` counts the bytes; with `arrives` the thread arrives there too.
    """
    return [_expected(copy, barrier, arrives), *loads(copy, barrier, context)]


def load_for_blocks(
    copy: BoxCopy,
    barrier: Any,
    mask: int,
    context: LoweringContext,
    *,
    arrives: bool = False,
    before: tuple[tirx.Stmt, tirx.Stmt] | None = None,
) -> list[tirx.Stmt]:
    """The same where the first block of a mask loads for all of them, and the others for themselves.

    All blocks of the mask, bit `i` for block `i` of the cluster, use the same mbarrier. `before` is
    what each of them does first, and what the one that loads does before it.
    """
    rank = BlockRank().to_call()
    first = (mask & -mask).bit_length() - 1
    is_one = tirx.bitwise_and(tirx.shift_right(tirx.const(mask, "int32"), rank), 1) == 1
    says, awaits = ([before[0]], [before[1]]) if before else ([], [])
    begins = seq([*awaits, *loads(copy, barrier, context, mask)])
    of_mask = seq([*says, tirx.IfThenElse(rank == first, begins, None)])
    alone = seq(loads(copy, barrier, context))
    return [_expected(copy, barrier, arrives), tirx.IfThenElse(is_one, of_mask, alone)]


def _expected(copy: BoxCopy, barrier: ir.TensorLoad, arrives: bool) -> tirx.Stmt:
    action = "arrive_expect_tx" if arrives else "expect_tx"
    return tirx.Evaluate(Mbarrier(barrier, tirx.const(copy.bytes, "int32"), action).to_call())


def loads(
    copy: BoxCopy, barrier: ir.TensorLoad, context: LoweringContext, blocks: int = 0
) -> list[tirx.Stmt]:
    """The copies alone: the barrier expects the bytes by itself."""
    return _begun(copy, context, partial(BulkLoad, barrier=barrier, blocks=blocks))


def store(copy: BoxCopy, context: LoweringContext, combining: str = "") -> list[tirx.Stmt]:
    """The statements of the thread that begins a store: the copies begin, their group is ended.

    `combining` is how elements are combined with those of the tensor, such as "add"; by default they
    replace them.
    """
    return [
        *_begun(copy, context, partial(BulkStore, combining=combining)),
        signal(BULK_STORE.name),
    ]


def _begun(
    copy: BoxCopy, context: LoweringContext, instruction: Callable[..., TileOp]
) -> list[tirx.Stmt]:
    """One instruction for each box."""
    tile, address = buffer_of(copy.tile), copy.address()
    context.align(tile, copy.alignment)
    begun = [
        instruction(
            address,
            tirx.BufferLoad(tile, box.tile),
            coordinates=tuple(box.tensor),
            box=list(copy.in_tile),
            eviction=copy.eviction,
        )
        for box in copy.boxes
    ]
    return [tirx.Evaluate(each.to_call()) for each in begun]


def barrier_of_group(context: LoweringContext) -> tirx.Stmt:
    """All threads that do an operator wait for each other; InsertBarriers need not look for it."""
    group = context.group
    if group is None or group.count == context.launch.num_threads:
        return sync()
    return sync("shared", {ARRIVE_COUNT: group.count})


def barrier_of_warpgroup() -> tirx.Stmt:
    """The threads of each warpgroup wait for each other, where all that do an operator come."""
    return sync("shared", {ARRIVE_COUNT: WARPGROUP, APART: True})


def by_leader(statements: list[tirx.Stmt], context: LoweringContext, leaders: int = 0) -> tirx.Stmt:
    """Statements of one thread of the group that does the operator.

    One thread of `leaders` does them, the first; with 0 the first of all.
    """
    index = context.thread_index
    is_leader = (tirx.floormod(index, leaders) if leaders else index) == 0
    return tirx.IfThenElse(is_leader, seq(statements), None)


def fence(tile: ir.Var, context: LoweringContext) -> list[tirx.Stmt]:
    """A fence between writes of threads to a shared tile and asynchronous copies from it.

    It is a fence that each thread does; nothing where only asynchronous copies write the tile.
    """
    is_written = _is_written_by_threads(tile, context)
    return [tirx.Evaluate(ProxyFence().to_call())] if is_written else []


def _is_written_by_threads(tile: ir.Var, context: LoweringContext) -> bool:
    written = [buffer_of(store) for store in nodes_in(context.launch.body, tirx.BufferStore)]
    for op in operators_in(context.launch.body):
        chosen = implementation_of(op, context.kind) if op.is_tile else None
        if op.effects().completes_on is None and (chosen is None or chosen.variant != "tma"):
            written.extend(map(buffer_of, op.writes()))
    return any(tile.same_as(other) for other in written)
