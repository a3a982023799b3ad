"""`T.copy`: move a tile between two places, converting its dtype on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of, indices_of
from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import warn
from tvmtile.frontend.emit import check_operand, checked_call, emit
from tvmtile.frontend.kernel import current_kernel
from tvmtile.frontend.values import store_element
from tvmtile.ir.operands import (
    SAME_EXTENTS,
    constant,
    dtype_of,
    extents_of,
    matched_regions,
    origin_of,
    region,
    same_extents,
    warn_of_edges,
)
from tvmtile.ir.operators import TileOp, tile_operator
from tvmtile.ir.rewriting import seq
from tvmtile.ir.scopes import is_global
from tvmtile.ir.spans import current_span
from tvmtile.ir.types import Index, TileOperand
from tvmtile.tileop.elementwise import converted, element, matching_offsets, moved, over_region
from tvmtile.tileop.elementwise_operator import BY_SHARED_MEMORY, by_shared_tile
from tvmtile.tileop.eviction import eviction_of
from tvmtile.tileop.registry import LoweringContext, lowering


def copy(
    src: Any,
    dst: Any,
    *,
    coalesced_width: int | None = None,
    disable_tma: bool = False,
    eviction_policy: str | None = None,
    prefer_instruction: str | None = None,
    annotations: dict[str, Any] | None = None,
    loop_layout: object = None,
    impl: str | None = None,
) -> None:
    """Copy the tile `src` to `dst`, element by element, in any pair of scopes.

    Parameters
    ----------
    src, dst : buffer, region or element
        A whole buffer, a region `A[i0:i1, j0:j1]`, or an element `A[i, j]` at which the tile
        begins; its extents are then those of the other side. Axes of extent 1 may be left out. Of a
        region whose extents only the kernel knows, `A[: n - 1]`, the other side says how much is
        copied. The dtype of `dst` may differ: each element is converted. Two elements are one of
        each, also inside `T.Parallel`.
    disable_tma : bool
        Do not use the tensor memory accelerator: neither for the copy, nor for it in a loop with two
        roles, which the kernel then does not get.
    impl : str, optional
        How it is done, of what the target has: `elements`, `staged`, `ldmatrix`, `stmatrix`, `tma`,
        `tma_store` or `matrices`. The best that fits where absent; never `tma`.
    eviction_policy : str, optional
        What the L2 cache does with the tile where a tensor memory accelerator copies it, with a warning
        where none does: `evict_first`, `evict_last` or `evict_normal`.
    coalesced_width, prefer_instruction, loop_layout
        Accepted with a warning: the compiler chooses the instructions.
    annotations : dict, optional
        The same hints by name, and `direct`: on unified memory, whether operators read the source in
        place of the shared tile `dst`. By default they do where that reads each element once.

    Raises
    ------
    ShapeMismatch
        If the two tiles differ in their extents.
    OutOfBounds
        If a region certainly reaches outside its buffer; one that begins inside of its tensor, and
        reaches over the edge, is a warning.

    Notes
    -----
    Where a tile reaches over the edge of a tensor in global memory, elements outside read as zero
    and are not written. So ragged shapes need no code in a kernel. It is the same behind the end of a
    region whose extents only the kernel knows.
    """
    hints = {
        "disable_tma": disable_tma or None,
        "coalesced_width": coalesced_width,
        "eviction_policy": eviction_policy,
        "prefer_instruction": prefer_instruction,
        "loop_layout": loop_layout,
        **(annotations or {}),
    }
    eviction = eviction_of("copy", hints.pop("eviction_policy"))
    given = {name: hints.pop(name) for name in ("direct", "disable_tma") if name in hints}
    warn_ignored("T.copy", **hints)
    src, dst = check_operand("copy", "src", src), check_operand("copy", "dst", dst)
    if _store_element(src, dst):
        return
    for side in (src, dst):
        warn_of_edges("copy", side)
    src, dst, limits = _with_the_tiles_extents(src, dst)
    op = Copy(src, dst, **given, eviction=eviction, impl=impl)
    if any(limits):
        checked_call(op)
        T.add_to_parent(_moved_within(op.normalized(), *limits))
    else:
        emit(op)


_Limits: TypeAlias = dict[int, ir.Expr]
"""By axis of a region, its extent, where a tile may be longer."""


def _with_the_tiles_extents(src: Any, dst: Any) -> tuple[Any, Any, tuple[_Limits, _Limits]]:
    """Both sides, where only the kernel knows extents of one of them, `A[: n - 1]`, with the other's.

    A side that ends where its tensor does needs no limit: what is outside is never touched.
    """
    sides: list[Any] = [src, dst]
    limits: tuple[_Limits, _Limits] = {}, {}
    extents: list[list[Any]] = [extents_of(side) or [] for side in sides]
    axes = [[a for a, e in enumerate(own) if constant(e) != 1] for own in extents]
    if len(axes[0]) != len(axes[1]):  # a tile of one element has its axes all the same
        axes = [[*range(len(own))] for own in extents]
    pairs = zip(*axes, strict=True) if len(axes[0]) == len(axes[1]) else ()
    for pair in pairs:
        own = [extents[side][axis] for side, axis in enumerate(pair)]
        is_known = [constant(extent) is not None for extent in own]
        side = is_known.index(False) if is_known[0] != is_known[1] else None
        if side is None or not isinstance(sides[side], ir.TensorRegion):
            continue  # where they are not the same, that is an error
        axis, buffer, origin = pair[side], buffer_of(sides[side]), origin_of(sides[side])
        extents[side][axis] = own[1 - side]
        end, size = origin[axis] + own[side], buffer.ty.shape[axis]
        if not is_global(buffer) or not same_extents(end, size):
            limits[side][axis] = own[side]
        sides[side] = region(buffer, origin, extents[side])
    return sides[0], sides[1], limits


def _moved_within(op: Copy, within_src: _Limits, within_dst: _Limits) -> tirx.Stmt:
    """A copy that reads zero behind limits of its source and writes nothing behind its target's."""
    src, dst = op.src, op.dst

    def is_inside(offsets: Sequence[Index], limits: _Limits) -> Any:
        return tirx.all(*(offsets[axis] < limit for axis, limit in limits.items()))

    def body(offsets: list[Index]) -> tirx.Stmt:
        at_src = matching_offsets(dst, src, offsets)
        value: Any = converted(tirx.BufferLoad(buffer_of(src), element(src, at_src)), dtype_of(dst))
        if within_src:
            inside = is_inside(at_src, within_src)
            value = tirx.if_then_else(inside, value, tirx.const(0, dtype_of(dst)))
        store = tirx.BufferStore(buffer_of(dst), value, element(dst, offsets), span=current_span())
        if not within_dst:
            return store
        return tirx.IfThenElse(is_inside(offsets, within_dst), store, None)

    return over_region(dst, body)


