"""Vectors of a CPU in lowerings: strips of an axis, columns side by side, running totals, neighbours.

A vector here may be wider than a register: LLVM splits it, which gives the independent partial
results that hide the latency of an addition.

A total lives in an array on the stack of its own that is loaded and stored as a whole, so LLVM keeps
it in registers. It must not be a `Bind` instead: TVM 0.27's BF16ComputeLegalize overlooks a cast from
bfloat16 there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import DataType, ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import buffer_of, indices_of, ranges_of
from tvmtile.ir.operands import as_int32, constant, dtype_of
from tvmtile.ir.rewriting import for_loop, seq
from tvmtile.ir.scopes import is_global
from tvmtile.ir.types import Index
from tvmtile.target import CpuCapability
from tvmtile.tileop.elementwise import moving_axes, over_region
from tvmtile.tileop.registry import Decline, LoweringContext

# Registers that a vector may span: the latency of an addition (4 cycles) is hidden.
_REGISTERS = 4
_INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_DTYPES = ("float16", "bfloat16", "float32", "float64", *_INTEGERS)


def is_vectorizable(operand: ir.TensorRegion, axis: int) -> bool:
    """Tell whether neighbours along an axis are neighbours in memory, of a dtype with vectors."""
    strides = buffer_of(operand).ty.strides
    contiguous = not strides or constant(strides[-1]) == 1
    return contiguous and axis == len(ranges_of(operand)) - 1 and dtype_of(operand) in _DTYPES


def lies_inside(operand: ir.TensorRegion, analyzer: Analyzer) -> bool:
    """Tell whether a region certainly does not reach over the edge of its buffer.

    Tiles are never accessed outside; a tensor in global memory may be, and a vector that is partly
    outside can't be guarded.
    """
    buffer = buffer_of(operand)
    if not is_global(buffer):
        return True
    return all(
        analyzer.can_prove(r.min >= 0) and analyzer.can_prove(r.min + r.extent <= extent)
        for r, extent in zip(ranges_of(operand), buffer.ty.shape, strict=True)
    )


def widest(cpu: CpuCapability, dtype: str) -> int:
    """Elements of the widest vector to compute with."""
    return _REGISTERS * cpu.lanes(int(DataType(dtype).bits))


def strips(extent: int, widest: int) -> list[tuple[int, int, int]]:
    """Cut an axis into vectors: as many of the widest as fit, then one of each power of two.

    A group is where it begins, the count of its vectors, and their lanes.

    Examples
    --------
    >>> strips(77, 16)
    [(0, 4, 16), (64, 1, 8), (72, 1, 4), (76, 1, 1)]
    """
    groups = []
    start, lanes = 0, widest
    while lanes and start < extent:
        count = (extent - start) // lanes
        if count:
            groups.append((start, count, lanes))
        start += count * lanes
        lanes //= 2
    return groups


def ramp(base: Index, lanes: int) -> Any:
    """The indices of `lanes` neighbours."""
    return tirx.Ramp(as_int32(base), tirx.const(1, "int32"), lanes) if lanes > 1 else base


def lane_of(load: ir.TensorLoad, lane: int) -> ir.TensorLoad:
    """The load of one lane of a vector of neighbours."""
    *outer, last = indices_of(load)
    assert isinstance(last, tirx.Ramp), "a vector of neighbours"
    return tirx.BufferLoad(buffer_of(load), [*outer, last.base + lane * last.stride])


def vector_dtype(dtype: str, lanes: int) -> str:
    """The dtype of so many elements."""
    return dtype if lanes == 1 else f"{dtype}x{lanes}"


def splat(value: ir.Expr, lanes: int) -> ir.Expr:
    """`value` in every lane."""
    return tirx.Broadcast(value, lanes) if lanes > 1 else value


def loop(name: str, extent: Index, body: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
    """A serial loop; one of a single iteration is its body."""
    if constant(extent) == 1:
        return body(0)
    var = tirx.Var(name, "int32")
    return for_loop(var, extent, body(var))


def innermost(operand: ir.TensorRegion) -> int:
    """The last axis along which a region has more than one element."""
    return max(moving_axes(operand), default=len(ranges_of(operand)) - 1)


def check_columns(
    src: ir.TensorRegion, dst: ir.TensorRegion, dim: int, done: str, context: LoweringContext
) -> None:
    """Raise `Decline` unless vectors hold neighbouring columns along `dim` of `src`, and of `dst`."""
    axis = innermost(src)
    if constant(ranges_of(src)[axis].extent) is None or axis == dim:
        raise Decline(f"there is no axis of constant extent inside the {done} one")
    if not is_vectorizable(src, axis) or not is_vectorizable(dst, innermost(dst)):
        raise Decline("the elements along the innermost axis are not neighbours in memory")
    if not all(lies_inside(operand, context.analyzer) for operand in (src, dst)):
        raise Decline("the tiles may reach over the edge of a tensor")


def over_columns(
    src: ir.TensorRegion, dim: int, widest: int, body: Callable[[list[Index], int], tirx.Stmt]
) -> tirx.Stmt:
    """Loops over the axes of `src` but `dim`, over the innermost by vectors of up to `widest` lanes.

    `body` makes a statement of the offsets of a vector's first element, and how many lanes it has.
    """
    axis = innermost(src)
    groups = strips(constant(ranges_of(src)[axis].extent) or 1, widest)

    def columns(offsets: list[Index]) -> tirx.Stmt:
        def group(start: int, count: int, lanes: int) -> tirx.Stmt:
            def vector(s: Any) -> tirx.Stmt:
                return body([*offsets[:axis], start + s * lanes, *offsets[axis + 1 :]], lanes)

            return loop("s", count, vector)

        return seq([group(*strip) for strip in groups])

    return over_region(src, columns, without=(dim, axis), kind=tirx.ForKind.SERIAL)


class Total:
    """A running vector of `lanes` partial results, in registers."""

    def __init__(self, dtype: str, lanes: int) -> None:
        self.dtype, self.lanes = dtype, lanes
        self._buffer = tirx.decl_buffer((lanes,), dtype, name="total", scope="local")

    @property
    def allocation(self) -> tirx.Stmt:
        """The statement that must come first."""
        return tirx.AllocBuffer(self._buffer)

    @property
    def value(self) -> ir.Expr:
        """The vector."""
        return tirx.BufferLoad(self._buffer, [ramp(0, self.lanes)])

    def set(self, value: ir.Expr) -> tirx.Stmt:
        """Replace the vector."""
        return tirx.BufferStore(self._buffer, value, [ramp(0, self.lanes)])

    def half(self, upper: bool) -> ir.Expr:
        """The lower or the upper half of the lanes."""
        count = self.lanes // 2
        lanes: Sequence[int] = range(count, 2 * count) if upper else range(count)
        return tirx.Shuffle([self.value], list(lanes))

    def starting_from(self, identity: ir.Expr) -> tirx.Stmt:
        """Allocate it with the same value in every lane."""
        return seq([self.allocation, self.set(splat(identity, self.lanes))])
