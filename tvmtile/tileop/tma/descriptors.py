"""`T.create_tma_descriptor` and `T.tma_load`: copies of boxes by a tensor map that a user describes.

`T.tma_copy` finds map, boxes and bytes by itself. Here a user says how a tensor is cut, in the words of
`cuTensorMapEncodeTiled`; the host still makes the map, before it launches the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tvm import DataType, ir, tirx

from tvmtile._tvm import buffer_of, indices_of, is_buffer_var, ranges_of
from tvmtile.errors import InvalidOperand, ShapeMismatch
from tvmtile.frontend.emit import emit
from tvmtile.frontend.values import as_expr
from tvmtile.ir.calls import takes_address
from tvmtile.ir.operands import bits_of, constant, describe, dtype_of, region
from tvmtile.ir.operators import VARARGS, OperatorEffects, TileOp, tile_operator
from tvmtile.ir.rewriting import retyped, seq, variables_of
from tvmtile.ir.scopes import is_global, is_shared
from tvmtile.ir.tensor_maps import TensorMap, tensor_map
from tvmtile.ir.types import Index
from tvmtile.layout.shared import has_plain_rows, swizzled
from tvmtile.tileop.eviction import eviction_of
from tvmtile.tileop.mbarrier import as_mbarrier
from tvmtile.tileop.registry import Decline, LoweringContext, SharedTile, lowering
from tvmtile.tileop.tma.boxes import MOST_ELEMENTS, PIECE, Box, BoxCopy
from tvmtile.tileop.tma.copies import loads
from tvmtile.tileop.tma.instructions import has_bulk_copies

_DTYPES = (
    *("uint8", "uint16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "bfloat16"),
)
"""By their numbers in `CUtensorMapDataType`."""
_SWIZZLES = (0, 32, 64, 128)
"""Bytes, by their numbers in `CUtensorMapSwizzle`."""
_PROMOTIONS = 4
_MOST_AXES = 5
_FIRST, _LAST = 3, 4
"""Arguments before those of the axes, and behind them."""


@dataclass(frozen=True)
class TmaDescriptor:
    """A tensor's description for copies of boxes: what `T.create_tma_descriptor` gives."""

    tensor: ir.Var
    """The tensor."""
    made_of: TensorMap
    """The description; axes are listed with the innermost first."""

    @property
    def box(self) -> list[int]:
        """Elements that a copy moves, along each axis, the innermost first."""
        return [int(constant(extent) or 0) for extent in self.made_of.box]

    @property
    def swizzle(self) -> int:
        """Bytes of the panels in which pieces of 16 bytes are exchanged; 0: none."""
        return _SWIZZLES[constant(self.made_of.options[1]) or 0]


