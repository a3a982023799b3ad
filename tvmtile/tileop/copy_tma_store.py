"""`T.copy` of sums from registers to a tensor on Hopper, through shared memory, by tensor maps.

A warpgroup has a part of the sums. It goes through shared memory piece by piece, each 64 rows of at
most 128 bytes, in which `stmatrix` meets no conflicts and a tensor map finds the elements; elements of
32 bits, which `stmatrix` does not know, go there two at a time. A piece is stored while the next one
is written, and the last ones while the kernel goes on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, is_buffer_var, ranges_of
from tvmtile.analysis.effects import Effect
from tvmtile.analysis.kernel_info import info_of
from tvmtile.ir.annotations import BLOCKS_ANNOTATION
from tvmtile.ir.asynchronous import BULK_STORE, wait
from tvmtile.ir.operands import as_region, bits_of, describe, dtype_of, is_whole, region
from tvmtile.ir.rewriting import for_loop, seq
from tvmtile.ir.scopes import is_fragment, is_global
from tvmtile.ir.threads import REGISTER_FILE, WARP_SIZE, WARPGROUP
from tvmtile.ir.types import Index
from tvmtile.layout.fragment import THREAD, Digit, FragmentLayout, layout_of, with_weights
from tvmtile.tileop.copy import Copy
from tvmtile.tileop.copy_ldmatrix import MATRICES, LoadedMatrices, consists_of_matrices
from tvmtile.tileop.elementwise import converted, moving_axes
from tvmtile.tileop.mbarrier import ProxyFence
from tvmtile.tileop.registry import Decline, Lacking, LoweringContext, lowering
from tvmtile.tileop.staging import allocate, allocated, bytes_taken, swizzled_tile, uses_of
from tvmtile.tileop.tma.boxes import BoxCopy
from tvmtile.tileop.tma.copies import (
    barrier_of_group,
    barrier_of_warpgroup,
    by_leader,
    check_stores,
    store,
)
from tvmtile.tileop.tma.instructions import BulkGroup

_ROWS = 64
"""Of a piece: the four warps of a warpgroup have 16 each."""
_ROW_BYTES = 128
_BITS = (16, 32)
"""Of an element."""
_SLOTS = 2
"""Pieces of a warpgroup in shared memory: one is written while the other one is stored."""


@dataclass(frozen=True)
class _WarpgroupParts:
    """The parts of a fragment that warpgroups have, of whole rows and columns."""

    groups: int
    """How many warpgroups there are."""
    part: tuple[int, int]
    piece: tuple[int, int]
    """Rows and columns that a warpgroup has, and those that go through shared memory at once."""

    @classmethod
    def of(cls, layout: FragmentLayout, threads: int, bits: int) -> _WarpgroupParts:
        """Raise `Decline` where the sums do not lie as warpgroups hold them."""
        if len(layout.axes) != 2 or not consists_of_matrices(layout) or layout.replicas:
            raise Decline("the elements do not lie as matrix instructions hold sums")
        rows, columns = (_size_of_part(axis) for axis in layout.axes)
        if _warps_along(layout.axes[0]) != [_WARPS] or _warps_along(layout.axes[1]):
            raise Decline("warps do not hold 16 of 64 rows each")
        width = math.gcd(columns, _ROW_BYTES * 8 // bits)
        return cls(threads // WARPGROUP, (rows, columns), (_ROWS, width))

    def pieces(self) -> Iterator[tuple[int, int]]:
        """Row and column in a part at which each begins."""
        (rows, columns), (height, width) = self.part, self.piece
        return itertools.product(range(0, rows, height), range(0, columns, width))


_WARPS = (16, Digit(4, THREAD, WARP_SIZE))
"""The rows of a warp, and the digit of a row that is the warp's number in its warpgroup."""


def _warps_along(axis: tuple[Digit, ...]) -> list[tuple[int, Digit]]:
    """The digits that are numbers of warps in a warpgroup, with what they count."""
    return [
        (w, d) for w, d in with_weights(axis) if d.is_thread and WARP_SIZE <= d.stride < WARPGROUP
    ]


def _size_of_part(axis: tuple[Digit, ...]) -> int:
    """The extent that a warpgroup has of an axis: one run, so that its number is the first digit."""
    if any(map(_counts_groups, axis[1:])):
        raise Decline("a warpgroup holds rows or columns that do not follow each other")
    return math.prod(digit.extent for digit in axis if not _counts_groups(digit))


def _counts_groups(digit: Digit) -> bool:
    return digit.is_thread and digit.stride >= WARPGROUP


# Where it fits -----------------------------------------------------------------------------------