def _store_element(src: Any, dst: Any) -> bool:
    """Inside `T.Parallel`, where tiles have no place, one element to one element is a store."""
    kernel = current_kernel()
    are_elements = isinstance(src, ir.TensorLoad) and isinstance(dst, ir.TensorLoad)
    if kernel is None or not kernel.parallel_depth or not are_elements:
        return False
    store_element(buffer_of(dst), tuple(indices_of(dst)), src)
    return True


def async_copy(
    src: TileOperand,
    dst: TileOperand,
    *,
    coalesced_width: int | None = None,
    annotations: dict[str, object] | None = None,
    loop_layout: object = None,
) -> None:
    """Copy a tile that is waited for with `T.ptx_wait_group` before it is read.

    Parameters
    ----------
    src, dst, coalesced_width, annotations, loop_layout
        As of `T.copy`.

    Notes
    -----
    The elements may arrive at any time from here to the wait; here they have arrived when the next
    statement begins.
    """
    copy(
        src,
        dst,
        coalesced_width=coalesced_width,
        annotations=annotations,
        loop_layout=loop_layout,
    )


@tile_operator
class Copy(TileOp):
    """Copy a tile from `src` to `dst`."""

    name = "copy"
    inputs = ("src",)
    outputs = ("dst",)
    role = "copy"

    src: ir.TensorRegion
    dst: ir.TensorRegion
    direct: bool | None = None
    disable_tma: bool | None = None
    eviction: str | None = None

    def check(self) -> None:
        self.normalized()

    def normalized(self) -> Copy:
        by_origin = "or name one by its first element, `A[i, j]`, to take the extents of the other"
        help = f"{SAME_EXTENTS}, {by_origin}"
        src, dst = matched_regions(self.name, self.src, self.dst, help, may_reach_over=True)
        return replace(self, src=src, dst=dst)

    def as_loops(self) -> tirx.Stmt:
        return moved(self.src, self.dst)


@lowering(Copy, target=("llvm", "metal", "cuda"), variant="elements")
def copy_elements(op: Copy, context: LoweringContext) -> tirx.Stmt:
    """`dst[i, j] = cast(src[i, j])` over the tile; edges are guarded by InsertBoundsGuards."""
    if op.eviction is not None:
        warn("T.copy: eviction_policy has no effect: threads copy the tile", context.location)
    return op.as_loops()


@lowering(Copy, **BY_SHARED_MEMORY)
def copy_staged(op: Copy, _: LoweringContext) -> tirx.Stmt:
    """Between fragments that lie in different threads: through shared memory."""
    name = f"{buffer_of(op.dst).name}_staged"
    tile, staged = by_shared_tile(op.src, dtype_of(op.dst), name)
    return seq([*staged, moved(tile, op.dst)])
