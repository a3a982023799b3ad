"""`T.tma_copy`: copy a tile by the tensor memory accelerator, waited for by its user."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import walk
from tvmtile.analysis.accesses import values_of_names
from tvmtile.errors import InvalidOperand, warn_ignored
from tvmtile.frontend.emit import emit
from tvmtile.frontend.operands import check_operand
from tvmtile.ir.annotations import APART, ARRIVE_COUNT
from tvmtile.ir.asynchronous import BULK_STORE, signal
from tvmtile.ir.barriers import sync
from tvmtile.ir.operands import (
    buffer_of,
    describe,
    dtype_of,
    matched_regions,
    region,
    static_shape,
)
from tvmtile.ir.operators import TileOp, operator_of, tile_operator
from tvmtile.ir.rewriting import defined_in, retyped, seq
from tvmtile.ir.scopes import is_shared
from tvmtile.ir.threads import WARP_SIZE, WARPGROUP
from tvmtile.ir.types import TileOperand
from tvmtile.layout.shared import SWIZZLES, panel_of, swizzled
from tvmtile.tileop.cluster import BlockRank, check_rank, join_blocks
from tvmtile.tileop.eviction import eviction_of
from tvmtile.tileop.mbarrier import Mbarrier, ProxyFence, as_mbarrier
from tvmtile.tileop.registry import (
    Decline,
    LoweringContext,
    SharedTile,
    implementation_of,
    lowering,
)
from tvmtile.tileop.tma.boxes import boxes_of, check_columns, check_tensor, needs_panels
from tvmtile.tileop.tma.instructions import BulkLoad, BulkStore, has_bulk_copies
from tvmtile.tileop.tma.maps import map_of

__all__ = [
    "TmaCopy",
    "barrier_of_group",
    "barrier_of_warpgroup",
    "by_leader",
    "check_fits",
    "check_mask",
    "fence",
    "load",
    "load_for_blocks",
    "store",
    "tma_copy",
]


def tma_copy(
    src: Any,
    dst: Any,
    *,
    barrier: TileOperand | None = None,
    leader_scope_threads: int | None = None,
    eviction_policy: str | None = None,
    cluster_mask: int | None = None,
    annotations: dict[str, Any] | None = None,
) -> None:
    """Begin to copy a tile between global and shared memory by the tensor memory accelerator.

    One thread of the block begins the copy; the user waits for it. A load makes the phase of an
    mbarrier last until its bytes have come, and arrives nowhere: do that with `T.mbarrier_arrive`, and
    wait with `T.mbarrier_wait_parity`. A store ends a group, which `T.tma_store_wait` waits for.

    Parameters
    ----------
    src, dst : buffer, region or element
        As of `T.copy`; one is in global memory, the other one in shared memory, of one dtype. Elements
        outside of the tensor read as zero and are not written. A box has 256 elements along an axis
        at most: a shared tile of many longer rows lies in panels of 128 bytes.
    barrier : buffer or element
        Of a load: what `T.alloc_barrier` gave.
    leader_scope_threads : int, optional
        One thread of so many begins a copy, each its own, where the tiles depend on the thread's index;
        a multiple of 32. By default one of the block.
    cluster_mask : int, optional
        Of a load: bit `i` is set for block `i` of the cluster. The first of them begins the copy
        for all, of its own tile of the tensor; a block that is not among them copies its own. Each
        block waits at its own mbarrier, and the user sees to it that the tiles of all are free.
    eviction_policy : str, optional
        What the L2 cache does with the tile: `evict_first`, `evict_last` or `evict_normal`.
    annotations : dict, optional
        The last three by name.

    Raises
    ------
    InvalidOperand
        If not just one side is in shared memory, a load has no barrier, a store has one or a mask, or
        the cluster has no such block.
    ShapeMismatch
        If the tiles differ in their extents.
    NoLowering
        When the kernel is compiled, if no tensor map describes the tile or the tensor: the message says
        why.
    """
    hints = {
        "cluster_mask": cluster_mask,
        "leader_scope_threads": leader_scope_threads,
        "eviction_policy": eviction_policy,
        **(annotations or {}),
    }
    cluster_mask, leader_scope_threads = (
        hints.pop("cluster_mask"),
        hints.pop("leader_scope_threads"),
    )
    eviction = eviction_of("tma_copy", hints.pop("eviction_policy"))
    warn_ignored("T.tma_copy", "it is none of the hints that there are", **hints)
    if cluster_mask is not None:
        check_mask("tma_copy", cluster_mask)
    src, dst = check_operand("tma_copy", "src", src), check_operand("tma_copy", "dst", dst)
    mbarriers = () if barrier is None else (as_mbarrier("tma_copy", barrier),)
    leaders = _leaders(leader_scope_threads)
    blocks = cluster_mask or 0
    emit(TmaCopy(src, dst, mbarriers, leaders=leaders, blocks=blocks, eviction=eviction))


def check_mask(operator: str, mask: object) -> None:
    """Raise `InvalidOperand` where a mask names no blocks of the kernel's clusters."""
    if isinstance(mask, bool) or not isinstance(mask, int) or mask < 1:
        raise InvalidOperand(
            f"T.{operator}: cluster_mask={mask!r} names no blocks",
            help="give a number with bit i set for block i of the cluster, such as 0b11",
        )
    check_rank(operator, mask.bit_length() - 1)


