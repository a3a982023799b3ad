"""The tile programs whose Metal source `metal_static.py` counts.

They are the same for tvmtile and TileLang, which can't be installed side by side. Run by an
interpreter that has TileLang, this file prints the Metal source that TileLang makes of each:

    PYTHON metal_static_programs.py '[["gemm", {"k": 128, "threads": 128, "stages": 0}]]'
"""

from __future__ import annotations

import json
import sys
from typing import Any

try:
    import tilelang
    import tilelang.language as T
except ImportError:
    import tvmtile.language as T

BM, BN, BK = 128, 128, 32
M, N = 256, 256


def gemm(k: int, threads: int, stages: int) -> Any:
    """A float16 product of [256, k] and [k, 256] in tiles of 128x128x32, summed in float32."""

    @T.prim_func
    def main(
        A: T.Tensor((M, k), "float16"),
        B: T.Tensor((k, N), "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((BM, BK), "float16")
            B_shared = T.alloc_shared((BK, BN), "float16")
            C_local = T.alloc_fragment((BM, BN), "float32")
            T.clear(C_local)
            for step in T.Pipelined(T.ceildiv(k, BK), num_stages=stages):
                T.copy(A[by * BM, step * BK], A_shared)
                T.copy(B[step * BK, bx * BN], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * BM, bx * BN])

    return main


def attention(keys: int, head: int, block_k: int) -> Any:
    """Flash attention, forward: 64 queries of a head with `keys` keys, `block_k` at a time."""
    block_q, threads = 64, 128
    scale = head**-0.5 * 1.44269504
    by_rows = T.GemmWarpPolicy.FullRow

    @T.prim_func
    def main(
        Q: T.Tensor((block_q, head), "float16"),
        K: T.Tensor((keys, head), "float16"),
        V: T.Tensor((keys, head), "float16"),
        O: T.Tensor((block_q, head), "float16"),
    ):
        with T.Kernel(1, threads=threads) as bx:
            Q_shared = T.alloc_shared((block_q, head), "float16")
            K_shared = T.alloc_shared((block_k, head), "float16")
            V_shared = T.alloc_shared((block_k, head), "float16")
            scores = T.alloc_fragment((block_q, block_k), "float32")
            weights = T.alloc_fragment((block_q, block_k), "float16")
            output = T.alloc_fragment((block_q, head), "float32")
            largest = T.alloc_fragment((block_q,), "float32")
            before = T.alloc_fragment((block_q,), "float32")
            rescale = T.alloc_fragment((block_q,), "float32")
            step_sum = T.alloc_fragment((block_q,), "float32")
            total = T.alloc_fragment((block_q,), "float32")
            T.copy(Q[bx * block_q, 0], Q_shared)
            T.fill(output, 0)
            T.fill(total, 0)
            T.fill(largest, -T.infinity("float32"))
            for step in T.Pipelined(T.ceildiv(keys, block_k), num_stages=0):
                T.copy(K[step * block_k, 0], K_shared)
                T.clear(scores)
                T.gemm(Q_shared, K_shared, scores, transpose_B=True, policy=by_rows)
                T.copy(V[step * block_k, 0], V_shared)
                T.copy(largest, before)
                T.reduce_max(scores, largest, dim=1, clear=False)
                for i in T.Parallel(block_q):
                    rescale[i] = T.exp2(before[i] * scale - largest[i] * scale)
                for i, j in T.Parallel(block_q, head):
                    output[i, j] *= rescale[i]
                for i, j in T.Parallel(block_q, block_k):
                    scores[i, j] = T.exp2(scores[i, j] * scale - largest[i] * scale)
                T.copy(scores, weights)
                T.gemm(weights, V_shared, output, policy=by_rows)
                T.reduce_sum(scores, step_sum, dim=1)
                for i in T.Parallel(block_q):
                    total[i] = total[i] * rescale[i] + step_sum[i]
            for i, j in T.Parallel(block_q, head):
                output[i, j] /= total[i]
            T.copy(output, O[bx * block_q, 0])

    return main


PROGRAMS = {"gemm": gemm, "attention": attention}


def sources_of_tilelang(programs: list[tuple[str, dict[str, int]]]) -> dict[str, Any]:
    """The Metal source that TileLang makes of each program, or why there is none."""
    target = tilelang.tvm.target.Target("metal")
    made = []
    for name, arguments in programs:
        try:
            with target:
                source = tilelang.lower(PROGRAMS[name](**arguments), target=target).kernel_source
            made.append({"source": source})
        except Exception as error:  # noqa: BLE001 (TVM raises several kinds)
            made.append({"error": str(error).strip().splitlines()[-1]})
    return {"version": tilelang.__version__, "made": made}


if __name__ == "__main__":
    print(json.dumps(sources_of_tilelang(json.loads(sys.argv[1]))))
