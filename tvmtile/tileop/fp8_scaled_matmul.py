"""`T.fp8_scaled_matmul`: multiply two tiles of floats of 8 or 4 bits that have scales.

It stands for other operators, which take its place before anything else is decided: for each block of K
that has scales of its own a `T.gemm` into partial sums of float32, which are added to the accumulator
times the scales. No element is scaled in the loop over K. Where a GPU's matrix units do not take the
floats, they become float16, which holds them all: in registers where each warp multiplies by itself
and both operands have their rows along K, else in shared memory. Floats of 4 bits become bfloat16 on a
CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import ir, tirx
from tvm.target import Target

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import InvalidValue, ShapeMismatch, UnsupportedDtype
from tvmtile.frontend.block_scales import BlockScaledLayout, e8m0_to_float
from tvmtile.frontend.dtypes import DTypeLike, cast
from tvmtile.frontend.emit import emit
from tvmtile.frontend.math import as_expr
from tvmtile.frontend.operands import check_operand
from tvmtile.ir.operands import (
    as_region,
    constant,
    describe,
    dtype_of,
    extents_of,
    region,
    same_extents,
)
from tvmtile.ir.operators import TileOp, tile_operator
from tvmtile.ir.packed import FLOAT4
from tvmtile.ir.rewriting import for_loop, nest, seq
from tvmtile.ir.scopes import FRAGMENT_SCOPE, SHARED_SCOPE
from tvmtile.ir.types import Index, TileOperand, Value
from tvmtile.target import gpu
from tvmtile.tileop.copy import Copy
from tvmtile.tileop.elementwise import converted
from tvmtile.tileop.fill import Fill
from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.matrices import MatrixProduct, element_of, oriented

__all__ = ["Fp8ScaledMatmul", "fp8_scaled_matmul", "reference"]

_OPERANDS = (
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    "float4_e2m1fn",
)
_SCALES = ("float32", "float16", "bfloat16", "float8_e8m0fnu", "uint8")
_SUMS = ("float32", "float16", "bfloat16")
_FEW_ROWS = 8
"""Those that `tvmtile.tileop.gemm.vectors` multiplies on an Apple GPU, floats of 8 bits as they are."""
_MMA_DEPTH = 32
"""Elements of K that an instruction of NVIDIA's multiplies, of floats of 8 bits."""
_HALF_MMA_DEPTH = 16
"""Those of float16."""


def fp8_scaled_matmul(
    A: TileOperand,
    A_scale: TileOperand,
    B: TileOperand,
    B_scale: TileOperand,
    C: TileOperand,
    *,
    transpose_B: bool = False,
    block_scale_layout: BlockScaledLayout | None = None,
    accum_dtype: DTypeLike = "float32",
    clear_accum: bool = False,
) -> None:
    """`C += (A * A_scale) @ (B * B_scale)` on tiles of floats of 8 or 4 bits.

    Parameters
    ----------
    A : buffer or region
        [M, K], of float8_e4m3fn, float8_e5m2, their fnuz forms, or float4_e2m1fn.
    B : buffer or region
        [K, N]; [N, K] with `transpose_B`. Its dtype may differ from A's.
    C : buffer or region
        [M, N], the accumulator: float32, float16 or bfloat16.
    A_scale, B_scale : number, Expr, buffer or region
        One value for the whole tensor: a number, an expression, or a region of one element. Or a region
        of [M] for the rows of A, of [N] for the columns of B: `scales[by * 128 : by * 128 + 128]` of a
        global tensor. With a `block_scale_layout`, a region of what that says of the tile:
        `a_scale_shape(M, K)`, `b_scale_shape(N, K)`, or [blocks] where all rows have the same scales.
        Of float32, float16, bfloat16, float8_e8m0fnu or its codes in uint8, or what the layout has.
    transpose_B : bool
        B is stored transposed.
    block_scale_layout : BlockScaledLayout, optional
        The scales are those of blocks of K. A tile begins where a block does, or lies in one block; the
        same holds for rows where several share a scale.
    accum_dtype : dtype
        Of the partial sums; float32.
    clear_accum : bool
        Begin from zero.

    Raises
    ------
    ShapeMismatch, InvalidValue
        If extents disagree, or scales have another shape than is allowed.
    UnsupportedDtype
        If there is no rule for a dtype; float8_e8m0fnu is a scale's, not an operand's.

    Notes
    -----
    Products are exact and summed in float32, each sum of a tile, or of a block of K, is multiplied by
    A's scale, then by B's; where a tile has one scale of A or of B for a block of K, the two are
    multiplied first. NaN of an element or a scale makes NaN of the sums it is part of. Scales
    outside of their tensor are zero.
    """
    named = (("A", A), ("B", B), ("C", C))
    a, b, c = (check_operand("fp8_scaled_matmul", name, value) for name, value in named)
    if str(accum_dtype) != "float32":
        raise InvalidValue(
            f"fp8_scaled_matmul: accum_dtype={str(accum_dtype)!r}",
            help="the partial sums are of float32; C may be narrower",
        )
    layout = block_scale_layout
    blocks = {} if layout is None else _options_of(layout)
    scales = (_scale_operand(name, scale) for name, scale in (("A", A_scale), ("B", B_scale)))
    a_scale, b_scale = scales
    emit(Fp8ScaledMatmul(a, a_scale, b, b_scale, c, bool(transpose_B), bool(clear_accum), **blocks))


