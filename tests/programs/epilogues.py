"""What is done with a product before it is stored: it must neither be lost nor be done twice."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import METAL4, TARGETS, program


@program(
    tags={"gemm", "epilogue"},
    parameters={
        "function": [
            "above 5",
            "relu",
            "leaky relu",
            "square",
            "clamp",
            "sigmoid",
            "scale and shift",
            "constant",
        ],
        "out": ["float32", "float16"],
        "stages": [0, 3],
    },
    drawn=8,
    targets=["llvm", "metal", "sm_80", "sm_90a", "gpu"],
    fast=["metal", "sm_80"],
)
def epilogue_of_elements(
    A: T.Tensor((70, 40), "float16"), B: T.Tensor((40, 41), "float16"), C: T.Tensor((70, 41), out)
):
    with T.Kernel(T.ceildiv(41, 64), T.ceildiv(70, 64), threads=128) as (bx, by):
        a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
        x = T.alloc_fragment((64, 64), "float32")
        T.clear(x)
        for k in T.Pipelined(2, num_stages=stages):
            T.copy(A[by * 64, k * 32], a)
            T.copy(B[k * 32, bx * 64], b)
            T.gemm(a, b, x)
        for i, j in T.Parallel(64, 64):
            if function == "above 5":
                x[i, j] = T.if_then_else(x[i, j] > 5, x[i, j], 0)
            elif function == "relu":
                x[i, j] = T.max(x[i, j], 0)
            elif function == "leaky relu":
                x[i, j] = T.if_then_else(x[i, j] > 0, x[i, j], x[i, j] * 0.125)
            elif function == "square":
                x[i, j] = x[i, j] * x[i, j]
            elif function == "clamp":
                x[i, j] = T.min(T.max(x[i, j], -3), 4)
            elif function == "sigmoid":
                x[i, j] = 1 / (1 + T.exp(-T.clamp(x[i, j], -30, 30)))
            elif function == "scale and shift":
                x[i, j] = 0.5 * x[i, j] - 2
            else:
                x[i, j] = T.float32(3)
        T.copy(x, C[by * 64, bx * 64])


@program(
    tags={"gemm", "epilogue"},
    parameters={
        "policy": ["Square", "FullRow", "FullCol"],
        "extents": [(61, 59), (64, 64)],
        "out": ["float32", "float16"],
    },
    fast=["metal"],
)
def epilogue_bias_relu_and_residual(
    A: T.Tensor((M, 32), "float16"),
    B: T.Tensor((32, N), "float16"),
    bias: T.Tensor((N,), "float32"),
    row_bias: T.Tensor((M,), "float16"),
    residual: T.Tensor((M, N), out),
    C: T.Tensor((M, N), out),
):
    M, N = extents
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
        a, b = T.alloc_shared((32, 32), "float16"), T.alloc_shared((32, 32), "float16")
        x = T.alloc_fragment((32, 32), "float32")
        bias_local = T.alloc_fragment((32,), "float32")
        T.copy(A[by * 32, 0], a)
        T.copy(B[0, bx * 32], b)
        T.copy(bias[bx * 32], bias_local)
        T.clear(x)
        T.gemm(a, b, x, policy=getattr(T.GemmWarpPolicy, policy))
        for i, j in T.Parallel(32, 32):
            biased = x[i, j] + bias_local[j] + row_bias[by * 32 + i]
            x[i, j] = T.max(biased, 0) + residual[by * 32 + i, bx * 32 + j]
        T.copy(x, C[by * 32, bx * 32])


@program(tags={"gemm", "epilogue"}, fast=["metal"])
def epilogue_with_scalars_of_the_call(
    A: T.Tensor((32, 32), "float16"),
    B: T.Tensor((32, 32), "float16"),
    C: T.Tensor((32, 32), "float32"),
    alpha: T.float32,
    beta: T.float32,
):
    with T.Kernel(1, threads=64):
        x = T.alloc_fragment((32, 32), "float32")
        T.clear(x)
        T.gemm(A, B, x)
        for i, j in T.Parallel(32, 32):
            C[i, j] = x[i, j] * alpha + C[i, j] * beta


@program(tags={"gemm", "epilogue"}, fast=["metal", "sm_80"])
def epilogue_scaled_by_reductions_of_the_product(
    A: T.Tensor((64, 32), "float16"),
    B: T.Tensor((32, 64), "float16"),
    C: T.Tensor((64, 64), "float32"),
    largest: T.Tensor((64,), "float32"),
):
    with T.Kernel(1, threads=128):
        x = T.alloc_fragment((64, 64), "float32")
        row_max = T.alloc_fragment((64,), "float32")
        column_sum = T.alloc_fragment((64,), "float32")
        T.clear(x)
        T.gemm(A, B, x)
        T.reduce_absmax(x, row_max, dim=1)
        T.reduce_sum(x, column_sum, dim=0)
        for i, j in T.Parallel(64, 64):
            x[i, j] = x[i, j] / row_max[i] - column_sum[j]
        T.copy(x, C)
        T.copy(row_max, largest)


@program(
    tags={"gemm", "epilogue"},
    targets=[*TARGETS, METAL4],
    # B, with rows of at most 16 bytes more: A is read once, by the simdgroup that needs it.
    counts={METAL4: "threadgroup_memory <= 32 * (64 + 8) * 2"},
    fast=[METAL4],
)
def epilogue_with_largest_of_rows(
    A: T.Tensor((64, 32), "float16"),
    B: T.Tensor((32, 64), "float16"),
    bias: T.Tensor((64,), "float32"),
    C: T.Tensor((64, 64), "float16"),
    largest: T.Tensor((64,), "float32"),
):
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
        x, rows = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64,), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, x, clear_accum=True, policy=T.GemmWarpPolicy.FullRow)
        for i, j in T.Parallel(64, 64):
            x[i, j] = T.max(x[i, j] + bias[j], T.float32(0)) * T.float32(0.5)
        T.reduce_max(x, rows, dim=1)
        T.copy(x, C)
        T.copy(rows, largest)


@program(tags={"gemm", "epilogue"}, fast=["metal"])
def epilogue_of_two_outputs_and_a_mask(
    A: T.Tensor((32, 32), "float16"),
    B: T.Tensor((32, 32), "float16"),
    C: T.Tensor((32, 32), "bfloat16"),
    D: T.Tensor((32, 32), "float32"),
    mask: T.Tensor((32, 32), "uint8"),
):
    with T.Kernel(1, threads=32):
        x = T.alloc_fragment((32, 32), "float32")
        narrow = T.alloc_fragment((32, 32), "bfloat16")
        T.clear(x)
        T.gemm(A, B, x)
        T.copy(x, narrow)
        T.copy(narrow, C)
        for i, j in T.Parallel(32, 32):
            mask[i, j] = T.cast(x[i, j] > 0, "uint8")
            D[j, i] = x[i, j]


@program(tags={"gemm", "epilogue"}, fast=["sm_80"])
def epilogue_of_rows_that_warps_repeat(
    A: T.Tensor((16, 32), "float16"),
    B: T.Tensor((32, 16), "float16"),
    sums: T.Tensor((16,), "float32"),
    total: T.Tensor((1,), "float32"),
):
    """More warps than the product has work for: what they repeat is added once."""
    with T.Kernel(1, threads=256):
        a, b = T.alloc_shared((16, 32), "float16"), T.alloc_shared((32, 16), "float16")
        x = T.alloc_fragment((16, 16), "float32")
        rows = T.alloc_fragment((16,), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, x, clear_accum=True)
        T.reduce_sum(x, rows, dim=1)
        T.copy(rows, sums)
        for i, j in T.Parallel(16, 16):
            T.atomic_add(total[0], x[i, j])


@program(
    tags={"gemm", "atomic"},
    parameters={
        "extents": [(50, 37, 100, 3), (32, 32, 128, 4), (8, 8, 64, 1)],
        "whole_tile": [True, False],
    },
    fast=["metal", "sm_90a"],
)
def epilogue_split_k(
    A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")
):
    """Products of parts of K are added atomically: element by element, or as a tile."""
    M, N, K, splits = extents
    part = -(-K // (splits * 16)) * 16
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), splits, threads=128) as (bx, by, bz):
        a, b = T.alloc_shared((32, 16), "float16"), T.alloc_shared((16, 32), "float16")
        x, shared = T.alloc_fragment((32, 32), "float32"), T.alloc_shared((32, 32), "float32")
        T.clear(x)
        for k in T.Pipelined(part // 16, num_stages=2):
            T.copy(A[by * 32, bz * part + k * 16], a)
            T.copy(B[bz * part + k * 16, bx * 32], b)
            T.gemm(a, b, x)
        if whole_tile:
            T.copy(x, shared)
            T.atomic_add(C[by * 32, bx * 32], shared)
        else:
            for i, j in T.Parallel(32, 32):
                T.atomic_add(C[by * 32 + i, bx * 32 + j], x[i, j])


@program(tags={"gemm", "epilogue", "pipelined"}, fast=["sm_90a"])
def epilogue_gated_linear_unit(
    A: T.Tensor((48, 64), "float16"),
    gate: T.Tensor((32, 64), "float16"),
    up: T.Tensor((32, 64), "float16"),
    C: T.Tensor((48, 32), "float16"),
):
    with T.Kernel(1, T.ceildiv(48, 32), threads=128) as (bx, by):
        a, gate_s = T.alloc_shared((32, 32), "float16"), T.alloc_shared((32, 32), "float16")
        up_s = T.alloc_shared((32, 32), "float16")
        gates, ups = T.alloc_fragment((32, 32), "float32"), T.alloc_fragment((32, 32), "float32")
        T.clear(gates)
        T.clear(ups)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[by * 32, k * 32], a)
            T.copy(gate[bx * 32, k * 32], gate_s)
            T.copy(up[bx * 32, k * 32], up_s)
            T.gemm(a, gate_s, gates, transpose_B=True)
            T.gemm(a, up_s, ups, transpose_B=True)
        for i, j in T.Parallel(32, 32):
            bounded = T.clamp(gates[i, j], -20, 20)
            ups[i, j] *= bounded / (1 + T.exp(-bounded))
        T.copy(ups, C[by * 32, bx * 32])


@program(tags={"gemm", "pipelined"}, fast=["metal", "sm_90a"])
def epilogue_of_blocks_with_scales_of_their_own(
    A: T.Tensor((32, 128), "float16"),
    B: T.Tensor((128, 32), "float16"),
    scales: T.Tensor((32, 4), "float32"),
    C: T.Tensor((32, 32), "float32"),
):
    with T.Kernel(1, threads=64):
        a, b = T.alloc_shared((32, 32), "float16"), T.alloc_shared((32, 32), "float16")
        scale = T.alloc_shared((32,), "float32")
        part, total = T.alloc_fragment((32, 32), "float32"), T.alloc_fragment((32, 32), "float32")
        T.clear(part)
        T.clear(total)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[0, k * 32], a)
            T.copy(B[k * 32, 0], b)
            for i in T.Parallel(32):
                scale[i] = scales[i, k]
            T.gemm(a, b, part)
            for i, j in T.Parallel(32, 32):
                total[i, j] += part[i, j] * scale[i]
            T.clear(part)
        T.copy(total, C)
