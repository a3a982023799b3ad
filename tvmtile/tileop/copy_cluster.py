"""`T.copy_cluster`: copy a tile to another block of the cluster, or from a tensor to several."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import InvalidOperand
from tvmtile.frontend.emit import check_operand, emit
from tvmtile.frontend.values import as_expr
from tvmtile.ir.operands import (
    bits_of,
    constant,
    describe,
    dtype_of,
    matched_regions,
    offset_in_memory,
)
from tvmtile.ir.operators import VARARGS, TileOp, tile_operator
from tvmtile.ir.rewriting import seq
from tvmtile.ir.scopes import CLUSTER_BARRIER_SCOPE, is_cluster_mbarrier, is_global, is_shared
from tvmtile.ir.types import Index, TileOperand
from tvmtile.layout.shared import has_plain_rows
from tvmtile.tileop.cluster import (
    RemoteArrival,
    RemoteCopy,
    RemoteStore,
    check_rank,
    has_clusters,
    join_blocks,
)
from tvmtile.tileop.copy import copy
from tvmtile.tileop.elementwise import converted, element, matching_offsets, over_region
from tvmtile.tileop.eviction import eviction_of
from tvmtile.tileop.mbarrier import InitMbarriers, Mbarrier, as_mbarrier
from tvmtile.tileop.registry import Decline, LoweringContext, lowering
from tvmtile.tileop.tma import check_mask
from tvmtile.tileop.tma.boxes import BoxCopy
from tvmtile.tileop.tma.copies import by_leader, check_fits, fence, load_for_blocks


def copy_cluster(
    src: Any,
    dst: Any,
    *,
    dst_block: Index | None = None,
    cluster_mask: int | None = None,
    remote_barrier: TileOperand | None = None,
    eviction_policy: str | None = None,
    coalesced_width: int | None = None,
    annotations: Mapping[str, object] | None = None,
    loop_layout: object = None,
) -> None:
    """Copy a tile to another block of the cluster, or one of a tensor to several blocks at once.

    Without `dst_block` and `cluster_mask` it is `T.copy`.

    Parameters
    ----------
    src, dst : buffer, region or element
        As of `T.copy`. `dst` is a shared tile.
    dst_block : int or Expr, optional
        The number in the cluster of the block whose tile `dst` is written; `src` is the block's own.
    remote_barrier : buffer or element, optional
        With `dst_block`: what `T.alloc_cluster_barrier` gave. The copy arrives once at the other
        block's mbarrier when all of the tile is there; that block waits with
        `T.mbarrier_wait_parity`. Without one, `T.cluster_sync` orders the copy. Until then `src`
        may not be written again.
    cluster_mask : int, optional
        Bit `i` is set for block `i` of the cluster: the first of them reads the tile from the tensor
        `src`, and all of them get that one. A block that is not among them copies its own. All blocks
        of the mask come to the copy equally often.
    eviction_policy
        As of `T.copy`, with `cluster_mask`.
    coalesced_width, annotations, loop_layout
        As of `T.copy`.

    Raises
    ------
    InvalidOperand
        If the cluster has no such block, `dst` is no shared tile, or the barrier none of a cluster.
    ShapeMismatch
        If the tiles differ in their extents.
    NoLowering
        When the kernel is compiled, if the target has no clusters, or no tensor map describes the tile
        of a multicast.
    """
    hints: dict[str, object] = {
        "eviction_policy": eviction_policy,
        "coalesced_width": coalesced_width,
        "loop_layout": loop_layout,
        **(annotations or {}),
    }
    if dst_block is not None and cluster_mask is not None:
        raise InvalidOperand(
            "T.copy_cluster: dst_block and cluster_mask are two ways to copy",
            help="give dst_block= for a tile of another block, cluster_mask= for one of a tensor",
        )
    if dst_block is None and cluster_mask is None:
        copy(src, dst, annotations=hints)
        return
    eviction = eviction_of("copy_cluster", hints["eviction_policy"])
    if cluster_mask is not None:
        del hints["eviction_policy"]
    warn_ignored("T.copy_cluster", **hints)
    src, dst = (
        check_operand("copy_cluster", "src", src),
        check_operand("copy_cluster", "dst", dst),
    )
    if cluster_mask is not None:
        check_mask("copy_cluster", cluster_mask)
        emit(Multicast(src, dst, cluster_mask, eviction))
        return
    if isinstance(dst_block, int):
        check_rank("copy_cluster", dst_block)
    barrier = () if remote_barrier is None else (_of_cluster(remote_barrier),)
    emit(CopyToBlock(src, dst, tirx.Cast("int32", as_expr(dst_block)), barrier))


def _of_cluster(barrier: ir.Expr) -> ir.TensorLoad:
    mbarrier = as_mbarrier("copy_cluster", barrier)
    if not is_cluster_mbarrier(buffer_of(mbarrier)):
        raise InvalidOperand(
            f"T.copy_cluster: {describe(buffer_of(mbarrier))} is no barrier of a cluster",
            help="allocate it by T.alloc_cluster_barrier",
        )
    return mbarrier


@dataclass(frozen=True, eq=False)
class _CopyInCluster(TileOp):
    """A copy to shared memory that other blocks take part in."""

    inputs = ("src",)
    outputs = ("dst",)

    src: ir.TensorRegion
    dst: ir.TensorRegion

    def check(self) -> None:
        if not is_shared(buffer_of(self.dst)):
            raise InvalidOperand(
                f"copy_cluster: {describe(self.dst)} is not in shared memory",
                help="blocks of a cluster reach each other's tiles of T.alloc_shared",
            )
        self.normalized()

    def normalized(self) -> _CopyInCluster:
        src, dst = matched_regions("copy_cluster", self.src, self.dst)
        return replace(self, src=src, dst=dst)


@tile_operator
class CopyToBlock(_CopyInCluster):
    """Copy a tile to that of the block `rank`; `barrier` holds its mbarrier."""

    name = "copy_to_block"

    rank: ir.Expr
    barrier: tuple[ir.TensorLoad, ...] = field(default=(), metadata=VARARGS)


@tile_operator
class Multicast(_CopyInCluster):
    """Copy a tile of a tensor, read once, to the blocks of a mask."""

    name = "multicast"

    blocks: int = 1
    eviction: str | None = None

    def check(self) -> None:
        super().check()
        src, dst = buffer_of(self.src), buffer_of(self.dst)
        if not is_global(src) or dtype_of(self.src) != dtype_of(self.dst):
            raise InvalidOperand(
                f"copy_cluster: {describe(src)} can't be copied to {describe(dst)} of several blocks",
                help="copy from a tensor of the same dtype, or give dst_block=",
            )


# Code ----------------------------------------------------------------------------------------------


@lowering(CopyToBlock, target="cuda", variant="elements", fits=has_clusters)
def _(op: CopyToBlock, context: LoweringContext) -> tirx.Stmt:
    """Each thread stores elements; when all have, one arrives at the mbarrier."""
    join_blocks(context)

    def stored(offsets: list[Index]) -> tirx.Stmt:
        source = element(op.src, matching_offsets(op.dst, op.src, offsets))
        value = converted(tirx.BufferLoad(buffer_of(op.src), source), dtype_of(op.dst))
        target = tirx.BufferLoad(buffer_of(op.dst), element(op.dst, offsets))
        return tirx.Evaluate(RemoteStore(target, value, op.rank).to_call())

    stores = over_region(op.dst, stored)
    if not op.barrier:
        return stores
    first = tirx.BufferLoad(buffer_of(op.dst), [r.min for r in ranges_of(op.dst)])
    box = [constant(r.extent) or 1 for r in ranges_of(op.dst)]
    arrival = RemoteArrival(op.barrier[0], op.rank, (first,), box=box)
    return seq([stores, by_leader([tirx.Evaluate(arrival.to_call())], context)])


_PIECE = 16
"""Bytes: what bulk copies are multiples of, and begin at multiples of."""
_MOST_RUNS = 64


def _is_bulk(op: CopyToBlock, context: LoweringContext) -> None:
    has_clusters(op, context)
    if not op.barrier:
        raise Decline("no mbarrier counts its bytes")
    if not is_shared(buffer_of(op.src)) or dtype_of(op.src) != dtype_of(op.dst):
        raise Decline(f"elements of {describe(op.src)} are converted, or not in shared memory")
    for side in (op.src, op.dst):
        if not has_plain_rows(buffer_of(side)):
            raise Decline(f"rows of {describe(side)} are swizzled")
    _runs(op, context)


def _runs(op: CopyToBlock, context: LoweringContext) -> list[tuple[Any, Any, int]]:
    """The first elements of the runs of memory that the tile consists of, and their bytes.

    Raises
    ------
    Decline
        If they are no whole pieces of 16 bytes.
    """
    item = bits_of(op.dst) // 8
    known = [constant(r.extent) for r in ranges_of(op.dst)]
    if None in known or any(constant(r.extent) is None for r in ranges_of(op.src)):
        raise Decline(f"{describe(op.dst)} has extents that are not constant")
    inner = min(_inner_axes(side) for side in (op.src, op.dst))
    extents = [extent or 0 for extent in known]
    axes = len(extents) - inner
    size = math.prod(extents[axes:]) * item
    count = math.prod(extents[:axes])
    if size % _PIECE or count > _MOST_RUNS:
        raise Decline(f"{describe(op.dst)} is {count} runs of {size} bytes")
    runs = []
    for number in range(count):
        offsets, rest = [0] * len(extents), number
        for axis in reversed(range(axes)):
            rest, offsets[axis] = divmod(rest, extents[axis])
        places = [
            element(op.src, matching_offsets(op.dst, op.src, offsets)),
            element(op.dst, offsets),
        ]
        for side, indices in zip((op.src, op.dst), places, strict=True):
            if not context.analyzer.can_prove_equal(
                tirx.floormod(offset_in_memory(buffer_of(side), indices) * item, _PIECE), 0
            ):
                raise Decline(f"{describe(side)} may not begin at a multiple of {_PIECE} bytes")
        source, target = (
            tirx.BufferLoad(buffer_of(side), at)
            for side, at in zip((op.src, op.dst), places, strict=True)
        )
        runs.append((target, source, size))
    return runs


def _inner_axes(side: ir.TensorRegion) -> int:
    """The number of last axes that are one run of memory."""
    count = 0
    for r, extent in zip(
        reversed(ranges_of(side)), reversed(buffer_of(side).ty.shape), strict=True
    ):
        count += 1
        if constant(r.extent) != constant(extent):
            break
    return count


@lowering(CopyToBlock, target="cuda", variant="bulk", priority=10, fits=_is_bulk)
def _(op: CopyToBlock, context: LoweringContext) -> tirx.Stmt:
    """One thread begins a bulk copy of each run; the other block's mbarrier counts the bytes."""
    join_blocks(context)
    runs = _runs(op, context)
    for tile in (buffer_of(op.src), buffer_of(op.dst)):
        context.align(tile, _PIECE)
    total = sum(size for _, _, size in runs)
    arrival = RemoteArrival(op.barrier[0], op.rank, bytes=total)
    item = bits_of(op.dst) // 8
    copies = [
        RemoteCopy(target, source, op.barrier[0], op.rank, bytes=size, box=[size // item])
        for target, source, size in runs
    ]
    begun: list[tirx.Stmt] = [tirx.Evaluate(each.to_call()) for each in (arrival, *copies)]
    return seq([*fence(buffer_of(op.src), context), by_leader(begun, context)])


def _fits_multicast(op: Multicast, context: LoweringContext) -> None:
    has_clusters(op, context)
    check_fits(op.src, op.dst, context)


@lowering(Multicast, target="cuda", variant="tma", fits=_fits_multicast)
def _(op: Multicast, context: LoweringContext) -> tirx.Stmt:
    """The first block copies to all when each has said, at its mbarrier, that its tile is free."""
    arrived: Any = _barriers("arrived")
    free: Any = _barriers("free")
    parity: ir.Var = tirx.decl_buffer((1,), "int32", name="parity", scope="local")
    context.setup += [
        *(tirx.AllocBuffer(each) for each in (arrived, free, parity)),
        tirx.Evaluate(InitMbarriers(arrived, [1]).to_call()),
        tirx.Evaluate(InitMbarriers(free, [op.blocks.bit_count()]).to_call()),
        tirx.BufferStore(parity, tirx.const(0, "int32"), [0]),
    ]
    join_blocks(context)
    all_there, all_free = tirx.BufferLoad(arrived, [0]), tirx.BufferLoad(free, [0])
    phase = tirx.BufferLoad(parity, [0])
    first = (op.blocks & -op.blocks).bit_length() - 1
    says_free = tirx.Evaluate(RemoteArrival(all_free, tirx.const(first, "int32")).to_call())
    awaits_all = tirx.Evaluate(Mbarrier(all_free, phase, "wait", of_cluster=True).to_call())
    copy = BoxCopy.of(op.src, op.dst, context.analyzer, op.eviction)
    begun = load_for_blocks(
        copy, all_there, op.blocks, context, arrives=True, before=(says_free, awaits_all)
    )
    return seq(
        [
            *fence(buffer_of(op.dst), context),
            by_leader(begun, context),
            tirx.Evaluate(Mbarrier(all_there, phase, "wait").to_call()),
            tirx.BufferStore(parity, 1 - phase, [0]),
        ]
    )


def _barriers(name: str) -> Any:
    return tirx.decl_buffer((1,), "uint64", name=name, scope=CLUSTER_BARRIER_SCOPE)
