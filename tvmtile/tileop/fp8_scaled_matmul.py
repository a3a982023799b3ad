"""`T.fp8_scaled_matmul`: multiply two tiles of floats of 8 or 4 bits that have scales.

It stands for other operators, which take its place before anything else is decided: for each block of K
that has scales of its own a `T.gemm` into partial sums of float32, which are added to the accumulator
times the scales. No element is scaled in the loop over K. Where a GPU's matrix units do not take the
floats, they become float16, which holds them all: in registers where each warp multiplies by itself
and both operands have their rows along K, else in shared memory. Floats of 4 bits become bfloat16 on a
CPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import ir, tirx
from tvm.target import Target

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import InvalidValue, ShapeMismatch, UnsupportedDtype
from tvmtile.frontend.dtypes import DTypeLike
from tvmtile.frontend.emit import check_operand, emit
from tvmtile.frontend.values import as_expr
from tvmtile.ir.operands import (
    as_region,
    constant,
    describe,
    dtype_of,
    same_extents,
)
from tvmtile.ir.operators import Accumulates, OperatorEffects, tile_operator
from tvmtile.ir.rewriting import seq
from tvmtile.ir.types import TileOperand, Value
from tvmtile.target import gpu
from tvmtile.tileop.block_scales import BlockScaledLayout
from tvmtile.tileop.matrices import MatrixProduct, begins_from_zero, oriented
from tvmtile.tileop.scaled_products import ScaledProduct, cleared, is_tile, matrix_shape, moving

_OPERANDS = (
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    "float4_e2m1fn",
)
_SCALES = ("float32", "float16", "bfloat16", "float8_e8m0fnu", "uint8")
_SUMS = ("float32", "float16", "bfloat16")


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
    clear_accum: Value = False,
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
        Begin from zero. A condition of the running kernel may say so: `k == 0`.

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
    flags = bool(transpose_B), begins_from_zero(clear_accum, c)
    emit(Fp8ScaledMatmul(a, a_scale, b, b_scale, c, *flags, **blocks))


def _options_of(layout: BlockScaledLayout) -> dict[str, Any]:
    names = ("scale_dtype", "block_size", "a_rows", "b_rows", "zero_codes")
    return {name: getattr(layout, name) for name in names}


def _scale_operand(name: str, scale: Value) -> ir.Expr:
    """A region or a buffer as it is, anything else as a value."""
    if isinstance(scale, ir.TensorRegion) or is_buffer_var(scale):
        return check_operand("fp8_scaled_matmul", f"{name}_scale", scale)
    return as_expr(float(scale) if isinstance(scale, int) else scale)


@tile_operator
class Fp8ScaledMatmul(MatrixProduct, Accumulates):
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
        """The layout of scales of blocks; None where there are none of blocks."""
        if not self.block_size:
            return None
        names = ("scale_dtype", "block_size", "a_rows", "b_rows", "zero_codes")
        return BlockScaledLayout(**{name: getattr(self, name) for name in names})

    @property
    def k(self) -> ir.Expr:
        """The extent that is summed over."""
        return oriented(self.A)[1]

    def effects(self) -> OperatorEffects:
        scales = [s for s in (self.A_scale, self.B_scale) if is_tile(s)]
        sums = [] if self.clear_accum else [self.C]
        return OperatorEffects([self.A, self.B, *scales, *sums], [self.C])

    def normalized(self) -> Fp8ScaledMatmul:
        names = ["A", "B", "C", *(n for n in ("A_scale", "B_scale") if is_tile(getattr(self, n)))]
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
            if m is None or n is None or k is None or not is_tile(scale):
                raise InvalidValue(
                    f"fp8_scaled_matmul: {name} is {describe(scale)}, with a block_scale_layout",
                    help="scales of blocks are a region, and the tiles' extents are constants",
                )
            found = (dtype_of(scale), matrix_shape(scale))
            layout.validate(m, n, k, **{f"{name[0].lower()}_scale": found})

    def _check_plain_scale(self, name: str, scale: ir.Expr, rows: int | None) -> None:
        dtype = dtype_of(scale) if is_tile(scale) else str(scale.ty.dtype)
        if dtype not in _SCALES:
            raise UnsupportedDtype(
                f"fp8_scaled_matmul: {name} is {describe(scale)}, of {dtype}",
                help=f"scales are of {', '.join(_SCALES)}",
            )
        shape = moving(scale) if is_tile(scale) else []
        if shape and shape != [rows]:
            raise ShapeMismatch(
                f"fp8_scaled_matmul: {name} is {describe(scale)}",
                help=f"it is one value, or a region of [{rows}], or it has a block_scale_layout",
            )

    def expanded(self, target: Target | None) -> tirx.Stmt:
        clear = [cleared(self.C)] if self.clear_accum else []
        return seq([*clear, *ScaledProduct.on(target, self).blocks()])

    def accumulated(self, target: Target) -> tuple[tirx.Stmt, tirx.Stmt, tirx.Stmt] | None:
        if self.block_size or self.clear_accum or gpu(target) is None:
            return None
        return ScaledProduct.on(target, self).accumulated()
