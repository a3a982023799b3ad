"""`T.dp4a`: the dot product of four int8 values, added to an int32."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvmtile._tvm import buffer_of, indices_of
from tvmtile.errors import UnsupportedDtype
from tvmtile.frontend.emit import check_operand, emit
from tvmtile.ir.operands import describe, dtype_of, offset_in_memory, origin_of
from tvmtile.ir.operators import TileOp, tile_operator
from tvmtile.ir.types import TileOperand
from tvmtile.tileop.elementwise import converted
from tvmtile.tileop.registry import Decline, LoweringContext, lowering
from tvmtile.tileop.vectors import lane_of, ramp

_LANES = 4


def dp4a(A: TileOperand, B: TileOperand, C: TileOperand) -> None:
    """`C += A[0] * B[0] + ... + A[3] * B[3]`, exactly.

    Parameters
    ----------
    A, B : element, region or buffer
        The first of four neighbouring int8 elements, or a tile that begins with them.
    C : element, region or buffer
        The int32 element that is added to.

    Raises
    ------
    UnsupportedDtype
        If the dtypes are others.
    """
    operands = {name: check_operand("dp4a", name, v) for name, v in (("A", A), ("B", B), ("C", C))}
    vectors = [
        tirx.BufferLoad(buffer_of(operand), [*origin[:-1], ramp(origin[-1], lanes)])
        for operand, lanes in zip(operands.values(), (_LANES, _LANES, 1), strict=True)
        if (origin := origin_of(operand))
    ]
    emit(Dp4a(*vectors))


@tile_operator
class Dp4a(TileOp):
    """A dot product of four int8 values; `A` and `B` are vector loads, `C` names an element."""

    name = "dp4a"
    inputs = ("A", "B", "C")
    outputs = ("C",)
    is_tile = False

    A: Any
    B: Any
    C: Any

    def check(self) -> None:
        for name, wanted in (("A", "int8"), ("B", "int8"), ("C", "int32")):
            operand = getattr(self, name)
            if dtype_of(operand) != wanted:
                raise UnsupportedDtype(
                    f"dp4a: {name} is {describe(operand)}, not {wanted}",
                    help="A and B are int8 and C is int32",
                )


@lowering(Dp4a, target="llvm", variant="lanes")
def dp4a_lanes(op: Dp4a, _: LoweringContext) -> tirx.Stmt:
    """Four multiplications in int32."""
    product = converted(op.A, "int32") * converted(op.B, "int32")
    total = op.C
    for lane in range(_LANES):
        total = total + tirx.Shuffle([product], [lane])
    return tirx.BufferStore(buffer_of(op.C), total, indices_of(op.C))


def _has_words(op: Dp4a, context: LoweringContext) -> None:
    for operand in (op.A, op.B):
        *outer, last = indices_of(operand)
        assert isinstance(last, tirx.Ramp)  # a vector of four
        first = offset_in_memory(buffer_of(operand), [*outer, last.base])
        if not context.analyzer.can_prove_equal(tirx.floormod(first, _LANES), 0):
            raise Decline(f"{describe(operand)} need not begin at a multiple of {_LANES} bytes")


@lowering(Dp4a, target="cuda", variant="instruction", priority=10, fits=_has_words)
def dp4a_instruction(op: Dp4a, _: LoweringContext) -> tirx.Stmt:
    """CUDA's `__dp4a`, where both vectors are words."""
    words = [tirx.reinterpret("int32", operand) for operand in (op.A, op.B)]
    total = tirx.call_pure_extern("int32", "__dp4a", *words, op.C)
    return tirx.BufferStore(buffer_of(op.C), total, indices_of(op.C))


@lowering(Dp4a, target=("metal", "cuda"), variant="elements")
def dp4a_elements(op: Dp4a, _: LoweringContext) -> tirx.Stmt:
    """Four multiplications in int32, of vectors that need not be aligned."""
    total = op.C
    for lane in range(_LANES):
        a, b = (converted(lane_of(operand, lane), "int32") for operand in (op.A, op.B))
        total = total + a * b
    return tirx.BufferStore(buffer_of(op.C), total, indices_of(op.C))
