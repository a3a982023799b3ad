"""Additions of a fragment to a tensor by the tensor memory accelerator: one thread begins them all."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.ir.asynchronous import BULK_STORE, wait
from tvmtile.ir.operands import as_region, constant, describe, dtype_of, is_whole
from tvmtile.ir.operators import TileOp
from tvmtile.ir.rewriting import seq
from tvmtile.ir.scopes import is_fragment, is_global
from tvmtile.layout.fragment import layout_of
from tvmtile.tileop.atomic import AtomicTile, names_tile
from tvmtile.tileop.copy import Copy
from tvmtile.tileop.elementwise import moving_axes
from tvmtile.tileop.mbarrier import ProxyFence
from tvmtile.tileop.registry import Decline, LoweringContext, lowering
from tvmtile.tileop.staging import allocate, bytes_of, bytes_taken, swizzled_tile, uses_of
from tvmtile.tileop.tma.boxes import BoxCopy
from tvmtile.tileop.tma.copies import barrier_of_group, by_leader, check_stores, store
from tvmtile.tileop.tma.instructions import has_bulk_copies


def _fits(op: AtomicTile, context: LoweringContext) -> None:
    if not names_tile(op.src) or not is_fragment(buffer_of(op.src)) or not is_whole(op.src):
        raise Decline("what is added is no whole fragment")
    if op.disable_tma:
        raise Decline("it is not to use the tensor memory accelerator")
    if not is_global(buffer_of(op.dst)) or len(moving_axes(op.dst)) != _AXES:
        raise Decline(f"{describe(buffer_of(op.dst))} is not updated by matrices in global memory")
    if (op.kind, op.order) != ("add", "relaxed") or dtype_of(op.dst) != "float32":
        raise Decline("it is no addition of float32 in any order")
    if dtype_of(op.src) != dtype_of(op.dst):
        raise Decline("what is added has another dtype")
    if not all(_is_addition(use.operator) for use in uses_of(buffer_of(op.dst), context)):
        raise Decline(f"the kernel uses {describe(buffer_of(op.dst))} elsewhere too")
    has_bulk_copies(op, context)
    check_stores(as_region(_staged(op, context)), op.dst, context)


_AXES = 2


def _is_addition(op: TileOp | None) -> bool:
    """Tell whether an operator adds a fragment to a tile, in any order with additions under way."""
    return (
        isinstance(op, AtomicTile)
        and names_tile(op.src)
        and is_fragment(buffer_of(op.src))
        and (op.kind, op.order) == ("add", "relaxed")
    )


def _fits_layouts(op: AtomicTile, context: LoweringContext) -> None:
    layout = layout_of(buffer_of(op.src))
    if layout is None or layout.replicas:
        raise Decline("several threads hold the same element")
    size, room = bytes_of(buffer_of(op.src)), context.gpu.shared_memory - bytes_taken(op, context)
    if size > room:
        raise Decline(f"{size} bytes of shared memory are not left")


@lowering(
    AtomicTile,
    target="cuda",
    variant="tma_add",
    priority=10,
    fits=_fits,
    fits_layouts=_fits_layouts,
)
def atomic_tma_add(op: AtomicTile, context: LoweringContext) -> tirx.Stmt:
    """The fragment goes through a shared tile, which is added box by box while the kernel goes on.

    Such additions to one tensor go through the same tile; before it is written again, what is under
    way is waited for. Elements outside of the tensor are left out by the tensor map.
    """
    staged = allocate(_staged(op, context), context)
    copy = BoxCopy.of(as_region(staged), op.dst, context.analyzer)
    together = barrier_of_group(context)
    written = Copy(op.src, as_region(staged)).as_loops()
    assert written is not None, "a copy of elements"
    return seq(
        [
            by_leader([wait(BULK_STORE.name, 0)], context),
            together,
            written,
            tirx.Evaluate(ProxyFence().to_call()),
            together,
            by_leader(store(copy, context, "add"), context),
        ]
    )


def _staged(op: AtomicTile, context: LoweringContext) -> ir.Var:
    """A shared tile for the fragment, in panels of rows that are swizzled."""
    shape = [constant(r.extent) or 0 for r in ranges_of(op.src)]
    return swizzled_tile(op, shape, dtype_of(op.dst), context)
