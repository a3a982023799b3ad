"""The CPU's matrix multiplication by Intel's AMX, for a `T.gemm` that asks for it.

B is packed as for the dot products (`tvmtile.tileop.gemm.dots`), a panel of 32 columns at a time; a
function multiplies it by 32 rows of A, which lie as they are (`tvmtile.codegen.llvm_tiles`).
"""

from __future__ import annotations

from tvm import DataType, ir, tirx

from tvmtile._tvm import buffer_of
from tvmtile.codegen.llvm_dots import DotProduct
from tvmtile.codegen.llvm_tiles import ALLOW_TILES, BLOCK, STEP_BYTES, TILE_PRODUCTS, tile_function
from tvmtile.ir.operands import constant, describe
from tvmtile.ir.rewriting import seq
from tvmtile.ir.types import Index
from tvmtile.target import cpu
from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.gemm.cpu import check_blocks, check_vectors, tile_of
from tvmtile.tileop.gemm.dots import DotInstruction, DotProducts
from tvmtile.tileop.gemm.microkernel import GemmTile
from tvmtile.tileop.gemm.packing import Matrix
from tvmtile.tileop.registry import Decline, LoweringContext, lowering
from tvmtile.tileop.vectors import loop


def _instruction(tile: GemmTile, context: LoweringContext) -> str:
    dtypes = (tile.a.dtype, tile.b.dtype, tile.c.dtype)
    for name in cpu(context.target).tiles:
        if TILE_PRODUCTS[name] == dtypes:
            return name
    raise Decline(f"no product of tiles of {dtypes[0]} and {dtypes[1]} into {dtypes[2]}")


def _fits(op: Gemm, context: LoweringContext) -> None:
    check_vectors(op, context)
    tile = tile_of(op)
    _instruction(tile, context)
    if "linux" not in str(context.target.attrs.get("mtriple", "linux")):
        raise Decline("only of Linux it is known how a process gets tile registers")
    check_blocks(tile, BLOCK, BLOCK, STEP_BYTES // _bytes(tile.a))
    for operand in (op.A, op.C):
        shape = buffer_of(operand).ty.shape
        if buffer_of(operand).ty.strides or constant(shape[-1]) is None:
            raise Decline(f"the rows of {describe(operand)} have no constant distance")


def _bytes(matrix: Matrix) -> int:
    return int(DataType(matrix.dtype).bits // 8)


@lowering(Gemm, target="llvm", variant="amx", priority=5, fits=_fits)
def gemm_amx(op: Gemm, context: LoweringContext) -> tirx.Stmt:
    """Blocks of 32 x 32 sums in tile registers, over the whole of K."""
    tile = tile_of(op)
    name = _instruction(tile, context)
    a, b, sums = TILE_PRODUCTS[name]
    dot = DotProduct(name, a, b, sums, "", "", ())
    lanes = BLOCK // 2
    products = DotProducts(
        tile, DotInstruction(dot, a, b, swapped=False, flips=False), lanes, context.imports
    )
    function, text = tile_function(name, tile.clear)
    allow, allow_text = ALLOW_TILES
    context.imports.extend((allow_text, text))

    def panel(number: Index) -> tirx.Stmt:
        packed, statements = products.packed_b(number * BLOCK, (lanes, lanes))
        assert isinstance(packed, Matrix)

        def block(row: Index) -> tirx.Stmt:
            places = [
                *_place(tile.c, row * BLOCK, number * BLOCK),
                *_place(tile.a, row * BLOCK, 0),
                *_place(packed, 0, 0),
            ]
            steps = tirx.const(tile.k * _bytes(tile.a) // STEP_BYTES, "int64")
            return tirx.Evaluate(tirx.call_extern("int32", function, *places, steps))

        return seq([*statements, loop("block", tile.m // BLOCK, block)])

    allowed = tirx.Evaluate(tirx.call_extern("int32", allow))
    return seq([allowed, loop("panel", tile.n // BLOCK, panel)])


def _place(matrix: Matrix, row: Index, column: Index) -> list[ir.Expr]:
    """The address of an element, and the bytes from one row to the next."""
    pitch = (constant(matrix.buffer.ty.shape[-1]) or 0) * _bytes(matrix)
    return [tirx.address_of(matrix.load(row, column)), tirx.const(pitch, "int64")]
