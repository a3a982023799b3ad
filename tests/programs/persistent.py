"""Kernels whose blocks stay and take turns on Hopper, where the grid has more of them than run at once.

On `sm_90a`, tests/passes/tile/test_persistent_blocks.py runs them on a GPU that runs three at once.
"""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

TARGETS = ["llvm", "sm_80", "sm_90a", "gpu"]
TAGS = {"blocks that stay", "gemm"}


@program(
    tags=TAGS,
    parameters={
        "shape": [
            (384, 256, 96), (256, 256, 160), (200, 136, 72), (129, 264, 40), (640, 192, 32),
            (640, 8, 64), (256, 256, 0),
        ],
        "block": [(128, 64, 32), (64, 128, 32), (128, 128, 32), (192, 64, 32)],
        "warpgroups": [2, 1, 3],
        "stages": [3, 1, 2, 4],
        "order": ["row", "column", "strip"],
        "panel": [2, 0, 3],
        "dtypes": [
            ("float16", "float16"), ("bfloat16", "bfloat16"), ("float16", "float32"),
            ("float16", "bfloat16"),
        ],
        "shared_by": [0, 2],
    },
    examples=[
        {},
        {"shape": (129, 264, 40)},
        {"shape": (200, 136, 72), "stages": 1},
        {"shape": (640, 192, 32), "order": "strip"},
        {"shape": (640, 192, 32), "order": "column", "panel": 3},
        {"shape": (256, 256, 160), "stages": 4, "dtypes": ("float16", "float32")},
        {"shape": (256, 256, 0)},
        {"block": (64, 128, 32), "warpgroups": 1, "panel": 0},
        {"block": (192, 64, 32), "warpgroups": 3},
        {"block": (192, 64, 32), "warpgroups": 3, "shared_by": 2},
        {"block": (128, 64, 32), "shared_by": 2, "dtypes": ("bfloat16", "bfloat16")},
    ],
    where=lambda p: p.block[0] % (64 * p.warpgroups) == 0,
    targets=TARGETS,
)  # fmt: skip
def persistent_product(
    A: T.Tensor((shape[0], max(shape[2], 1)), dtypes[0]),
    B: T.Tensor((max(shape[2], 1), shape[1]), dtypes[0]),
    C: T.Tensor((shape[0], shape[1]), dtypes[1]),
):
    """The rings of both roles go on from one block to the next, whatever stages divide."""
    M, N, K = shape
    bm, bn, bk = block
    with T.Kernel(T.ceildiv(N, bn), T.ceildiv(M, bm), threads=warpgroups * 128) as (bx, by):
        T.annotate_persistent()
        if shared_by:
            T.annotate_min_blocks_per_sm(shared_by)
        a, b = T.alloc_shared((bm, bk), dtypes[0]), T.alloc_shared((bk, bn), dtypes[0])
        c = T.alloc_fragment((bm, bn), "float32")
        if panel:
            T.use_swizzle(panel, order=order)
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, bk), num_stages=stages):
            T.copy(A[by * bm, k * bk], a)
            T.copy(B[k * bk, bx * bn], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * bm, bx * bn])


