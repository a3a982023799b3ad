"""`T.any_of` and `T.all_of`: whether some or all elements of a tile are true."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.errors import InvalidOperand
from tvmtile.frontend.emit import check_operand, emit, require_program
from tvmtile.ir.combiners import COMBINERS
from tvmtile.ir.operands import check_bounds, describe, dtype_of, extents_of
from tvmtile.ir.operators import TileOp, tile_operator
from tvmtile.ir.rewriting import seq
from tvmtile.ir.types import Index, TileOperand
from tvmtile.tileop.across_threads import all_reduce_over_block
from tvmtile.tileop.elementwise import element, over_region
from tvmtile.tileop.registry import LoweringContext, lowering
from tvmtile.tileop.vectors import Total


def any_of(buffer: TileOperand) -> ir.Expr:
    """Tell whether some element of a tile is not zero.

    Parameters
    ----------
    buffer : buffer or region
        Of any dtype, in any scope.

    Returns
    -------
    Expr
        A boolean: the answer at this place of the program.

    Raises
    ------
    InvalidOperand
        If it is not a tile.
    """
    return _quantified("any", buffer)


def all_of(buffer: TileOperand) -> ir.Expr:
    """Tell whether all elements of a tile are not zero.

    Parameters
    ----------
    buffer : buffer or region
        Of any dtype, in any scope.

    Returns
    -------
    Expr
        A boolean: the answer at this place of the program.

    Raises
    ------
    InvalidOperand
        If it is not a tile.
    """
    return _quantified("all", buffer)


def _quantified(kind: str, buffer: TileOperand) -> ir.Expr:
    src = check_operand(f"{kind}_of", "buffer", buffer)
    if extents_of(src) is None:
        raise InvalidOperand(
            f"{kind}_of: {describe(src)} is one element",
            help="use it as the condition itself, or give a region, `A[i0:i1]`",
        )
    require_program(f"{kind}_of")
    answer = T.local_scalar("bool").scalar
    emit(Quantifier(src, answer, kind), f"{kind}_of")
    return answer


@tile_operator
class Quantifier(TileOp):
    """An operator that tells whether any or all elements of `src` are true, into `dst`."""

    name = "quantifier"
    inputs = ("src",)
    outputs = ("dst",)

    src: ir.TensorRegion
    dst: ir.TensorRegion
    kind: str = "any"

    def check(self) -> None:
        check_bounds(f"{self.kind}_of", self.src)

    def truth(self, offsets: list[Index]) -> ir.Expr:
        """The truth of an element, 1 or 0."""
        load = tirx.BufferLoad(buffer_of(self.src), element(self.src, offsets))
        dtype = dtype_of(self.src)
        # LLVM has no comparison of two booleans that TVM would ask it for.
        return tirx.Cast("int32", load if dtype == "bool" else load != tirx.const(0, dtype))


@lowering(Quantifier, target="llvm", variant="elements")
def quantifier_elements(op: Quantifier, _: LoweringContext) -> tirx.Stmt:
    """Look at every element; LLVM makes vectors of it, which an early exit would prevent."""
    total = Total("int32", 1)

    def look(offsets: list[Index]) -> tirx.Stmt:
        found = op.truth(offsets)
        return total.set(total.value | found if op.kind == "any" else total.value & found)

    start = total.starting_from(tirx.const(0 if op.kind == "any" else 1, "int32"))
    visit = over_region(op.src, look, kind=tirx.ForKind.SERIAL)
    indices = element(op.dst, [0] * len(ranges_of(op.dst)))
    answer = tirx.BufferStore(buffer_of(op.dst), total.value != tirx.const(0, "int32"), indices)
    return seq([start, visit, answer])


@lowering(Quantifier, target=("metal", "cuda"), variant="threads")
def quantifier_threads(op: Quantifier, context: LoweringContext) -> tirx.Stmt:
    """Each thread looks at its share of the elements; then the threads put their answers together."""
    found, answer = (
        tirx.decl_buffer((1,), "int32", name=name, scope="local") for name in ("found", "answer")
    )
    combiner = COMBINERS["bitor" if op.kind == "any" else "bitand"]
    total = tirx.BufferLoad(found, [0])

    def look(offsets: list[Index]) -> tirx.Stmt:
        return tirx.BufferStore(found, combiner.combine(op.truth(offsets), total), [0])

    none = tirx.const(0 if op.kind == "any" else 1, "int32")
    holds = tirx.BufferLoad(answer, [0]) != tirx.const(0, "int32")
    indices = element(op.dst, [0] * len(ranges_of(op.dst)))
    return seq(
        [
            tirx.AllocBuffer(found),
            tirx.AllocBuffer(answer),
            tirx.BufferStore(found, none, [0]),
            over_region(op.src, look),
            all_reduce_over_block(found, combiner, context, answer),
            tirx.BufferStore(buffer_of(op.dst), holds, indices),
        ]
    )
