"""`T.gemm` on a CPU."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvmtile.language.dtypes import DType, cast
from tvmtile.rewriting import for_loop, seq
from tvmtile.tileop.elementwise import element
from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.operands import dtype_of
from tvmtile.tileop.registry import LoweringContext, lowering


@lowering(Gemm, target="llvm", variant="loops", priority=0)
def gemm_loops(op: Gemm, context: LoweringContext) -> tirx.Stmt:
    """Three loops around one multiplication: any extents, also those known at run time only."""
    del context
    dtype = DType(dtype_of(op.C))
    i, j, k = (tirx.Var(name, "int32") for name in "ijk")

    def at(operand: Any, row: Any, column: Any) -> list[Any]:
        return element(operand, [0] * (len(operand.region) - 2) + [row, column])

    a = tirx.BufferLoad(op.A.source, at(op.A, *((k, i) if op.transpose_A else (i, k))))
    b = tirx.BufferLoad(op.B.source, at(op.B, *((j, k) if op.transpose_B else (k, j))))
    c = at(op.C, i, j)
    product = cast(a, dtype) * cast(b, dtype)
    update = tirx.BufferStore(op.C.source, tirx.BufferLoad(op.C.source, c) + product, c)
    inner: list[tirx.Stmt] = [for_loop(k, op.k, update)]
    if op.clear_accum:
        inner.insert(0, tirx.BufferStore(op.C.source, tirx.const(0, str(dtype)), c))
    return for_loop(i, op.m, for_loop(j, op.n, seq(inner)))