def _leaders(threads: Any) -> int:
    if threads is None:
        return 0
    if not isinstance(threads, int) or threads < 1 or threads % WARP_SIZE:
        raise InvalidOperand(
            f"T.tma_copy: leader_scope_threads={threads!r}", help="give a multiple of 32 threads"
        )
    return threads


@tile_operator
class TmaCopy(TileOp):
    """Begin to copy a tile; `barrier` holds the mbarrier of a load, `blocks` is a mask of blocks."""

    name = "tma_copy"
    inputs = ("src",)
    outputs = ("dst",)
    rest = "barrier"
    by_thread = True

    src: ir.TensorRegion
    dst: ir.TensorRegion
    barrier: tuple[Any, ...] = ()
    leaders: int = 0
    blocks: int = 0
    eviction: str | None = None

    @property
    def is_load(self) -> bool:
        """The tile is in shared memory."""
        return is_shared(buffer_of(self.dst))

    def completes_on(self) -> ir.TensorLoad | None:
        return self.barrier[0] if self.barrier else None

    def check(self) -> None:
        self._check_scopes()
        if dtype_of(self.src) != dtype_of(self.dst):
            raise InvalidOperand(
                f"tma_copy: {describe(self.src)} and {describe(self.dst)} differ in their dtypes",
                help="give both sides one dtype, or use T.copy, which converts",
            )
        matched_regions(self.name, self.src, self.dst)

    def _check_scopes(self) -> None:
        src, dst = buffer_of(self.src), buffer_of(self.dst)
        scopes = [buffer.ty.storage_scope for buffer in (src, dst)]
        if is_shared(src) == is_shared(dst) or "global" not in scopes:
            raise InvalidOperand(
                f"tma_copy: {describe(src)} is in {scopes[0]} memory and {describe(dst)} in "
                f"{scopes[1]}",
                help="one side is a tensor in global memory, the other one a tile of T.alloc_shared; "
                "use T.copy between others",
            )
        if self.is_load and not self.barrier:
            raise InvalidOperand(
                f"tma_copy: nobody can wait for the copy to {describe(dst)}",
                help="give `barrier=`, what T.alloc_barrier returns, or use T.copy",
            )
        if self.barrier and not self.is_load:
            raise InvalidOperand(
                f"tma_copy: the copy to {describe(dst)} has a barrier, which only loads complete on",
                help="leave it out, and wait with T.tma_store_wait()",
            )
        if self.blocks and not self.is_load:
            raise InvalidOperand(
                f"tma_copy: {describe(src)} is stored by one block, and has a cluster_mask",
                help="leave it out: only loads go to several blocks",
            )

    def normalized(self) -> TmaCopy:
        src, dst = matched_regions(self.name, self.src, self.dst)
        return replace(self, src=src, dst=dst)


# Code ----------------------------------------------------------------------------------------------


def check_fits(op: Any, context: LoweringContext) -> None:
    """Raise `Decline` where a copy between global and shared memory can't go by tensor maps."""
    has_bulk_copies(op, context)
    tile, tensor = _sides(op)
    check_tensor(tensor.source, context.analyzer)
    if tensor.source in defined_in(context.launch.body):
        raise Decline(f"the address of {describe(tensor.source)} is computed by the kernel")
    boxes = boxes_of(tile, tensor, context.analyzer)
    check_columns(boxes, tensor, values_of_names(context.launch.body), context.analyzer)


def _sides(op: TmaCopy) -> tuple[ir.TensorRegion, ir.TensorRegion]:
    """The tile and the tensor."""
    return (op.dst, op.src) if is_shared(buffer_of(op.dst)) else (op.src, op.dst)


def load(
    op: TileOp, barrier: ir.TensorLoad, context: LoweringContext, *, arrives: bool = False
) -> list[tirx.Stmt]:
    """What the thread that begins a load does: more bytes are expected, and the copies begin.

    `barrier` counts the bytes; with `arrives` the thread arrives there too.
    """
    return [
        _expected(op, barrier, context, arrives=arrives),
        *_loads(op, barrier, context),
    ]


