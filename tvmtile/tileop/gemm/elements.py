"""`T.gemm` without a matrix unit: every element of the accumulator is a sum of products."""

from __future__ import annotations

from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.registry import as_loops, lowering


def _slow(op: Gemm) -> str | None:
    if not op.has_related_dtypes():  # which was said when the call was written
        return None
    return "is computed element by element, which is slow"


# `C[i, j] += A[i, k] * B[k, j]`, the elements shared out over the threads.
lowering(Gemm, target=("metal", "cuda"), variant="elements", slow=_slow)(as_loops)
