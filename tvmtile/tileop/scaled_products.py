"""Products with scales: a product for each block of K that has scales of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tvm import ir, tirx
from tvm.target import Target

from tvmtile._tvm import buffer_of, indices_of, is_buffer_var, ranges_of
from tvmtile.errors import ShapeMismatch
from tvmtile.frontend.dtypes import cast
from tvmtile.ir.operands import as_region, constant, describe, dtype_of, extents_of, region
from tvmtile.ir.operators import TileOp, operator_for
from tvmtile.ir.packed import FLOAT4
from tvmtile.ir.rewriting import for_loop, nest, seq
from tvmtile.ir.scopes import FRAGMENT_SCOPE, SHARED_SCOPE
from tvmtile.ir.types import Index
from tvmtile.target import gpu
from tvmtile.tileop.block_scales import e8m0_to_float
from tvmtile.tileop.copy import Copy
from tvmtile.tileop.elementwise import converted
from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.matrices import element_of, oriented

if TYPE_CHECKING:
    from tvmtile.tileop.fp8_scaled_matmul import Fp8ScaledMatmul

_FEW_ROWS = 8
"""The rows that `gemm.vectors` multiplies on an Apple GPU, floats of 8 bits as they are."""
_MMA_DEPTH = 32
"""Elements of K that an instruction of NVIDIA's multiplies, of floats of 8 bits."""
_HALF_MMA_DEPTH = 16
"""The depth of products of float16."""


