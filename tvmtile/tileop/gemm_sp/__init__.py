"""`T.gemm_sp`: multiply a tile of which half the elements are left out by another.

Of four elements along K two are stored (2:4), with two bits each that say which; of two float32
elements one is. The bits of a row lie one after the other in the elements of `E`, lowest first.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import ShapeMismatch, UnsupportedDtype
from tvmtile.frontend.emit import check_operand, emit
from tvmtile.ir.operands import bits_of, describe, dtype_of, same_extents
from tvmtile.ir.operators import tile_operator
from tvmtile.ir.types import TileOperand, Value
from tvmtile.tileop.elementwise import converted
from tvmtile.tileop.gemm import SHARES, GemmWarpPolicy
from tvmtile.tileop.matrices import MatrixProduct, begins_from_zero, element_of, oriented
from tvmtile.tileop.registry import as_loops, lowering

_FLOATS = ("float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2")
_INTEGERS = ("int8", "uint8")
_ACCUMULATORS = {
    **dict.fromkeys(_FLOATS, ("float16", "bfloat16", "float32", "float64")),
    **dict.fromkeys(_INTEGERS, ("int32", "int64", "float32")),
}
_METADATA = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
_BITS_OF_A_PLACE = 2


def gemm_sp(
    A_sparse: TileOperand,
    E: TileOperand,
    B: TileOperand,
    C: TileOperand,
    transpose_A: bool = False,
    transpose_E: bool = False,
    transpose_B: bool = False,
    policy: GemmWarpPolicy = GemmWarpPolicy.Square,
    clear_accum: Value = False,
    k_pack: int = 1,
    wg_wait: int = 0,
    annotations: dict[str, object] | None = None,
    *,
    impl: str | None = None,
) -> None:
    """`C += A @ B` where of four neighbours along K in `A` two are stored.

    Parameters
    ----------
    A_sparse : buffer or region
        [M, K / 2]; [K / 2, M] with `transpose_A`. Two of each four elements in their order; of each two
        where they are float32.
    E : buffer or region
        Integers whose bits say which, lowest first: [M, K * b / 2 / bits], transposed with
        `transpose_E`. There are b = 2 bits for each stored element, its place among the four; b = 4 for
        float32, of which bit 1 is its place among the two.
    B : buffer or region
        [K, N]; [N, K] with `transpose_B`.
    C : buffer or region
        [M, N], the accumulator.
    transpose_A, transpose_E, transpose_B : bool
        The operand is stored transposed.
    policy : GemmWarpPolicy
        How warps share the tile; on a CPU it has no effect.
    k_pack, wg_wait, annotations
        Accepted with a warning.
    clear_accum : bool
        Begin from zero: `C = A @ B`. A condition of the running kernel may say so: `k == 0`.
    impl : str, optional
        How it is done: `mma` or `elements`; the best that fits where absent.

    Raises
    ------
    ShapeMismatch
        If the operands disagree on M, N or K.
    UnsupportedDtype
        If there is no rule for the dtypes.

    Notes
    -----
    NVIDIA's matrix units do it (`mma.sp`) for dtypes that they have, with a float32 or float16
    accumulator, or int32 for integers, from tiles in shared memory. They ask that the places of two
    stored elements ascend. Elsewhere it is computed element by element, slower than `T.gemm` of the
    dense tile; a warning says so on GPUs.
    """
    given = {"wg_wait": wg_wait or None, "k_pack": None if k_pack == 1 else k_pack}
    warn_ignored("T.gemm_sp", **given, annotations=annotations)
    named = (("A_sparse", A_sparse), ("E", E), ("B", B), ("C", C))
    a, e, b, c = (check_operand("gemm_sp", name, value) for name, value in named)
    transposed = (bool(transpose_A), bool(transpose_E), bool(transpose_B))
    emit(GemmSp(a, e, b, c, *transposed, int(policy), begins_from_zero(clear_accum, c), impl=impl))


@tile_operator
class GemmSp(MatrixProduct):
    """Multiply a tile without half of its elements by another tile."""

    name = "gemm_sp"
    inputs = ("A", "E", "B")
    shares = SHARES

    A: ir.TensorRegion
    E: ir.TensorRegion
    B: ir.TensorRegion
    C: ir.TensorRegion
    transpose_A: bool = False
    transpose_E: bool = False
    transpose_B: bool = False
    policy: int = 0
    clear_accum: bool = False

    @property
    def k(self) -> Any:
        """The extent that is summed over, with what is left out."""
        return oriented(self.B, self.transpose_B)[0]

    @property
    def k_pack(self) -> int:
        """Instructions along K of which a thread holds the elements side by side."""
        return 1

    @property
    def place_bits(self) -> int:
        """Bits of `E` for a stored element."""
        return _BITS_OF_A_PLACE * (2 if dtype_of(self.A) == "float32" else 1)

    def check(self) -> None:
        self.check_matrices("A", "E", "B", "C")
        self._check_dtypes()
        rows, stored = oriented(self.A, self.transpose_A)
        depth, columns = oriented(self.B, self.transpose_B)
        words = stored * self.place_bits // bits_of(self.E)
        expected = {
            "B": (depth, stored * 2),
            "E's rows": (oriented(self.E, self.transpose_E)[0], rows),
            "E": (oriented(self.E, self.transpose_E)[1], words),
            "C's rows": (oriented(self.C, False)[0], rows),
            "C's columns": (oriented(self.C, False)[1], columns),
        }
        for what, (found, wanted) in expected.items():
            if not same_extents(found, wanted):
                raise ShapeMismatch(
                    f"gemm_sp: {what} should have the extent {wanted}, not {found}\n"
                    f"  A: {describe(self.A)}\n  E: {describe(self.E)}\n  B: {describe(self.B)}\n"
                    f"  C: {describe(self.C)}",
                    help="A is [M, K / 2], B is [K, N] and C is [M, N]; pass transpose_A, transpose_E "
                    "or transpose_B for an operand that is stored the other way",
                )

    def _check_dtypes(self) -> None:
        a, b, c, e = (dtype_of(operand) for operand in (self.A, self.B, self.C, self.E))
        if a != b or c not in _ACCUMULATORS.get(a, ()) or e not in _METADATA:
            raise UnsupportedDtype(
                f"gemm_sp: there is no rule for {a} x {b} into {c} with {e}",
                help=f"A and B have one dtype of {', '.join(_ACCUMULATORS)}, C is an accumulator for "
                f"it, and E is one of {', '.join(_METADATA)}",
            )

    def as_loops(self) -> tirx.Stmt:
        def factors(i: ir.Var, j: ir.Var, s: ir.Var) -> tuple[ir.Expr, ir.Expr]:
            a = element_of(self.A, self.transpose_A, i, s)
            return a, element_of(self.B, self.transpose_B, self._place(i, s), j)

        stored = oriented(self.A, self.transpose_A)[1]
        return self.summed(tirx.Var("s", "int32"), stored, factors)

    def _place(self, row: Any, stored: Any) -> Any:
        """The place along K of a stored element."""
        bits, word = self.place_bits, bits_of(self.E)
        first = stored * bits
        load = element_of(self.E, self.transpose_E, row, tirx.floordiv(first, word))
        code = converted(load, "int32") >> tirx.floormod(first, word)
        if bits == _BITS_OF_A_PLACE:
            return tirx.floordiv(stored, 2) * 4 + (code & tirx.const(3, "int32"))
        return stored * 2 + ((code >> 1) & tirx.const(1, "int32"))


_SLOW = "is computed element by element, which is slower than T.gemm of the dense tile"


# Each element of the accumulator is a sum of products of what is stored.
lowering(GemmSp, target="llvm", variant="elements")(as_loops)
lowering(GemmSp, target=("metal", "cuda"), variant="elements", slow=lambda _: _SLOW)(as_loops)
