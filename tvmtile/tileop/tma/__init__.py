"""`T.tma_copy`: copy a tile by the tensor memory accelerator, waited for by its user."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import InvalidOperand
from tvmtile.frontend.emit import check_operand, emit
from tvmtile.ir.operands import describe, dtype_of, matched_regions, region, static_shape
from tvmtile.ir.operators import VARARGS, OperatorEffects, TileOp, tile_operator
from tvmtile.ir.rewriting import retyped, seq
from tvmtile.ir.scopes import is_shared
from tvmtile.ir.threads import WARP_SIZE
from tvmtile.ir.types import TileOperand
from tvmtile.layout.shared import SWIZZLES, panel_of, swizzled
from tvmtile.tileop.cluster import check_rank, join_blocks
from tvmtile.tileop.eviction import eviction_of
from tvmtile.tileop.mbarrier import as_mbarrier
from tvmtile.tileop.registry import Decline, LoweringContext, SharedTile, lowering
from tvmtile.tileop.tma.boxes import BoxCopy, needs_panels
from tvmtile.tileop.tma.copies import (
    by_leader,
    check_fits,
    fence,
    load,
    load_for_blocks,
    store,
)
from tvmtile.tileop.tma.instructions import has_bulk_copies


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
    warn_ignored("T.tma_copy", **hints)
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
    role = "bulk copy"

    src: ir.TensorRegion
    dst: ir.TensorRegion
    barrier: tuple[Any, ...] = field(default=(), metadata=VARARGS)
    leaders: int = 0
    blocks: int = 0
    eviction: str | None = None

    @property
    def is_load(self) -> bool:
        """The tile is in shared memory."""
        return is_shared(buffer_of(self.dst))

    @property
    def tile(self) -> ir.TensorRegion:
        """The side in shared memory."""
        return self.dst if self.is_load else self.src

    def effects(self) -> OperatorEffects:
        on = self.barrier[0] if self.barrier else None
        return super().effects()._replace(completes_on=on)

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


def _fits(op: TmaCopy, context: LoweringContext) -> None:
    has_bulk_copies(op, context)
    op = _in_panels(op, context) if needs_panels(op.tile) else op
    check_fits(op.src, op.dst, context)


def _in_panels(op: TmaCopy, context: LoweringContext) -> TmaCopy:
    """The copy with its tile as it will lie: in panels, of which each is a few boxes."""
    tile = op.tile
    layout = swizzled(static_shape(buffer_of(tile)), dtype_of(tile))
    panels = [] if layout is None else [panel_of(layout, dtype_of(tile))]
    reason = context.why_plain(buffer_of(tile), panels)
    if reason is not None:
        raise Decline(f"its rows are longer than a box, and {reason}")
    if layout is None:
        raise Decline(
            f"the rows of {describe(tile)} are longer than a box, and are no whole panels"
        )
    starts, extents = zip(*((r.min, r.extent) for r in ranges_of(tile)), strict=True)
    laid = region(retyped(buffer_of(tile), layout=layout), starts, extents)
    return replace(op, dst=laid) if op.is_load else replace(op, src=laid)


def _wanted(op: TmaCopy, context: LoweringContext) -> dict[ir.Var, SharedTile]:
    del context
    return {buffer_of(op.tile): _PANELS} if needs_panels(op.tile) else {}


_PANELS = SharedTile(max(SWIZZLES.values()), required=True)


@lowering(TmaCopy, target="cuda", variant="tma", fits=_fits, shared=_wanted)
def _(op: TmaCopy, context: LoweringContext) -> tirx.Stmt:
    """One thread begins the copies of all boxes."""
    copy = BoxCopy.of(op.src, op.dst, context.analyzer, op.eviction)
    if op.blocks:
        join_blocks(context)
        statements = load_for_blocks(copy, op.barrier[0], op.blocks, context)
    elif op.is_load:
        statements = load(copy, op.barrier[0], context)
    else:
        statements = store(copy, context)
    return seq([*fence(buffer_of(op.tile), context), by_leader(statements, context, op.leaders)])