@dataclass(frozen=True)
class ScaledProduct:
    """An operator on a target, and what operands become before they are multiplied."""

    op: Fp8ScaledMatmul
    dtypes: Mapping[str, str]
    """By the dtypes that do not stay as they are."""
    scope: str = SHARED_SCOPE
    """Where they become that: fragments, where the threads of a warp hold what it multiplies."""

    @classmethod
    def on(cls, target: Target | None, op: Fp8ScaledMatmul) -> ScaledProduct:
        """The product on a target; None: on none in particular."""
        if target is None:
            return cls(op, {})
        unit = gpu(target)
        if unit is None:
            return cls(op, {FLOAT4: "bfloat16"})
        if _fits_lanes(op, target) or _fits(op, target):
            return cls(op, {})
        by_warps = target.kind.name == "cuda" and not unit.has_warpgroup_products
        scope = FRAGMENT_SCOPE if by_warps else SHARED_SCOPE
        return cls(op, dict.fromkeys((dtype_of(op.A), dtype_of(op.B)), "float16"), scope)

    def blocks(self) -> list[tirx.Stmt]:
        """A product for each block of K that has scales of its own."""
        if not self.op.block_size:
            return [self._block(0, 0, self.op.k)]
        depth = constant(self.op.k)
        assert depth is not None, "checked when the call is written"
        full, rest = divmod(depth, self.op.block_size)
        blocks: list[tirx.Stmt] = []
        if full == 1:
            blocks.append(self._block(0, 0, self.op.block_size))
        elif full:
            block = tirx.Var("block", "int32")
            body = self._block(block, block * self.op.block_size, self.op.block_size)
            blocks.append(for_loop(block, full, body))
        if rest:
            blocks.append(self._block(full, full * self.op.block_size, rest))
        return blocks

    def _block(self, block: Index, first: Index, depth: Index) -> tirx.Stmt:
        """Add the product of `depth` elements of K, from `first` on, times the scales of a block."""
        partial = self._sums()
        product = self._product(partial, first, depth, clear=True)
        # Scales are loaded before the product, which their way from memory takes as long as.
        loads, scaled = self._scaled(partial, block)
        return seq([tirx.AllocBuffer(partial), *loads, product, scaled])

    def accumulated(self) -> tuple[tirx.Stmt, tirx.Stmt, tirx.Stmt]:
        """The first partial sums, a product that adds to them, and their addition, scaled."""
        sums, op = self._sums(), self.op
        begin = seq([tirx.AllocBuffer(sums), cleared(as_region(sums))])
        step = self._product(sums, 0, op.k, clear=False)
        loads, scaled = self._scaled(sums, 0)
        return begin, step, seq([*loads, scaled])

    def _sums(self) -> ir.Var:
        return tirx.decl_buffer(
            oriented(self.op.C), "float32", name="partial", scope=FRAGMENT_SCOPE
        )

    def _product(self, sums: ir.Var, first: Any, depth: Any, *, clear: bool) -> tirx.Stmt:
        """The product of `depth` elements of K, from `first` on, without the scales."""
        held = self._depth_in_registers(depth) if self.scope == FRAGMENT_SCOPE else 0
        if not held:
            shared = replace(self, scope=SHARED_SCOPE)
            return shared._converted_product(sums, first, depth, clear_accum=clear)
        part = tirx.Var("part", "int32")
        product = self._converted_product(
            sums, first + part * held, held, k_pack=held // _HALF_MMA_DEPTH
        )
        begin = [cleared(as_region(sums))] if clear else []
        return seq([*begin, for_loop(part, (constant(depth) or 0) // held, product)])

    def _depth_in_registers(self, depth: Index) -> int:
        """The elements of K that threads decode at once for `mma`, as many as they load; or 0.

        Those of a row that a thread multiplies then lie side by side.
        """
        rows, columns, k = (constant(extent) or 0 for extent in (self.op.m, self.op.n, depth))
        if not self.op.transpose_B or rows % 16 or columns % 8:
            return 0
        depths = (_HALF_MMA_DEPTH * 2, _HALF_MMA_DEPTH)
        return next((held for held in depths if k and k % held == 0), 0)

    def _converted_product(self, sums: ir.Var, first: Any, depth: Any, **options: Any) -> tirx.Stmt:
        """The product, of operands that are converted where need be."""
        along = 1 if self.op.transpose_B else 0
        factors = [_part(self.op.A, 1, first, depth), _part(self.op.B, along, first, depth)]
        copies: list[tirx.Stmt] = []
        for place, factor in enumerate(factors):
            wide = self.dtypes.get(dtype_of(factor))
            if wide is not None:
                factors[place] = _tile_like(factor, wide, self.scope)
                allocated = tirx.AllocBuffer(buffer_of(factors[place]))
                copies += [allocated, _evaluated(Copy(factor, factors[place]))]
        a, b = factors
        product = Gemm(a, b, as_region(sums), transpose_B=self.op.transpose_B, **options)
        return seq([*copies, _evaluated(product)])

    def _scaled(self, sums: ir.Var, block: Index) -> tuple[list[tirx.Stmt], tirx.Stmt]:
        """The loads of a block's scales, and the addition of sums times them."""
        loads_a, of_row = self._scales("A_scale", self.op.m, self.op.a_rows, block)
        loads_b, of_column = self._scales("B_scale", self.op.n, self.op.b_rows, block)
        # Those of blocks are multiplied first: that is done once a row where B has one for the tile.
        by_row = self._by_row("A_scale") and self._by_row("B_scale")
        is_one_factor = self.op.layout is not None and not by_row

        def add(variables: list[ir.Var]) -> tirx.Stmt:
            i, j = variables
            part, a, b = tirx.BufferLoad(sums, [i, j]), of_row(i), of_column(j)
            value = part * (a * b) if is_one_factor else part * a * b
            target = element_of(self.op.C, False, i, j)
            result = converted(converted(target, "float32") + value, dtype_of(self.op.C))
            return tirx.BufferStore(buffer_of(target), result, indices_of(target))

        return [*loads_a, *loads_b], nest([self.op.m, self.op.n], add)

    def _scales(
        self, name: str, extent: ir.Expr, rows: int, block: Index
    ) -> tuple[list[tirx.Stmt], Callable[[Any], Any]]:
        """The statements that decode the scales of a block of K, and the scale of a row of them."""
        scale = getattr(self.op, name)
        if not is_tile(scale):
            return [], lambda _: self._decoded(scale)
        place = [] if self.op.layout is None else [block]
        by_row = self._by_row(name)

        def load(row: Index) -> Any:
            return self._decoded(_at(scale, [row // rows, *place] if by_row else place))

        if place and not by_row:
            value = tirx.Var(name.lower(), "float32")
            return [tirx.Bind(value, load(0))], lambda _: value
        if not by_row or constant(extent) == 1:
            return [], load
        held = tirx.decl_buffer((extent,), "float32", name=name.lower(), scope=FRAGMENT_SCOPE)
        decode = nest([extent], lambda v: tirx.BufferStore(held, load(v[0]), [v[0]]))
        return [tirx.AllocBuffer(held), decode], lambda row: tirx.BufferLoad(held, [row])

    def _by_row(self, name: str) -> bool:
        """Tell whether the rows of a tile may have different scales."""
        scale = getattr(self.op, name)
        if self.op.layout is None:
            return is_tile(scale) and bool(moving(scale))
        shape = matrix_shape(scale)
        return len(shape) == 2 and shape[0] > 1

    def _decoded(self, value: ir.Expr) -> ir.Expr:
        if str(value.ty.dtype) == "uint8" or (self.op.zero_codes and "e8m0" in str(value.ty.dtype)):
            return e8m0_to_float(value, self.op.zero_codes)
        return cast(value, "float32")


def _fits_lanes(op: Fp8ScaledMatmul, target: Target) -> bool:
    """Tell whether there are so few rows that the lanes of an Apple GPU multiply them."""
    dtypes = (dtype_of(op.A), dtype_of(op.B))
    rows, depth = constant(op.m), constant(op.k)
    return (
        target.kind.name == "metal"
        and op.transpose_B
        and FLOAT4 not in dtypes
        and rows is not None
        and rows <= _FEW_ROWS
        and depth is not None
        and depth % 4 == 0
    )


def _fits(op: Fp8ScaledMatmul, target: Target) -> bool:
    """Tell whether matrix units take the operands as they are."""
    unit = gpu(target)
    if unit is None or op.block_size % _MMA_DEPTH:
        return False
    return all(unit.why_no_factors(dtype_of(operand)) is None for operand in (op.A, op.B))


def cleared(tile: ir.TensorRegion) -> tirx.Stmt:
    """A statement that sets a tile to zero."""
    return _evaluated(operator_for("fill")(tile, tirx.const(0, dtype_of(tile))))


def is_tile(scale: ir.Expr) -> bool:
    """Tell whether scales are those of several rows or blocks."""
    return isinstance(scale, ir.TensorRegion) or is_buffer_var(scale)


def _evaluated(op: TileOp) -> tirx.Stmt:
    return tirx.Evaluate(op.to_call())


def moving(operand: ir.Expr) -> list[Any]:
    """The extents of an operand that are not 1."""
    known = [constant(extent) for extent in extents_of(operand) or []]
    return [extent for extent in known if extent != 1]


def matrix_shape(operand: ir.Expr) -> tuple[int, ...]:
    """The extents of an operand, of more than two the last two where the others are 1."""
    extents = [constant(extent) or 0 for extent in extents_of(operand) or []]
    while len(extents) > 2 and extents[0] == 1:
        extents.pop(0)
    return tuple(extents)


def _at(scale: ir.TensorRegion, place: Sequence[Any]) -> ir.Expr:
    """The element of a region at a place; extents of 1 may be missing in it."""
    axes = list(ranges_of(scale))
    place = list(place)
    if len(place) > len(axes):
        raise ShapeMismatch(f"fp8_scaled_matmul: {describe(scale)} has {len(axes)} axes")
    if len(place) == 1 and len(axes) > 1:
        moving = [axis for axis, r in enumerate(axes) if constant(r.extent) != 1]
        offsets: list[Index] = [0] * len(axes)
        offsets[moving[0] if moving else -1] = place[0]
    else:
        offsets = [0] * (len(axes) - len(place)) + place
    indices = [r.min + offset for r, offset in zip(axes, offsets, strict=True)]
    return tirx.BufferLoad(buffer_of(scale), indices)


def _tile_like(operand: ir.TensorRegion, dtype: str, scope: str) -> ir.TensorRegion:
    name = f"{buffer_of(operand).name}_{dtype}"
    return as_region(tirx.decl_buffer(oriented(operand), dtype, name=name, scope=scope))


def _part(operand: ir.TensorRegion, axis: int, first: int, extent: ir.Expr) -> ir.TensorRegion:
    """The part of a matrix along its rows (0) or columns (1)."""
    origin = [r.min for r in ranges_of(operand)]
    extents = [r.extent for r in ranges_of(operand)]
    place = len(origin) - 2 + axis
    origin[place], extents[place] = origin[place] + first, extent
    return region(buffer_of(operand), origin, extents)
