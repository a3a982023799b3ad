"""`T.gemm`: multiply two tiles and add the product to a third."""

from __future__ import annotations

from enum import IntEnum
from typing import get_args

from tvm import ir, tirx

from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import InvalidValue, ShapeMismatch, UnsupportedDtype, warn
from tvmtile.frontend.emit import check_operand, checked_call, emit
from tvmtile.ir.operands import describe, dtype_of, extents_of, literal, same_extents
from tvmtile.ir.operators import OperatorEffects, tile_operator
from tvmtile.ir.types import Precision, TileOperand, Value
from tvmtile.tileop.matrices import MatrixProduct, begins_from_zero, element_of, oriented
from tvmtile.tileop.moves import clear


class GemmWarpPolicy(IntEnum):
    """The shares of a block's warps in a tile of the accumulator."""

    Square = 0
    """As square as possible, so that both operands are reused."""
    FullRow = 1
    """All warps along the rows: each owns whole rows."""
    FullCol = 2
    """All warps along the columns."""


SHARES = ({"policy": int(GemmWarpPolicy.FullRow)}, {"policy": int(GemmWarpPolicy.FullCol)})


def gemm(
    A: TileOperand,
    B: TileOperand,
    C: TileOperand,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: GemmWarpPolicy = GemmWarpPolicy.Square,
    clear_accum: Value = False,
    k_pack: int = 1,
    wg_wait: int = 0,
    mbar: object = None,
    annotations: dict[str, object] | None = None,
    *,
    precision: Precision = "tf32",
    impl: str | None = None,
) -> None:
    """`C += A @ B` on tiles, accumulating in the dtype of `C`.

    Parameters
    ----------
    A : buffer or region
        [M, K]; [K, M] with `transpose_A`. In shared memory or a fragment. Leading axes have
        extent 1.
    B : buffer or region
        [K, N]; [N, K] with `transpose_B`.
    C : buffer or region
        [M, N], the accumulator, usually a fragment.
    transpose_A, transpose_B : bool
        The operand is stored transposed.
    policy : GemmWarpPolicy
        How warps share the tile; on a CPU it has no effect.
    clear_accum : bool
        Begin from zero: `C = A @ B`. A condition of the running kernel may say so: `k == 0`.
    precision : "tf32" or "ieee"
        How products of float32 may be computed. "tf32": as the target does it fastest, on NVIDIA's
        tensor cores as TF32, which takes 10 bits behind the point of each operand. "ieee": of all
        bits, by multiply-adds (`fma`) there. CPUs and Apple's GPUs always take all bits.
    impl : str, optional
        How it is done: `wgmma`, `mma`, `fma` or `elements` on NVIDIA GPUs, `matmul2d`, `simdgroup`,
        `fma` or `elements` on Apple's, `microkernel` or `loops` on a CPU. The best that fits where
        absent.
    wg_wait : int
        How many of the latest products of `wgmma` may go on when the next statement begins, this one
        included; -1: all of them. `T.wait_wgmma` waits for them. Other implementations are complete.
    k_pack : int
        Where an operand is a fragment, `mma` gives a thread the elements of so many instructions side
        by side along K: what the fragment is decoded from is loaded by so much wider words.
    mbar, annotations
        Accepted with a warning.

    Raises
    ------
    ShapeMismatch
        If the operands disagree on M, N or K.
    NoLowering
        When it is compiled, if `impl` does not fit.
    InvalidValue
        If there is no such precision.
    UnsupportedDtype
        If there is no rule for the dtypes: floats multiply floats into a float accumulator,
        integers multiply integers into an int32 (or int64) accumulator or a float one.

    Notes
    -----
    Every product is exact or rounded to the accumulator's dtype; the order of the sum is the
    compiler's. A float16 accumulator is summed in float32 within one call and rounded at its end on
    the CPU, and rounded after each instruction, of 8 or 16 products, by matrix units that keep it so.
    Dot products of a CPU (AVX512-BF16) take subnormal bfloat16 numbers and sums for zero.
    """
    warn_ignored("T.gemm", mbar=mbar, annotations=annotations)
    if k_pack < 1:
        raise InvalidValue(f"T.gemm: k_pack={k_pack!r}", help="k_pack is a positive integer")
    if precision not in get_args(Precision):
        raise InvalidValue(
            f"T.gemm: precision={precision!r}", help="products of float32 are 'tf32' or 'ieee'"
        )
    a, b, c = (check_operand("gemm", n, v) for n, v in (("A", A), ("B", B), ("C", C)))
    clears = begins_from_zero(clear_accum, c)
    flags = bool(transpose_A), bool(transpose_B), int(policy), clears
    op = Gemm(a, b, c, *flags, max(-1, int(wg_wait)), k_pack, precision, impl=impl)
    if 0 in map(literal, extents_of(a) or ()):  # there are no products
        checked_call(op)
        if clears:
            clear(c)
        return
    emit(op)
    if not op.has_related_dtypes():
        warn(
            f"gemm: {describe(a)} and {describe(b)} differ in dtype: the product is right, and slow on "
            "matrix units that take one dtype; T.copy one into a tile of the other's"
        )


