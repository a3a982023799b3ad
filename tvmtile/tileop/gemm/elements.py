"""`T.gemm` without a matrix unit: every element of the accumulator is a sum of products."""

from __future__ import annotations

from tvm import tirx

from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.registry import LoweringContext, lowering

__all__ = ["gemm_elements"]


def _slow(op: Gemm) -> str | None:
    if not op.has_related_dtypes():  # which was said when the call was written
        return None
    return "is computed element by element, which is slow"


@lowering(Gemm, target="metal", variant="elements", slow=_slow)
@lowering(Gemm, target="cuda", variant="elements", slow=_slow)
def gemm_elements(op: Gemm, _: LoweringContext) -> tirx.Stmt:
    """`C[i, j] += A[i, k] * B[k, j]`, the elements shared out over the threads."""
    return op.as_loops()
