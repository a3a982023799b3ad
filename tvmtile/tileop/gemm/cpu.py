"""`T.gemm` on a CPU."""

from __future__ import annotations

from tvm import tirx

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.ir.operands import constant, describe, dtype_of
from tvmtile.target import cpu
from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.gemm.dots import DotProducts, choose
from tvmtile.tileop.gemm.microkernel import GemmTile, emit_gemm
from tvmtile.tileop.gemm.packing import Matrix
from tvmtile.tileop.gemm.partition import constant_extents
from tvmtile.tileop.registry import Decline, LoweringContext, as_loops, lowering
from tvmtile.tileop.vectors import lies_inside

_VECTOR_DTYPES = (
    *("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
)


def check_vectors(op: Gemm, context: LoweringContext) -> None:
    """Decline what vectors can't multiply: run-time extents, operands that may reach outside."""
    if None in (constant(extent) for extent in (op.m, op.n, op.k)):
        raise Decline(f"needs constant extents, not M, N, K = {op.m}, {op.n}, {op.k}")
    for operand in (op.A, op.B, op.C):
        if dtype_of(operand) not in _VECTOR_DTYPES:
            raise Decline(f"has no vectors of {dtype_of(operand)}")
        if not lies_inside(operand, context.analyzer):
            raise Decline(f"{describe(operand)} may reach outside its tensor")


def check_blocks(tile: GemmTile, m: int, n: int, k: int) -> None:
    """Decline a product that does not consist of blocks, or in which rows of A do not lie along K."""
    for name, extent, multiple in (("M", tile.m, m), ("N", tile.n, n), ("K", tile.k, k)):
        if extent % multiple:
            raise Decline(f"{name} = {extent} is not a multiple of {multiple}")
    if tile.transpose_a:
        raise Decline("the rows of A do not lie along K")


def _has_dots(op: Gemm, context: LoweringContext) -> None:
    check_vectors(op, context)
    tile = tile_of(op)
    if choose(tile, cpu(context.target).dots) is None:
        raise Decline(f"no dot product of {tile.a.dtype} and {tile.b.dtype} into {tile.c.dtype}")


def reads_in_place(_op: Gemm, _context: LoweringContext) -> dict[str, int]:
    """B is read once, to be packed; A comes from a cache from the second panel of B on."""
    return {"A": 1, "B": 1}


@lowering(Gemm, target="llvm", variant="dots", priority=20, fits=_has_dots, direct=reads_in_place)
def gemm_dots(op: Gemm, context: LoweringContext) -> tirx.Stmt:
    """Register blocks of vectors, by instructions that sum products of narrow elements."""
    tile, machine = tile_of(op), cpu(context.target)
    choice = choose(tile, machine.dots)
    assert choice is not None
    return emit_gemm(tile, machine, DotProducts(tile, choice, machine.lanes(32), context.imports))


@lowering(Gemm, target="llvm", variant="microkernel", priority=10, fits=check_vectors)
def gemm_microkernel(op: Gemm, context: LoweringContext) -> tirx.Stmt:
    """Register blocks of vectors, over operands packed where they have to be."""
    return emit_gemm(tile_of(op), cpu(context.target))


def tile_of(op: Gemm) -> GemmTile:
    """The tile of the micro-kernel."""
    m, n, k = constant_extents(op)
    a, b, c = (
        Matrix(buffer_of(operand), [r.min for r in ranges_of(operand)])
        for operand in (op.A, op.B, op.C)
    )
    return GemmTile(a, b, c, m, n, k, op.transpose_A, op.transpose_B, op.clear_accum)


# Three loops around one multiplication: any dtype and any extents, also run-time ones.
lowering(Gemm, target="llvm", variant="loops")(as_loops)