@program(
    tags=TAGS,
    parameters={"depends": [False, True]},
    examples=[{}, {"depends": True}],
    sizes=[{"rows": 1}, {"rows": 128}, {"rows": 300}, {"rows": 1000}],
    targets=TARGETS,
)
def persistent_rows_of_the_call(
    A: T.Tensor((rows, 640), "float16"),
    B: T.Tensor((640, 64), "float16"),
    C: T.Tensor((rows, 64), "float16"),
):
    """As many blocks as there are tiles, where these are fewer; trips may depend on the block."""
    with T.Kernel(1, T.ceildiv(rows, 128), threads=256) as (bx, by):
        T.annotate_persistent()
        a, b = T.alloc_shared((128, 64), "float16"), T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((128, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(T.min(by + 1, 10) if depends else 10, num_stages=2):
            T.copy(A[by * 128, k * 64], a)
            T.copy(B[k * 64, 0], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * 128, 0])


@program(
    tags=TAGS,
    parameters={"form": ["an epilogue", "a loop around", "a mask"], "stages": [2, 1, 4]},
    examples=[
        {},
        {"form": "a loop around"},
        {"form": "a mask"},
        {"form": "a mask", "stages": 1},
        {"form": "a mask", "stages": 4},
    ],
    targets=TARGETS,
    inputs={
        "mask": lambda rng, shape: (
            rng.integers(0, 2, shape) * np.array([1, 0, 1, 1, 1])[:, None, None]
        )
    },
)
def persistent_code_around_the_loop(
    A: T.Tensor((640, 320), "float16"),
    B: T.Tensor((320, 256), "float16"),
    bias: T.Tensor((256,), "float16"),
    mask: T.Tensor((5, 2, 5), "int32"),
    C: T.Tensor((640, 256), "float32"),
):
    """The count of iterations that were done goes on from one turn to the next."""
    with T.Kernel(2, 5, threads=256) as (bx, by):
        T.annotate_persistent()
        a, b = T.alloc_shared((128, 64), "float16"), T.alloc_shared((64, 128), "float16")
        row = T.alloc_shared((128,), "float16")
        c = T.alloc_fragment((128, 128), "float32")
        T.copy(bias[bx * 128], row)
        T.clear(c)
        if form == "a mask":
            for k in T.Pipelined(5, num_stages=stages):
                if mask[by, bx, k] > 0:
                    T.copy(A[by * 128, k * 64], a)
                    T.copy(B[k * 64, bx * 128], b)
                    T.gemm(a, b, c)
        elif form == "a loop around":
            for half in T.serial(2):
                for k in T.Pipelined(2, num_stages=stages):
                    T.copy(A[by * 128, (half * 3 + k) * 64], a)
                    T.copy(B[(half * 2 + k) * 64, bx * 128], b)
                    T.gemm(a, b, c)
        else:
            for k in T.Pipelined(5, num_stages=stages):
                T.copy(A[by * 128, k * 64], a)
                T.copy(B[k * 64, bx * 128], b)
                T.gemm(a, b, c)
        for i, j in T.Parallel(128, 128):
            c[i, j] = T.max(c[i, j] + row[j], 0)
        T.copy(c, C[by * 128, bx * 128])


@program(
    tags={"blocks that stay", "attention"},
    parameters={"causal": [False, True], "extents": [(384, 2), (768, 1), (128, 6), (300, 3)]},
    examples=[{}, {"causal": True}, {"causal": True, "extents": (300, 3)}],
    targets=TARGETS,
    expects=lambda p: {"sm_90a": ["Q_map"]},
)
def persistent_attention(
    Q: T.Tensor((extents[1], extents[0], 64), "float16"),
    K: T.Tensor((extents[1], extents[0], 64), "float16"),
    V: T.Tensor((extents[1], extents[0], 64), "float16"),
    O: T.Tensor((extents[1], extents[0], 64), "float16"),
):
    """The queries of the next block are copied while those of this one are used; the longest first."""
    length, heads = extents
    with T.Kernel(T.ceildiv(length, 128), heads, threads=256) as (bx, by):
        x = (length + 127) // 128 - 1 - bx
        q = T.alloc_shared((128, 64), "float16")
        k, v = T.alloc_shared((128, 64), "float16"), T.alloc_shared((128, 64), "float16")
        scores = T.alloc_fragment((128, 128), "float32")
        weights = T.alloc_fragment((128, 128), "float16")
        out = T.alloc_fragment((128, 64), "float32")
        total, part = T.alloc_fragment((128,), "float32"), T.alloc_fragment((128,), "float32")
        T.copy(Q[by, x * 128, 0], q)
        T.clear(out)
        T.clear(total)
        for step in T.Pipelined(x + 1 if causal else (length + 127) // 128, num_stages=2):
            T.copy(K[by, step * 128, 0], k)
            T.gemm(q, k, scores, False, True, T.GemmWarpPolicy.FullRow, True)
            T.copy(V[by, step * 128, 0], v)
            for i, j in T.Parallel(128, 128):
                if causal:
                    scores[i, j] = T.if_then_else(
                        x * 128 + i >= step * 128 + j, T.exp2(T.min(scores[i, j] / 16, 4)), 0
                    )
                else:
                    scores[i, j] = T.if_then_else(
                        step * 128 + j < length, T.exp2(T.min(scores[i, j] / 16, 4)), 0
                    )
            T.copy(scores, weights)
            T.reduce_sum(scores, part, dim=1)
            for i in T.Parallel(128):
                total[i] = total[i] + part[i]
            T.gemm(weights, v, out, policy=T.GemmWarpPolicy.FullRow)
        for i, j in T.Parallel(128, 64):
            out[i, j] /= total[i]
        T.copy(out, O[by, x * 128, 0])