def create_tma_descriptor(*args: Any) -> TmaDescriptor:
    """Describe a tensor to `T.tma_load`, as `cuTensorMapEncodeTiled` takes it.

    The host makes the descriptor before it launches the kernel. `T.tma_copy` needs none.

    Parameters
    ----------
    *args
        7 + 4 * rank of them, where those of an axis are listed with the innermost first:

        - the number of a dtype in `CUtensorMapDataType`: 6 is float16, 7 float32, 9 bfloat16;
        - the rank, 1 to 5;
        - the tensor, a whole one: `A.data`, `T.access_ptr(A)` or `A`;
        - the extents of the tensor, `rank` of them, which may be dynamic;
        - the bytes from one index to the next, along each axis; the first is the size of an element,
          the others are multiples of 16;
        - the extents of a box, at most 256; a row of it is a multiple of 16 bytes;
        - from one element of a box to the next, in the tensor: 1 along each axis;
        - interleave, 0; swizzle, 0 to 3 for none, 32, 64 and 128 bytes; promotion in the L2 cache, 0 to
          3 for none, 64, 128 and 256 bytes; what is read outside of the tensor, 0: zeros.

    Raises
    ------
    InvalidOperand
        If a number is none of these, or has its value in the kernel.
    """
    rank = constant(args[1]) if len(args) > 1 else None
    if rank is None or not 1 <= rank <= _MOST_AXES or len(args) != _FIRST + 4 * rank + _LAST:
        raise InvalidOperand(
            f"T.create_tma_descriptor: {len(args)} arguments",
            help="give dtype, rank and tensor; extents, strides, box and steps, `rank` of each with "
            "the innermost axis first; interleave, swizzle, l2_promotion and oob_fill: 7 + 4 * rank",
        )
    extents, strides, box, steps = (
        list(args[start : start + rank]) for start in range(_FIRST, len(args) - _LAST, rank)
    )
    code, options = constant(args[0]), [constant(each) for each in args[-_LAST:]]
    tensor = _tensor_of(args[2])
    if code is None or not 0 <= code < len(_DTYPES):
        raise _refused(f"the dtype is number {args[0]}", f"give one of {_listed(_DTYPES)}")
    dtype = _DTYPES[code]
    item = int(DataType(dtype).bits) // 8
    if item * 8 != bits_of(tensor):
        raise _refused(
            f"{describe(tensor)} is of {tensor.ty.dtype}, not of {dtype}",
            f"give the number of a dtype of as many bytes: {_listed(_DTYPES)}",
        )
    _check_strides(strides, item)
    _check_box(box, steps, item, options[1])
    interleave, _, promotion, outside = options
    if interleave != 0 or outside != 0:
        raise _refused(
            f"interleave={interleave}, oob_fill={outside}",
            "give 0 for both: boxes of plain rows, and zeros outside of the tensor",
        )
    if promotion is None or not 0 <= promotion < _PROMOTIONS:
        raise _refused(f"l2_promotion={promotion}", "give 0 to 3: none, 64, 128 or 256 bytes")
    made_of = TensorMap(tensor.data, dtype, extents, strides[1:], box, steps, args[-_LAST:])
    return TmaDescriptor(tensor, made_of)


def _check_strides(strides: Sequence[Index], item: int) -> None:
    first, *others = [constant(stride) for stride in strides]
    if first != item:
        raise _refused(
            f"the innermost stride is {strides[0]} bytes, of elements of {item}",
            "elements of a row lie side by side: the first stride is the size of one",
        )
    for stride in others:
        if stride is not None and (stride <= 0 or stride % PIECE):
            raise _refused(f"a stride of {stride} bytes", f"give multiples of {PIECE} bytes")


def _check_box(
    box: Sequence[Index], steps: Sequence[Index], item: int, swizzle: int | None
) -> None:
    extents = [constant(extent) for extent in box]
    row = (extents[0] or 0) * item
    if any(extent is None or not 1 <= extent <= MOST_ELEMENTS for extent in extents) or row % PIECE:
        raise _refused(
            f"a box of {', '.join(map(str, box))}, the innermost extent first",
            f"give numbers from 1 to {MOST_ELEMENTS}, and rows of multiples of {PIECE} bytes",
        )
    if any(constant(step) != 1 for step in steps):
        raise _refused(
            f"a box takes one element of {', '.join(map(str, steps))}",
            "give 1 along each axis, and a longer stride for an axis of which elements are left out",
        )
    if swizzle is None or not 0 <= swizzle < len(_SWIZZLES):
        raise _refused(f"swizzle={swizzle}", "give 0 to 3: none, 32, 64 or 128 bytes")
    if swizzle and row != _SWIZZLES[swizzle]:
        raise _refused(
            f"rows of a box are {row} bytes, with a swizzle of {_SWIZZLES[swizzle]}",
            f"give a box of {_SWIZZLES[swizzle] // item} elements a row: one load for each such panel",
        )


def _refused(what: str, remedy: str) -> InvalidOperand:
    return InvalidOperand(f"T.create_tma_descriptor: {what}", help=remedy)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"{number} {name}" for number, name in enumerate(names))