def _options_of(layout: BlockScaledLayout) -> dict[str, Any]:
    names = ("scale_dtype", "block_size", "a_rows", "b_rows", "zero_codes")
    return {name: getattr(layout, name) for name in names}


def _scale_operand(name: str, scale: Value) -> ir.Expr:
    """A region or a buffer as it is, anything else as a value."""
    if isinstance(scale, ir.TensorRegion) or is_buffer_var(scale):
        return check_operand("fp8_scaled_matmul", f"{name}_scale", scale)
    return as_expr(float(scale) if isinstance(scale, int) else scale)


@dataclass(frozen=True)
class _Conversions:
    """What operands become before they are multiplied."""

    dtypes: Mapping[str, str]
    """By the dtypes that do not stay as they are."""
    scope: str = SHARED_SCOPE
    """Where they become that: fragments, where the threads of a warp hold what it multiplies."""


@tile_operator
class Fp8ScaledMatmul(MatrixProduct):
    """Add the product of two scaled tiles to an accumulator."""

    name = "fp8_scaled_matmul"

    A: ir.TensorRegion
    A_scale: Any
    B: ir.TensorRegion
    B_scale: Any
    C: ir.TensorRegion
    transpose_B: bool = False
    clear_accum: bool = False
    scale_dtype: str = ""
    block_size: int = 0
    a_rows: int = 1
    b_rows: int = 1
    zero_codes: bool = False

    @property
    def layout(self) -> BlockScaledLayout | None:
        """How scales of blocks lie; None where there are none of blocks."""
        if not self.block_size:
            return None
        names = ("scale_dtype", "block_size", "a_rows", "b_rows", "zero_codes")
        return BlockScaledLayout(**{name: getattr(self, name) for name in names})

    @property
    def k(self) -> ir.Expr:
        """The extent that is summed over."""
        return oriented(self.A)[1]

    def reads(self) -> list[ir.Expr]:
        operands: list[ir.Expr] = [
            self.A,
            self.B,
            *(s for s in (self.A_scale, self.B_scale) if _is_tile(s)),
        ]
        return operands if self.clear_accum else [*operands, self.C]

    def normalized(self) -> Fp8ScaledMatmul:
        names = ["A", "B", "C", *(n for n in ("A_scale", "B_scale") if _is_tile(getattr(self, n)))]
        operands: dict[str, Any] = {name: as_region(getattr(self, name)) for name in names}
        return replace(self, **operands)

    def check(self) -> None:
        self.check_matrices("A", "B", "C")
        self._check_dtypes()
        rows, depth = oriented(self.A)
        b_depth, columns = oriented(self.B, self.transpose_B)
        for what, found, wanted in (
            ("B's K", b_depth, depth),
            ("C's rows", self.m, rows),
            ("C's columns", self.n, columns),
        ):
            if not same_extents(found, wanted):
                raise ShapeMismatch(
                    f"fp8_scaled_matmul: {what} should have the extent {wanted}, not {found}\n"
                    f"  A: {describe(self.A)}\n  B: {describe(self.B)}\n  C: {describe(self.C)}",
                    help="A is [M, K], B is [K, N], or [N, K] with transpose_B, and C is [M, N]",
                )
        self._check_scales()

    def _check_dtypes(self) -> None:
        for name, allowed in (("A", _OPERANDS), ("B", _OPERANDS), ("C", _SUMS)):
            operand = getattr(self, name)
            if dtype_of(operand) not in allowed:
                scale = (
                    "; float8_e8m0fnu is the dtype of scales" if "e8m0" in dtype_of(operand) else ""
                )
                raise UnsupportedDtype(
                    f"fp8_scaled_matmul: {name} is {describe(operand)}",
                    help=f"{name} is of {', '.join(allowed)}{scale}",
                )

    def _check_scales(self) -> None:
        layout, m, n, k = self.layout, *(constant(extent) for extent in (self.m, self.n, self.k))
        for name, rows in (("A_scale", m), ("B_scale", n)):
            scale = getattr(self, name)
            if layout is None:
                self._check_plain_scale(name, scale, rows)
                continue
            if m is None or n is None or k is None or not _is_tile(scale):
                raise InvalidValue(
                    f"fp8_scaled_matmul: {name} is {describe(scale)}, with a block_scale_layout",
                    help="scales of blocks are a region, and the tiles' extents are constants",
                )
            found = (dtype_of(scale), _matrix_shape(scale))
            layout.validate(m, n, k, **{f"{name[0].lower()}_scale": found})

    def _check_plain_scale(self, name: str, scale: ir.Expr, rows: int | None) -> None:
        dtype = dtype_of(scale) if _is_tile(scale) else str(scale.ty.dtype)
        if dtype not in _SCALES:
            raise UnsupportedDtype(
                f"fp8_scaled_matmul: {name} is {describe(scale)}, of {dtype}",
                help=f"scales are of {', '.join(_SCALES)}",
            )
        shape = _moving(scale) if _is_tile(scale) else []
        if shape and shape != [rows]:
            raise ShapeMismatch(
                f"fp8_scaled_matmul: {name} is {describe(scale)}",
                help=f"it is one value, or a region of [{rows}], or it has a block_scale_layout",
            )

    # What it stands for ------------------------------------------------------------------------------

    def expanded(self, target: Target | None) -> tirx.Stmt:
        clear = (
            [_evaluated(Fill(self.C, tirx.const(0, dtype_of(self.C))))] if self.clear_accum else []
        )
        return seq([*clear, *self._blocks(self._conversions(target))])

    def _conversions(self, target: Target | None) -> _Conversions:
        if target is None:
            return _Conversions({})
        unit = gpu(target)
        if unit is None:
            return _Conversions({FLOAT4: "bfloat16"})
        if self._fits_lanes(target) or self._fits(target):
            return _Conversions({})
        by_warps = target.kind.name == "cuda" and not unit.has_warpgroup_products
        scope = FRAGMENT_SCOPE if by_warps else SHARED_SCOPE
        return _Conversions(dict.fromkeys(_OPERANDS, "float16"), scope)

    def _fits_lanes(self, target: Target) -> bool:
        """Whether there are so few rows that the lanes of an Apple GPU multiply them."""
        dtypes = (dtype_of(self.A), dtype_of(self.B))
        rows, depth = constant(self.m), constant(self.k)
        return (
            target.kind.name == "metal"
            and self.transpose_B
            and FLOAT4 not in dtypes
            and rows is not None
            and rows <= _FEW_ROWS
            and depth is not None
            and depth % 4 == 0
        )

    def _fits(self, target: Target) -> bool:
        """Whether matrix units take the operands as they are."""
        unit = gpu(target)
        if unit is None or self.block_size % _MMA_DEPTH:
            return False
        return all(unit.why_no_factors(dtype_of(operand)) is None for operand in (self.A, self.B))

    def _blocks(self, conversions: _Conversions) -> list[tirx.Stmt]:
        """A product for each block of K that has scales of its own."""
        if not self.block_size:
            return [self._block(0, 0, self.k, conversions)]
        depth = constant(self.k)
        assert depth is not None, "checked when the call is written"
        full, rest = divmod(depth, self.block_size)
        blocks: list[tirx.Stmt] = []
        if full == 1:
            blocks.append(self._block(0, 0, self.block_size, conversions))
        elif full:
            block = tirx.Var("block", "int32")
            body = self._block(block, block * self.block_size, self.block_size, conversions)
            blocks.append(for_loop(block, full, body))
        if rest:
            blocks.append(self._block(full, full * self.block_size, rest, conversions))
        return blocks

    def _block(
        self, block: Index, first: Index, depth: Index, conversions: _Conversions
    ) -> tirx.Stmt:
        """Add the product of `depth` elements of K, from `first` on, times the scales of a block."""
        partial = self._sums()
        product = self._product(partial, first, depth, conversions, clear=True)
        # Scales are loaded before the product, which their way from memory takes as long as.
        loads, scaled = self._scaled(partial, block)
        return seq([tirx.AllocBuffer(partial), *loads, product, scaled])

    def accumulated(self, target: Target) -> tuple[tirx.Stmt, tirx.Stmt, tirx.Stmt] | None:
        if self.block_size or self.clear_accum or gpu(target) is None:
            return None
        sums = self._sums()
        begin = [
            tirx.AllocBuffer(sums),
            _evaluated(Fill(as_region(sums), tirx.const(0, "float32"))),
        ]
        step = self._product(sums, 0, self.k, self._conversions(target), clear=False)
        loads, scaled = self._scaled(sums, 0)
        return seq(begin), step, seq([*loads, scaled])

    def _sums(self) -> ir.Var:
        return tirx.decl_buffer(oriented(self.C), "float32", name="partial", scope=FRAGMENT_SCOPE)

    def _product(
        self, sums: ir.Var, first: Any, depth: Any, conversions: _Conversions, *, clear: bool
    ) -> tirx.Stmt:
        """The product of `depth` elements of K, from `first` on, without the scales."""
        held = self._depth_in_registers(depth) if conversions.scope == FRAGMENT_SCOPE else 0
        if not held:
            shared = replace(conversions, scope=SHARED_SCOPE)
            return self._converted_product(sums, first, depth, shared, clear_accum=clear)
        part = tirx.Var("part", "int32")
        product = self._converted_product(
            sums, first + part * held, held, conversions, k_pack=held // _HALF_MMA_DEPTH
        )
        begin = [_evaluated(Fill(as_region(sums), tirx.const(0, "float32")))] if clear else []
        return seq([*begin, for_loop(part, (constant(depth) or 0) // held, product)])

    def _depth_in_registers(self, depth: Index) -> int:
        """How many elements of K threads decode at once for `mma`, as many as they load at once; or 0.

        Those of a row that a thread multiplies then lie side by side.
        """
        rows, columns, k = (constant(extent) or 0 for extent in (self.m, self.n, depth))
        if not self.transpose_B or rows % 16 or columns % 8:
            return 0
        depths = (_HALF_MMA_DEPTH * 2, _HALF_MMA_DEPTH)
        return next((held for held in depths if k and k % held == 0), 0)

    def _converted_product(
        self, sums: ir.Var, first: Any, depth: Any, conversions: _Conversions, **options: Any
    ) -> tirx.Stmt:
        """The product, of operands that are converted where need be."""
        along = 1 if self.transpose_B else 0
        factors = [_part(self.A, 1, first, depth), _part(self.B, along, first, depth)]
        copies: list[tirx.Stmt] = []
        for place, factor in enumerate(factors):
            wide = conversions.dtypes.get(dtype_of(factor))
            if wide is not None:
                factors[place] = _tile_like(factor, wide, conversions.scope)
                allocated = tirx.AllocBuffer(factors[place].source)
                copies += [allocated, _evaluated(Copy(factor, factors[place]))]
        a, b = factors
        product = Gemm(a, b, as_region(sums), transpose_B=self.transpose_B, **options)
        return seq([*copies, _evaluated(product)])

    def _scaled(self, sums: ir.Var, block: Index) -> tuple[list[tirx.Stmt], tirx.Stmt]:
        """What loads the scales of a block, and what adds sums times them."""
        loads_a, of_row = self._scales("A_scale", self.m, self.a_rows, block)
        loads_b, of_column = self._scales("B_scale", self.n, self.b_rows, block)
        # Those of blocks are multiplied first: that is done once a row where B has one for the tile.
        by_row = self._by_row("A_scale") and self._by_row("B_scale")
        is_one_factor = self.layout is not None and not by_row

        def add(variables: list[ir.Var]) -> tirx.Stmt:
            i, j = variables
            part, a, b = tirx.BufferLoad(sums, [i, j]), of_row(i), of_column(j)
            value = part * (a * b) if is_one_factor else part * a * b
            target = element_of(self.C, False, i, j)
            result = converted(converted(target, "float32") + value, dtype_of(self.C))
            return tirx.BufferStore(target.source, result, target.indices)

        return [*loads_a, *loads_b], nest([self.m, self.n], add)

    def _scales(
        self, name: str, extent: ir.Expr, rows: int, block: Index
    ) -> tuple[list[tirx.Stmt], Callable[[Any], Any]]:
        """The statements that decode the scales of a block of K, and the scale of a row of them."""
        scale = getattr(self, name)
        if not _is_tile(scale):
            return [], lambda _: self._decoded(scale)
        place = [] if self.layout is None else [block]
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
        scale = getattr(self, name)
        if self.layout is None:
            return _is_tile(scale) and bool(_moving(scale))
        shape = _matrix_shape(scale)
        return len(shape) == 2 and shape[0] > 1

    def _decoded(self, value: ir.Expr) -> ir.Expr:
        if str(value.ty.dtype) == "uint8" or (self.zero_codes and "e8m0" in str(value.ty.dtype)):
            return e8m0_to_float(value, self.zero_codes)
        return cast(value, "float32")


def _is_tile(scale: ir.Expr) -> bool:
    return isinstance(scale, ir.TensorRegion) or is_buffer_var(scale)


def _evaluated(op: TileOp) -> tirx.Stmt:
    return tirx.Evaluate(op.to_call())


def _moving(operand: ir.Expr) -> list[Any]:
    """The extents of an operand that are not 1."""
    known = [constant(extent) for extent in extents_of(operand) or []]
    return [extent for extent in known if extent != 1]


def _matrix_shape(operand: ir.Expr) -> tuple[int, ...]:
    """The extents of an operand, of more than two the last two where the others are 1."""
    extents = [constant(extent) or 0 for extent in extents_of(operand) or []]
    while len(extents) > 2 and extents[0] == 1:
        extents.pop(0)
    return tuple(extents)


def _at(scale: ir.TensorRegion, place: Sequence[Any]) -> ir.Expr:
    """The element of a region at a place; extents of 1 may be missing in it."""
    axes = list(scale.region)
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
    return tirx.BufferLoad(scale.source, indices)


def _tile_like(operand: ir.TensorRegion, dtype: str, scope: str) -> ir.TensorRegion:
    name = f"{operand.source.name}_{dtype}"
    return as_region(tirx.decl_buffer(oriented(operand), dtype, name=name, scope=scope))


def _part(operand: ir.TensorRegion, axis: int, first: int, extent: ir.Expr) -> ir.TensorRegion:
    """The part of a matrix along its rows (0) or columns (1)."""
    origin = [r.min for r in operand.region]
    extents = [r.extent for r in operand.region]
    place = len(origin) - 2 + axis
    origin[place], extents[place] = origin[place] + first, extent
    return region(operand.source, origin, extents)


def reference(
    A: np.ndarray,
    A_scale: Any,
    B: np.ndarray,
    B_scale: Any,
    C: np.ndarray,
    *,
    block_scale_layout: BlockScaledLayout | None = None,
    clear_accum: bool = False,
) -> np.ndarray:
    """The product in float64, of decoded operands that are not transposed.

    The operands are values, [M, K], [K, N] and [M, N]; the rest is as of `fp8_scaled_matmul`.
    """
    (m, k), n = A.shape, B.shape[1]
    rows = (m, n)
    scales = [np.asarray(scale, np.float64) for scale in (A_scale, B_scale)]
    if block_scale_layout is None:
        wide = [
            np.broadcast_to(s.reshape(-1, 1), (r, k)) for s, r in zip(scales, rows, strict=True)
        ]
    else:
        groups = (block_scale_layout.a_rows, block_scale_layout.b_rows)
        block = np.arange(k) // block_scale_layout.block_size
        wide = [
            np.broadcast_to(s[..., block], (-(-r // g) if s.ndim == 2 else 1, k)).repeat(
                g if s.ndim == 2 else r, axis=0
            )[:r]
            for s, r, g in zip(scales, rows, groups, strict=True)
        ]
    product = (A * wide[0]) @ (B * wide[1].T)
    return product if clear_accum else product + C
