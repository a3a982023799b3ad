"""The kernel of tests that are not of what a kernel computes."""

from __future__ import annotations

from typing import Any

import tvmtile.language as T


def scaling(n: Any = 64, factor: float = 2, dtype: str = "float32", name: str = "scale") -> Any:
    """B is A times a factor."""

    @T.prim_func
    def scale(A: T.Tensor((n,), dtype), B: T.Tensor((n,), dtype)):
        with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
            for i in T.Parallel(32):
                B[bx * 32 + i] = A[bx * 32 + i] * factor

    return scale.with_attr("global_symbol", name)