def _tensor_of(address: Any) -> ir.Var:
    """The whole tensor that an address is of."""
    element = address.args[0] if takes_address(address) else address
    is_first = not isinstance(element, ir.TensorLoad) or all(
        constant(index) == 0 for index in indices_of(element)
    )
    named = variables_of(element) if isinstance(element, ir.Node) else []
    tensors = [var for var in dict.fromkeys(named) if is_buffer_var(var)]
    if len(tensors) != 1 or not is_first or not is_global(tensors[0]):
        raise _refused(
            f"{address!r} is no address of a tensor",
            "give the data of a tensor in global memory, `A.data` or `T.access_ptr(A)`, and where a "
            "box begins to T.tma_load",
        )
    return tensors[0]


# Loads ---------------------------------------------------------------------------------------------


def tma_load(descriptor: Any, mbarrier: Any, smem_addr: Any, *coordinates: Any) -> None:
    """Begin to copy a box of a tensor into a shared tile, by the thread that comes here.

    The mbarrier gets the bytes: that so many are expected is said by `T.mbarrier_expect_tx` or
    `T.mbarrier_arrive_expect_tx`. Let in one thread. `T.tma_copy` does all of that.

    Parameters
    ----------
    descriptor : TmaDescriptor
        What `T.create_tma_descriptor` gives.
    mbarrier : buffer or element
        What `T.alloc_barrier` gives.
    smem_addr : Expr, buffer or element
        `T.access_ptr(tile[i, j], "w")`, a tile, or an element of one: where the box begins. Its extents
        are those of the last axes of the tile. A tile whose layout is not fixed gets the descriptor's
        swizzle; where it has another one, the kernel is refused.
    *coordinates : int or Expr
        Where the box begins in the tensor, as many as the descriptor has axes, the innermost first; and
        behind them perhaps the eviction policy, 0 to 2 (`evict_normal`, `evict_first`, `evict_last`).

    Raises
    ------
    InvalidOperand
        If an argument is none of these.
    ShapeMismatch
        If the tile has no such axes, or the box is of elements of another size.
    NoLowering
        When the kernel is compiled, if the box is no run of the tile's memory.
    """
    if not isinstance(descriptor, TmaDescriptor):
        raise InvalidOperand(
            f"T.tma_load: {descriptor!r} is no descriptor",
            help="give what T.create_tma_descriptor returns in the kernel; a kernel is called with "
            "tensors, not with descriptors. T.tma_copy(A[y, x], tile, barrier=bar) needs none",
        )
    rank = len(descriptor.box)
    given, policy = coordinates[:rank], coordinates[rank:]
    if len(given) < rank or len(policy) > 1:
        raise InvalidOperand(
            f"T.tma_load: {len(coordinates)} coordinates, of a descriptor of {rank} axes",
            help="give one for each axis, the innermost first, and the eviction policy at most",
        )
    eviction = eviction_of("tma_load", (constant(policy[0]) if policy else None) or None)
    tensor, tile = descriptor.tensor, _tile_of(smem_addr, descriptor)
    shape = [tirx.const(0, "int32")] * len(tensor.ty.shape), list(tensor.ty.shape)
    places = tuple(as_expr(place) for place in reversed(given))
    barrier = as_mbarrier("tma_load", mbarrier)
    address = tensor_map(descriptor.made_of)
    emit(
        TmaLoad(
            region(tensor, *shape), tile, address, barrier, places, descriptor.swizzle, eviction
        )
    )


