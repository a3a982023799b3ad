"""`T.gemm` without a matrix unit: every element of the accumulator is a sum of products."""

from __future__ import annotations

from tvm import tirx

from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.registry import Decline, LoweringContext, lowering

__all__ = ["gemm_elements"]


def _slow(op: Gemm) -> str | None:
    if not op.has_related_dtypes():  # which was said when the call was written
        return None
    return "is computed element by element, which is slow"


def _has_no_matrices(op: Gemm, context: LoweringContext) -> None:
    del context
    if op.has_matrix_dtypes() and not op.mixes_halves() and op.impl is None:
        raise Decline("the matrix unit has these dtypes, so that it should be used")


@lowering(Gemm, target="metal", variant="elements", fits=_has_no_matrices, slow=_slow)
@lowering(Gemm, target="cuda", variant="elements", slow=_slow)
def gemm_elements(op: Gemm, context: LoweringContext) -> tirx.Stmt:
    """`C[i, j] += A[i, k] * B[k, j]`, the elements shared out over the threads."""
    del context
    return op.as_loops()