def load_for_blocks(
    op: Any,
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
    begins = seq([*awaits, *_loads(op, barrier, context, mask)])
    of_mask = seq([*says, tirx.IfThenElse(rank == first, begins, None)])
    alone = seq(_loads(op, barrier, context))
    expected = _expected(op, barrier, context, arrives=arrives)
    return [expected, tirx.IfThenElse(is_one, of_mask, alone)]


def _expected(
    op: Any, barrier: ir.TensorLoad, context: LoweringContext, *, arrives: bool
) -> tirx.Stmt:
    boxes = boxes_of(*_sides(op), context.analyzer)
    action = "arrive_expect_tx" if arrives else "expect_tx"
    return tirx.Evaluate(Mbarrier(barrier, tirx.const(boxes.bytes, "int32"), action).to_call())


def _loads(
    op: Any, barrier: ir.TensorLoad, context: LoweringContext, blocks: int = 0
) -> list[tirx.Stmt]:
    tile, tensor = _sides(op)
    boxes = boxes_of(tile, tensor, context.analyzer)
    context.align(tile.source, boxes.alignment)
    address = map_of(tensor.source, boxes)
    copies = [
        BulkLoad(
            address,
            tirx.BufferLoad(tile.source, box.tile),
            barrier,
            tuple(box.tensor),
            list(boxes.in_tile),
            blocks=blocks,
            eviction=op.eviction,
        )
        for box in boxes.boxes
    ]
    return [tirx.Evaluate(each.to_call()) for each in copies]


def store(op: Any, context: LoweringContext, combining: str = "") -> list[tirx.Stmt]:
    """What the thread that begins a store does: the copies begin, and their group is ended.

    `combining` is how elements are combined with those of the tensor, such as "add"; by default they
    replace them.
    """
    tile, tensor = _sides(op)
    boxes = boxes_of(tile, tensor, context.analyzer)
    context.align(tile.source, boxes.alignment)
    address = map_of(tensor.source, boxes)
    copies = [
        BulkStore(
            address,
            tirx.BufferLoad(tile.source, box.tile),
            tuple(box.tensor),
            list(boxes.in_tile),
            eviction=op.eviction,
            combining=combining,
        )
        for box in boxes.boxes
    ]
    return [*(tirx.Evaluate(each.to_call()) for each in copies), signal(BULK_STORE.name)]


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
    """What orders writes of threads to a shared tile before asynchronous copies from it.

    It is a fence that each thread does; nothing where only asynchronous copies write the tile.
    """
    is_written = _is_written_by_threads(tile, context)
    return [tirx.Evaluate(ProxyFence().to_call())] if is_written else []


def _is_written_by_threads(tile: ir.Var, context: LoweringContext) -> bool:
    written: list[ir.Var] = []

    def call(node: ir.Call) -> None:
        op = operator_of(node)
        if op is None or op.completes_on() is not None:
            return
        chosen = implementation_of(op, context.kind) if op.is_tile else None
        if chosen is None or chosen.variant != "tma":
            written.extend(map(buffer_of, op.writes()))

    walk(
        context.launch.body,
        (ir.Call, call),
        (tirx.BufferStore, lambda node: written.append(node.buffer)),
    )
    return any(tile.same_as(other) for other in written)


def _fits(op: TmaCopy, context: LoweringContext) -> None:
    has_bulk_copies(op, context)
    tile, _ = _sides(op)
    check_fits(_in_panels(op, context) if needs_panels(tile) else op, context)


def _in_panels(op: TmaCopy, context: LoweringContext) -> TmaCopy:
    """The copy with its tile as it will lie: in panels, of which each is a few boxes."""
    tile, _ = _sides(op)
    layout = swizzled(static_shape(tile.source), dtype_of(tile))
    panels = [] if layout is None else [panel_of(layout, dtype_of(tile))]
    reason = context.why_plain(tile.source, panels)
    if reason is not None:
        raise Decline(f"its rows are longer than a box, and {reason}")
    if layout is None:
        raise Decline(
            f"the rows of {describe(tile)} are longer than a box, and are no whole panels"
        )
    starts, extents = zip(*((r.min, r.extent) for r in tile.region), strict=True)
    laid = region(retyped(tile.source, layout=layout), starts, extents)
    return replace(op, dst=laid) if is_shared(buffer_of(op.dst)) else replace(op, src=laid)


def _wanted(op: TmaCopy, context: LoweringContext) -> dict[ir.Var, SharedTile]:
    del context
    tile, _ = _sides(op)
    return {tile.source: _PANELS} if needs_panels(tile) else {}


_PANELS = SharedTile(max(SWIZZLES.values()), required=True)


@lowering(TmaCopy, target="cuda", variant="tma", fits=_fits, shared=_wanted)
def _(op: TmaCopy, context: LoweringContext) -> tirx.Stmt:
    """One thread begins the copies of all boxes."""
    tile, _ = _sides(op)
    if op.blocks:
        join_blocks(context)
        statements = load_for_blocks(op, op.barrier[0], op.blocks, context)
    elif op.is_load:
        statements = load(op, op.barrier[0], context)
    else:
        statements = store(op, context)
    return seq([*fence(tile.source, context), by_leader(statements, context, op.leaders)])