_FLOATS = ("float16", "bfloat16", "float32", "float64")
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "int4", "uint4")
_ACCUMULATORS = {
    **dict.fromkeys(_FLOATS, ("float16", "bfloat16", "float32", "float64")),
    **dict.fromkeys(_FLOAT8, ("float16", "bfloat16", "float32", "float64")),
    **dict.fromkeys(_INTEGERS, ("int32", "int64", "float32", "float64")),
}


@tile_operator
class Gemm(MatrixProduct):
    """Multiply two tiles and add the product to an accumulator."""

    name = "gemm"
    inputs = ("A", "B")
    shares = SHARES

    A: ir.TensorRegion
    B: ir.TensorRegion
    C: ir.TensorRegion
    transpose_A: bool = False
    transpose_B: bool = False
    policy: int = 0
    clear_accum: bool = False
    wg_wait: int = 0
    k_pack: int = 1
    precision: str = "tf32"

    def effects(self) -> OperatorEffects:
        return super().effects()._replace(is_complete=self.wg_wait == 0)

    @property
    def k(self) -> ir.Expr:
        """The extent that is summed over."""
        return oriented(self.A)[0 if self.transpose_A else 1]

    def check(self) -> None:
        self.check_matrices("A", "B", "C")
        rows_a, cols_a = oriented(self.A, self.transpose_A)
        rows_b, cols_b = oriented(self.B, self.transpose_B)
        rows_c, cols_c = oriented(self.C)
        if not same_extents(cols_a, rows_b):
            raise ShapeMismatch(
                "gemm: A and B disagree on K\n"
                f"  A: {self._shown('A')} has K = {cols_a}\n  B: {self._shown('B')} has K = {rows_b}",
                help="A is [M, K] and B is [K, N]; pass transpose_A or transpose_B for an operand that "
                "is stored the other way",
            )
        if not same_extents(rows_a, rows_c) or not same_extents(cols_b, cols_c):
            raise ShapeMismatch(
                f"gemm: the accumulator {describe(self.C)} should be [{rows_a}, {cols_b}]\n"
                f"  A: {self._shown('A')}\n  B: {self._shown('B')}",
                help=f"allocate it as T.alloc_fragment(({rows_a}, {cols_b}), accum_dtype)",
            )
        self._check_dtypes()

    def _shown(self, name: str) -> str:
        transposed = getattr(self, f"transpose_{name}")
        return describe(getattr(self, name)) + (" (transposed)" if transposed else "")

    def has_related_dtypes(self) -> bool:
        """Tell whether A and B have one dtype, or two that some matrix unit takes together."""
        kinds = {dtype_of(self.A), dtype_of(self.B)}
        return len(kinds) == 1 or kinds <= {"int8", "uint8"} or kinds <= set(_FLOAT8)

    def _check_dtypes(self) -> None:
        a, b, c = (dtype_of(operand) for operand in (self.A, self.B, self.C))
        allowed = [d for d in _ACCUMULATORS.get(a, ()) if d in _ACCUMULATORS.get(b, ())]
        mixed_kinds = (a in _INTEGERS) != (b in _INTEGERS)
        if c in allowed and not mixed_kinds:
            return
        raise UnsupportedDtype(
            f"gemm: there is no rule for {a} x {b} into {c}\n"
            f"  A: {describe(self.A)}\n  B: {describe(self.B)}\n  C: {describe(self.C)}",
            help="convert an operand with T.copy into a tile of the other's dtype"
            if mixed_kinds or not allowed
            else f"accumulate in {', '.join(allowed)}",
        )

    def excludes_tf32(self) -> bool:
        """Tell whether it multiplies float32, all bits of it."""
        return self.precision == "ieee" and dtype_of(self.A) == dtype_of(self.B) == "float32"

    def mixes_halves(self) -> bool:
        """Tell whether it has both float16 and bfloat16: neither holds the other's values."""
        return {"float16", "bfloat16"} <= {dtype_of(o) for o in (self.C, self.A, self.B)}

    def as_loops(self) -> tirx.Stmt:
        def factors(i: ir.Var, j: ir.Var, k: ir.Var) -> tuple[ir.Expr, ir.Expr]:
            a = element_of(self.A, self.transpose_A, i, k)
            return a, element_of(self.B, self.transpose_B, k, j)

        return self.summed(tirx.Var("k", "int32"), self.k, factors)
