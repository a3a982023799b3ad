"""`T.gemm` without a matrix unit: every element of the accumulator is a sum of products."""

from __future__ import annotations

from tvm import tirx

from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.registry import Decline, LoweringContext, lowering

__all__ = ["gemm_elements"]


@lowering(Gemm, target=("metal", "cuda"), variant="elements")
def gemm_elements(op: Gemm, context: LoweringContext) -> tirx.Stmt:
    """`C[i, j] += A[i, k] * B[k, j]`, the elements shared out over the threads."""
    del context
    loops = op.as_loops()
    if loops is None:
        raise Decline("the matrix unit has these dtypes, so that it should be used")
    return loops