def _tile_of(address: Any, descriptor: TmaDescriptor) -> ir.TensorRegion:
    """The region of a tile that a box fills."""
    element = address.args[0] if takes_address(address) else address
    if isinstance(element, ir.TensorRegion):
        element = tirx.BufferLoad(buffer_of(element), [r.min for r in ranges_of(element)])
    if is_buffer_var(element):
        element = tirx.BufferLoad(element, [0] * len(element.ty.shape))
    if not isinstance(element, ir.TensorLoad) or not is_shared(buffer_of(element)):
        raise InvalidOperand(
            f"T.tma_load: {address!r} is no address in shared memory",
            help='give `T.access_ptr(tile[i, j], "w")` of a tile of T.alloc_shared',
        )
    tile, axes = buffer_of(element), len(indices_of(element))
    outer = list(reversed(descriptor.box))
    extents = [1] * (axes - len(outer)) + outer[-axes:]
    whole = [constant(extent) for extent in tile.ty.shape]
    fits = all(
        own is not None and extent <= own for extent, own in zip(extents, whole, strict=True)
    )
    if math.prod(extents) != math.prod(outer) or not fits:
        raise ShapeMismatch(
            f"T.tma_load: a box of {outer}, the innermost extent last, and {describe(tile)}",
            help="the extents of the box are along the last axes of the tile",
        )
    bits = int(DataType(descriptor.made_of.dtype).bits)
    if bits_of(tile) != bits:
        raise ShapeMismatch(
            f"T.tma_load: {describe(tile)} has elements of {bits_of(tile)} bits, the box of {bits}",
            help="give tile and descriptor one dtype",
        )
    return region(tile, indices_of(element), extents)


@tile_operator
class TmaLoad(TileOp):
    """Begin to copy the box of a tensor map into a tile, by each thread that comes."""

    name = "tma_load"
    inputs = ("src",)
    outputs = ("dst",)
    by = "thread"

    src: ir.TensorRegion
    dst: ir.TensorRegion
    tensor_map: ir.Expr
    barrier: ir.TensorLoad
    coordinates: tuple[Any, ...] = field(metadata=VARARGS)
    swizzle: int = 0
    eviction: str | None = None

    def effects(self) -> OperatorEffects:
        return super().effects()._replace(completes_on=self.barrier)

    def normalized(self) -> TmaLoad:
        return self


def _copy_of(op: TmaLoad, context: LoweringContext) -> BoxCopy:
    """The box in the tile, which is to have the descriptor's swizzle."""
    copy = BoxCopy.of(op.dst, op.dst, context.analyzer, op.eviction)
    if copy.swizzle != op.swizzle:
        raise Decline(
            f"{describe(op.dst)} lies {_in_words(copy.swizzle)}, and the descriptor writes "
            f"{_in_words(op.swizzle)}"
        )
    if len(copy.boxes) > 1:
        raise Decline(f"{describe(op.dst)} is {len(copy.boxes)} runs of memory, and the box is one")
    box = Box(copy.boxes[0].tile, list(op.coordinates))
    return replace(copy, boxes=[box], tensor_map=op.tensor_map)


def _in_words(swizzle: int) -> str:
    return f"in panels of {swizzle} bytes, swizzled" if swizzle else "in plain rows"


def _fits(op: TmaLoad, context: LoweringContext) -> None:
    has_bulk_copies(op, context)
    tile = buffer_of(op.dst)
    if op.swizzle and has_plain_rows(tile):
        reason = context.why_plain(tile, [op.swizzle])
        layout = swizzled([constant(e) or 0 for e in tile.ty.shape], dtype_of(op.dst), op.swizzle)
        if reason is not None or layout is None:
            reason = reason or f"its rows do not consist of {op.swizzle} bytes"
            raise Decline(f"the descriptor swizzles {describe(op.dst)}, and {reason}")
        starts, extents = zip(*((r.min, r.extent) for r in ranges_of(op.dst)), strict=True)
        op = replace(op, dst=region(retyped(tile, layout=layout), starts, extents))
    _copy_of(op, context)


def _wanted(op: TmaLoad, context: LoweringContext) -> dict[ir.Var, SharedTile]:
    del context
    return {buffer_of(op.dst): SharedTile(op.swizzle, required=True)} if op.swizzle else {}


@lowering(TmaLoad, target="cuda", variant="tma", fits=_fits, shared=_wanted)
def _(op: TmaLoad, context: LoweringContext) -> tirx.Stmt:
    """One instruction."""
    return seq(loads(_copy_of(op, context), op.barrier, context))