def _fits(op: Copy, context: LoweringContext) -> None:
    source, tensor = buffer_of(op.src), buffer_of(op.dst)
    if not is_fragment(source) or not is_global(tensor):
        raise Decline("it is no copy from a fragment to a tensor")
    if op.disable_tma:
        raise Decline("it is not to use the tensor memory accelerator")
    if not context.gpu.has_warpgroup_products:
        raise Lacking(f"{context.gpu.name} has no wgmma, whose sums are copied so")
    if bits_of(op.dst) not in _BITS:
        raise Decline(f"{describe(tensor)} has no elements of 16 or 32 bits")
    if not is_whole(op.src) or len(moving_axes(op.dst)) != 2:
        raise Decline(f"{describe(op.src)} is a part of its fragment, or no matrix")
    found = uses_of(tensor, context)
    if len(found) > 1:
        _check_others(op, found, context)


def _check_others(op: Copy, found: Sequence[Effect], context: LoweringContext) -> None:
    """Decline, unless the tensor is used by copies of fragments alone, each to a part of its own."""
    tensor = buffer_of(op.dst)
    parts = [
        ranges_of(use.operator.dst)
        for use in found
        if isinstance(use.operator, Copy)
        and is_fragment(buffer_of(use.operator.src))
        and tensor.same_as(buffer_of(use.operator.dst))
    ]
    if len(parts) < len(found):
        raise Decline(f"the kernel uses {describe(tensor)} elsewhere too")
    are_apart = all(_are_apart(*pair, context) for pair in itertools.combinations(parts, 2))
    if not are_apart or any(_moves(*each, context) for each in zip(parts, found, strict=True)):
        raise Decline(f"the kernel may store other values in the same part of {describe(tensor)}")


def _are_apart(
    part: Sequence[ir.Range], other: Sequence[ir.Range], context: LoweringContext
) -> bool:
    """Tell whether two parts of a tensor have no element in common."""
    return any(
        context.analyzer.can_prove(tirx.any(a.min + a.extent <= b.min, b.min + b.extent <= a.min))
        for a, b in zip(part, other, strict=True)
    )


def _moves(part: Sequence[ir.Range], use: Effect, context: LoweringContext) -> bool:
    """Tell whether a block may store into another part of the tensor in a later iteration.

    Another warpgroup may have stored some of that before. Iterations that do the work of other blocks
    store apart from each other.
    """
    behind = info_of(context.launch.body).behind(r.min for r in part)
    changes = {loop.loop_var for loop in use.around if BLOCKS_ANNOTATION not in loop.annotations}
    return any(var in changes or (is_buffer_var(var) and not is_global(var)) for var in behind)


def _fits_layouts(op: Copy, context: LoweringContext) -> None:
    parts = _parts(op, context)
    staged = _staged(op, parts, 1, context)
    check_stores(*_piece(op, parts, staged, 0, (0, 0), context), context)
    if _slots(op, parts, context) < 1:
        raise Decline(f"{parts.groups * _bytes(op, parts)} bytes of shared memory are not left")


def _parts(op: Copy, context: LoweringContext) -> _WarpgroupParts:
    layout = layout_of(buffer_of(op.src))
    assert layout is not None, "it is asked for after they are inferred"
    return _WarpgroupParts.of(layout, context.threads, bits_of(op.dst))


def _bytes(op: Copy, parts: _WarpgroupParts) -> int:
    return math.prod(parts.piece) * bits_of(op.dst) // 8


