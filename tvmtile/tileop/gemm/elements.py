"""`T.gemm` without a matrix unit: every element of the accumulator is a sum of products."""

from __future__ import annotations

from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.gemm.fma import slow
from tvmtile.tileop.registry import as_loops, lowering

# `C[i, j] += A[i, k] * B[k, j]`, the elements shared out over the threads.
lowering(Gemm, target=("metal", "cuda"), variant="elements", slow=slow)(as_loops)
