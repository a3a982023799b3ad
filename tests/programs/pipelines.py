"""Pipelined loops of every kind: any number of stages computes the same."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

STAGES = [3, 0, 1, 2, 4]


@program(
    tags={"pipelined"},
    parameters={"stages": STAGES},
    inputs={
        "starts": lambda rng, shape: [1, 0, 0, 0, 0, 1, 3, 5, 4],
        "stops": lambda rng, shape: [6, 0, 1, 2, 6, 4, 6, 6, 2],
    },
    fast=["sm_90a"],
)
def pipeline_dynamic_trips_and_starts(
    A: T.Tensor((6, 32, 32), "float16"),
    starts: T.Tensor((9,), "int32"),
    stops: T.Tensor((9,), "int32"),
    C: T.Tensor((9, 32, 32), "float32"),
):
    with T.Kernel(9, threads=64) as bx:
        tile = T.alloc_shared((32, 32), "float16")
        total = T.alloc_fragment((32, 32), "float32")
        T.clear(total)
        for k in T.Pipelined(starts[bx], stops[bx], num_stages=stages):
            T.copy(A[k, :, :], tile)
            for i, j in T.Parallel(32, 32):
                total[i, j] = total[i, j] * 2 + tile[j, i]
        T.copy(total, C[bx, :, :])


@program(
    tags={"pipelined"},
    parameters={"stages": STAGES},
    sizes=[{"n": 5}, {"n": 1}, {"n": 2}],
)
def pipeline_dynamic_length(A: T.Tensor((n, 64), "float32"), C: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((64,), "float32")
        total = T.alloc_fragment((64,), "float32")
        T.clear(total)
        for k in T.Pipelined(n, num_stages=stages):
            T.copy(A[k, :], tile)
            for i in T.Parallel(64):
                total[i] = total[i] * 2 + tile[63 - i]
        T.copy(total, C)


@program(tags={"pipelined"}, parameters={"stages": STAGES}, fast=["metal"])
def pipeline_ragged_vector(A: T.Tensor((1237,), "float16"), C: T.Tensor((512,), "float32")):
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((512,), "float16")
        total = T.alloc_fragment((512,), "float32")
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(1237, 512), num_stages=stages):
            T.copy(A[k * 512], tile)
            for i in T.Parallel(512):
                total[i] = total[i] * 2 + tile[511 - i]
        T.copy(total, C)


@program(tags={"pipelined"}, parameters={"stages": STAGES})
def pipeline_loops_after_each_other_that_share_a_tile(
    A: T.Tensor((5, 32, 32), "float16"), C: T.Tensor((2, 32, 32), "float32")
):
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((32, 32), "float16")
        total = T.alloc_fragment((32, 32), "float32")
        T.copy(A[4, :, :], tile)
        T.copy(tile, total)
        for k in T.Pipelined(5, num_stages=stages):
            T.copy(A[k, :, :], tile)
            for i, j in T.Parallel(32, 32):
                total[i, j] = total[i, j] * 2 + tile[j, i]
        for k in T.Pipelined(1, 4, num_stages=2):
            T.copy(A[k, :, :], tile)
            for i, j in T.Parallel(32, 32):
                total[i, j] = total[i, j] * 2 + tile[j, i]
        T.copy(tile, C[1, :, :])
        T.copy(total, C[0, :, :])


@program(tags={"pipelined", "persistent"}, parameters={"stages": STAGES})
def pipeline_in_persistent_and_serial_loops(
    A: T.Tensor((6, 5, 32, 32), "float16"), C: T.Tensor((6, 32, 32), "float32")
):
    with T.Kernel(2, threads=64) as bx:
        tile = T.alloc_shared((32, 32), "float16")
        total = T.alloc_fragment((32, 32), "float32")
        for r, c in T.Persistent([3, 2], 2, bx):
            T.clear(total)
            for half in T.serial(2):
                for k in T.Pipelined(half * 2, 2 + half * 3, num_stages=stages):
                    T.copy(A[r * 2 + c, k, :, :], tile)
                    for i, j in T.Parallel(32, 32):
                        total[i, j] = total[i, j] * 2 + tile[j, i]
            T.copy(total, C[r * 2 + c, :, :])


@program(tags={"pipelined"}, parameters={"stages": STAGES})
def pipeline_in_a_pipeline(
    A: T.Tensor((4, 64), "float32"),
    B: T.Tensor((4, 3, 64), "float32"),
    C: T.Tensor((64,), "float32"),
):
    with T.Kernel(1, threads=64):
        outer = T.alloc_shared((64,), "float32")
        inner = T.alloc_shared((64,), "float32")
        total = T.alloc_fragment((64,), "float32")
        T.clear(total)
        for k in T.Pipelined(4, num_stages=stages):
            T.copy(A[k, :], outer)
            for j in T.Pipelined(3, num_stages=3):
                T.copy(B[k, j, :], inner)
                for i in T.Parallel(64):
                    total[i] = total[i] * 2 + outer[63 - i] * inner[i ^ 1]
        T.copy(total, C)


@program(
    tags={"pipelined", "gemm"},
    parameters={"stages": STAGES},
    inputs={
        "mask": lambda rng, shape: [[1, 0, 1, 1, 0, 0, 1], [0] * 7, [1] * 7, [0] * 6 + [1]],
    },
    fast=["sm_80"],
)
def pipeline_blocks_that_a_mask_leaves_out(
    A: T.Tensor((32, 112), "float16"),
    B: T.Tensor((112, 32), "float16"),
    mask: T.Tensor((4, 7), "int32"),
    C: T.Tensor((4, 32, 32), "float32"),
):
    with T.Kernel(4, threads=64) as bx:
        A_s = T.alloc_shared((32, 16), "float16")
        B_s = T.alloc_shared((16, 32), "float16")
        total = T.alloc_fragment((32, 32), "float32")
        T.clear(total)
        for k in T.Pipelined(7, num_stages=stages):
            if mask[bx, k] != 0:
                at = k * 16
                T.copy(A[0, at], A_s)
                T.copy(B[at, 0], B_s)
                T.gemm(A_s, B_s, total)
        T.copy(total, C[bx, :, :])


@program(
    tags={"pipelined"},
    parameters={"stages": STAGES},
    inputs={"rows": lambda rng, shape: [3, 0, 6, 2, 7, 4]},
)
def pipeline_rows_by_a_table(
    A: T.Tensor((8, 32, 32), "float16"),
    rows: T.Tensor((6,), "int32"),
    C: T.Tensor((9, 32, 32), "float16"),
):
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((32, 32), "float16")
        for k in T.Pipelined(6, num_stages=stages):
            row = rows[k]
            other = row + 1
            T.copy(A[row, :, :], tile)
            for i, j in T.Parallel(32, 32):
                C[other, i, j] = tile[j, i] + row


@program(tags={"pipelined"}, parameters={"stages": STAGES})
def pipeline_consumer_that_writes_back(
    A: T.Tensor((5, 32, 32), "float16"), C: T.Tensor((5, 32, 32), "float16")
):
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((32, 32), "float16")
        for k in T.Pipelined(5, num_stages=stages):
            T.copy(A[k, :, :], tile)
            for i, j in T.Parallel(32, 32):
                tile[i, j] = tile[i, j] * 2 + 1
            for i, j in T.Parallel(32, 32):
                C[k, i, j] = tile[j, i]


@program(
    tags={"pipelined", "gemm"},
    parameters={
        "schedule": [
            ([0, 1, 2], [0, 0, 2]),  # copies first
            ([1, 2, 0], [0, 0, 1]),  # the product first
            ([1, 2, 0], [0, 0, 2]),  # the product first, two ahead
            ([0, 1, 2], [0, 1, 3]),  # copies of two stages
            ([2, 0, 1], [0, 1, 3]),  # copies around the product
            ([0, 1, 2], [0, 1, 1]),  # one copy does not run ahead
        ],
    },
)
def pipeline_by_hand(
    A: T.Tensor((32, 80), "float16"),
    B: T.Tensor((80, 32), "float16"),
    C: T.Tensor((32, 32), "float32"),
):
    with T.Kernel(1, threads=64):
        A_s = T.alloc_shared((32, 16), "float16")
        B_s = T.alloc_shared((16, 32), "float16")
        total = T.alloc_fragment((32, 32), "float32")
        T.clear(total)
        for k in T.Pipelined(5, order=schedule[0], stage=schedule[1]):
            T.copy(A[0, k * 16], A_s)
            T.copy(B[k * 16, 0], B_s)
            T.gemm(A_s, B_s, total)
        T.copy(total, C)


@program(tags={"pipelined", "gemm"}, parameters={"stages": STAGES}, fast=["sm_90a"])
def pipeline_copy_and_conversion(
    A: T.Tensor((32, 64), "float16"),
    B: T.Tensor((32, 64), "int8"),
    scales: T.Tensor((4, 32), "float16"),
    C: T.Tensor((32, 32), "float32"),
):
    with T.Kernel(1, threads=64):
        A_s = T.alloc_shared((32, 16), "float16")
        B_s = T.alloc_shared((32, 16), "float16")  # converted on the way
        scales_s = T.alloc_shared((32,), "float16")
        total = T.alloc_fragment((32, 32), "float32")
        part = T.alloc_fragment((32, 32), "float32")
        T.clear(total)
        for k in T.Pipelined(4, num_stages=stages):
            T.copy(A[0, k * 16], A_s)
            T.copy(B[0, k * 16], B_s)
            T.copy(scales[k, :], scales_s)
            T.clear(part)
            T.gemm(A_s, B_s, part, transpose_B=True)
            for i, j in T.Parallel(32, 32):
                total[i, j] += part[i, j] * scales_s[i]
        T.copy(total, C)


@program(tags={"pipelined"}, parameters={"stages": STAGES})
def pipeline_tile_in_parts(
    A: T.Tensor((5, 32, 24), "float16"), C: T.Tensor((5, 32, 32), "float16")
):
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((32, 32), "float16")
        for k in T.Pipelined(5, num_stages=stages):
            T.fill(tile, 7)
            T.copy(A[k, :, 0:16], tile[:, 0:16])
            T.copy(A[k, :, 16:24], tile[:, 16:24])
            for i, j in T.Parallel(32, 32):
                C[k, i, j] = tile[j, i]


@program(
    tags={"pipelined"},
    parameters={"stages": STAGES},
    inputs={"trips": lambda rng, shape: [0, 1, 2, 5]},
    fast=["sm_90a"],
)
def pipeline_last_tile_after_the_loop(
    A: T.Tensor((6, 32, 32), "float16"),
    trips: T.Tensor((4,), "int32"),
    C: T.Tensor((4, 32, 32), "float16"),
):
    with T.Kernel(4, threads=64) as bx:
        tile = T.alloc_shared((32, 32), "float16")
        total = T.alloc_fragment((32, 32), "float16")
        T.clear(total)
        count = trips[bx]
        T.copy(A[5, :, :], tile)
        for k in T.Pipelined(count, num_stages=stages):
            T.copy(A[k, :, :], tile)
            for i, j in T.Parallel(32, 32):
                total[i, j] = tile[j, i]
        for i, j in T.Parallel(32, 32):
            C[bx, i, j] = tile[j, i] + total[i, j]


@program(
    tags={"pipelined", "gemm"},
    parameters={"stages": STAGES},
    inputs={"first": lambda rng, shape: [0, 20, 60]},
    fast=["sm_90a"],
)
def pipeline_rows_of_a_group_found_at_run_time(
    A: T.Tensor((96, 64), "float16"),
    B: T.Tensor((3, 64, 32), "float16"),
    first: T.Tensor((3,), "int32"),
    C: T.Tensor((3, 32, 32), "float32"),
):
    """The rows that are copied are named by variables that are stored again and again."""
    with T.Kernel(3, threads=64) as bx:
        A_s = T.alloc_shared((32, 16), "float16")
        B_s = T.alloc_shared((16, 32), "float16")
        total = T.alloc_fragment((32, 32), "float32")
        group = T.alloc_var("int32", 0)
        for i in T.serial(3):
            group = T.if_then_else(bx >= i, i, group)
        row = first[group]
        T.clear(total)
        for k in T.Pipelined(4, num_stages=stages):
            T.copy(A[row : row + 32, k * 16 : (k + 1) * 16], A_s)
            T.copy(B[group, k * 16 : (k + 1) * 16, 0:32], B_s)
            T.gemm(A_s, B_s, total)
        T.copy(total, C[bx, 0, 0])


@program(tags={"pipelined"}, parameters={"stages": STAGES})
def pipeline_sum_that_the_next_copy_needs(
    A: T.Tensor((8, 64), "int32"), C: T.Tensor((64,), "int32")
):
    """It can't be pipelined: what is copied depends on what was computed."""
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((64,), "int32")
        where = T.alloc_shared((1,), "int32")
        total = T.alloc_fragment((64,), "int32")
        T.clear(total)
        T.clear(where)
        for _ in T.Pipelined(5, num_stages=stages):
            T.copy(A[where[0], :], tile)
            for i in T.Parallel(64):
                total[i] = total[i] * 2 + tile[63 - i]
            where[0] = (where[0] + 3) % 8
        T.copy(total, C)