def _slots(op: Copy, parts: _WarpgroupParts, context: LoweringContext) -> int:
    """The pieces of each warpgroup that have room, with as many blocks at once as without."""
    for slots in range(1, _SLOTS + 1):
        if allocated(_staged(op, parts, slots, context), context) is not None:
            return slots
    total = context.gpu.shared_memory
    taken = bytes_taken(op, context) + 8 * _ROW_BYTES  # pieces begin where their swizzle does
    sums = math.prod(parts.part) // WARPGROUP
    registers = context.launch.num_threads * (sums + _OTHER_REGISTERS)
    blocks = max(1, min(total // taken, REGISTER_FILE // registers))
    return min(_SLOTS, (total // blocks - taken) // (parts.groups * _bytes(op, parts)))


_OTHER_REGISTERS = 40
"""Of a thread, beside its sums: few, so that more blocks are thought to run at once, not fewer."""


# Code --------------------------------------------------------------------------------------------


@lowering(
    Copy,
    target="cuda",
    variant="tma_store",
    priority=30,
    unit=WARPGROUP,
    fits=_fits,
    fits_layouts=_fits_layouts,
)
def copy_tma_store(op: Copy, context: LoweringContext) -> tirx.Stmt:
    """Each warpgroup writes its pieces into shared memory, and one thread of it stores them.

    Before the first piece what an earlier copy has stored is waited for, so that later values are
    written later; before others, that a slot may be written again.
    """
    parts = _parts(op, context)
    # There is one: copies before this one may need less than was reserved for them when it was chosen,
    # so that another block would fit.
    slots = max(1, _slots(op, parts, context))
    staged = allocate(_staged(op, parts, slots, context), context)
    is_apart = _stores_apart(op, context)
    together = barrier_of_warpgroup() if is_apart else barrier_of_group(context)
    done = BulkGroup("wait", 0, arrived=True).expanded(context.target)
    statements = [by_leader([done], context, WARPGROUP), together]
    for number, piece in enumerate(parts.pieces()):
        slot = number % slots
        if number >= slots:
            ready = wait(BULK_STORE.name, slots - 1)
            statements += [by_leader([ready], context, WARPGROUP), together]
        matrices = _Piece(op, as_region(staged), context, slot, piece, parts)
        sides = _piece(op, parts, staged, slot, piece, context)
        copy = BoxCopy.of(*sides, context.analyzer, op.eviction)
        statements += [
            matrices.staged(),
            tirx.Evaluate(ProxyFence().to_call()),
            together,
            by_leader(store(copy, context), context, WARPGROUP),
        ]
    return seq(statements)


def _stores_apart(op: Copy, context: LoweringContext) -> bool:
    """Tell whether warpgroups need not wait for each other, and have something to go on with.

    Where blocks end behind the copy, it takes longer (`benchmarks/h200/decisions.md`).
    """
    found = uses_of(buffer_of(op.dst), context)
    is_repeated = any(
        loop.thread_binding is None and loop.kind == tirx.ForKind.SERIAL
        for use in found
        for loop in use.around
    )
    return is_repeated and not any(_moves(ranges_of(op.dst), use, context) for use in found)


class _Piece(LoadedMatrices):
    """The matrices of a piece, and their places in its slot."""

    def __init__(
        self,
        op: Copy,
        staged: ir.TensorRegion,
        context: LoweringContext,
        slot: int,
        piece: tuple[int, int],
        parts: _WarpgroupParts,
    ) -> None:
        layout = layout_of(buffer_of(op.src))
        assert layout is not None, "it has been checked"
        self._slot, self._piece_at, self._size = slot, piece, parts.piece
        super().__init__(op.src, staged, layout, context.thread_index)
        self._group_index = tirx.floordiv(context.thread_index, WARPGROUP)

    def _most_together(self, axis: int, weight: int) -> int:
        """The matrices of the piece: what lies behind it goes through another slot."""
        counts = range(MATRICES, 1, -1)
        return next((n for n in counts if self._size[axis] % (weight * n) == 0), 1)

    def staged(self) -> tirx.Stmt:
        """The statements that write the piece into its slot."""
        if bits_of(self._shared) == _BITS[0]:
            return self.stored(self._of_piece())
        return seq([pair for origin in self._of_piece() for pair in self._pairs(origin)])

    def _pairs(self, origin: list[Index]) -> Iterator[tirx.Stmt]:
        """Stores of the two elements of each matrix that the lane holds, which lie side by side."""
        dtype, axis = dtype_of(self._shared), -2 if self._trans else -1
        kind = tirx.ForKind.UNROLLED if self._trans else tirx.ForKind.VECTORIZED
        for first in itertools.islice(self._elements(origin), 0, None, 2):
            side = tirx.Var("side", "int32")
            source, target = list(first), self.indices_of(*first)
            source[axis], target[axis] = source[axis] + side, target[axis] + side
            value = converted(tirx.BufferLoad(buffer_of(self._fragment), source), dtype)
            yield for_loop(side, 2, tirx.BufferStore(buffer_of(self._shared), value, target), kind)

    def _of_piece(self) -> Iterator[list[Index]]:
        """The first matrices of the instructions that would store it."""
        for origin in self.origins():
            inside = (
                start <= place < start + size
                for place, start, size in zip(origin, self._piece_at, self._size, strict=True)
            )
            if all(inside):
                yield origin

    def indices_of(self, row: ir.Expr, column: ir.Expr) -> list[ir.Expr]:
        place = (tirx.floormod(n, size) for n, size in zip((row, column), self._size, strict=True))
        return [tirx.const(self._slot, "int32"), self._group_index, *place]


def _staged(op: Copy, parts: _WarpgroupParts, slots: int, context: LoweringContext) -> ir.Var:
    """The slots of each warpgroup, as rows that are swizzled."""
    return swizzled_tile(op, (slots, parts.groups, *parts.piece), dtype_of(op.dst), context)


def _piece(
    op: Copy,
    parts: _WarpgroupParts,
    staged: ir.Var,
    slot: int,
    piece: tuple[int, int],
    context: LoweringContext,
) -> tuple[ir.TensorRegion, ir.TensorRegion]:
    """A piece, and its place in the tensor."""
    layout = layout_of(buffer_of(op.src))
    assert layout is not None, "it has been checked"
    group = tirx.floordiv(context.thread_index, WARPGROUP)
    starts, extents = [r.min for r in ranges_of(op.dst)], [1] * len(ranges_of(op.dst))
    for axis, digits, offset, extent in zip(
        moving_axes(op.dst), layout.axes, piece, parts.piece, strict=True
    ):
        starts[axis] = starts[axis] + offset
        for weight, digit in with_weights(digits):
            if _counts_groups(digit):
                part = digit.value_in(group * WARPGROUP, layout.threads)
                starts[axis] = starts[axis] + part * weight
        extents[axis] = extent
    source = region(staged, [tirx.const(slot, "int32"), group, 0, 0], [1, 1, *parts.piece])
    return source, region(buffer_of(op.dst), starts, extents)