@program(
    tags={"pipelined", "gemm"},
    parameters={
        "extents": [
            (40, 72, 88),
            (32, 64, 16),
            (32, 64, 32),
            (32, 64, 112),
            (40, 30, 90),
            (40, 33, 45),
        ],
        "stages": STAGES,
    },
    examples=[{}, {"extents": (40, 30, 90)}, {"extents": (40, 33, 45)}, {"extents": (32, 64, 16)}],
    fast=["metal", "sm_80"],
)
def pipeline_of_products(
    A: T.Tensor((extents[0], extents[2]), "float16"),
    B: T.Tensor((extents[2], extents[1]), "float16"),
    C: T.Tensor((extents[0], extents[1]), "float32"),
):
    """Of one step, two and seven; over the edges; of rows that no vector and no word aligns."""
    M, N, K = extents
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=64) as (bx, by):
        A_s = T.alloc_shared((32, 16), "float16")
        B_s = T.alloc_shared((16, 32), "float16")
        total = T.alloc_fragment((32, 32), "float32")
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(K, 16), num_stages=stages):
            T.copy(A[by * 32, k * 16], A_s)
            T.copy(B[k * 16, bx * 32], B_s)
            T.gemm(A_s, B_s, total)
        T.copy(total, C[by * 32, bx * 32])
