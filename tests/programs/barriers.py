"""Tiles and tensors that threads exchange elements through."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

DEVICE = "  tvmtile_threadgroup_barrier();"


@program(
    tags={"barriers"},
    expects={
        "metal": [DEVICE, "not  threadgroup_barrier(mem_flags::mem_threadgroup);"],
        "sm_80": ["__syncthreads"],
    },
    fast=["metal"],
)
def rows_reversed_through_a_tensor(
    A: T.Tensor((3, 128), "float32"), W: T.Tensor((3, 128), "float32")
):
    with T.Kernel(3, threads=64) as row:
        for _ in T.serial(3):
            for i in T.Parallel(128):
                W[row, i] = A[row, 127 - i] + 1
            for i in T.Parallel(128):
                A[row, i] = W[row, i] * 2


@program(tags={"barriers"}, fast=["metal"])
def tensor_read_before_and_after_updates(
    A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32"), C: T.Tensor((64,), "int32")
):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            B[i] = A[63 - i]
        for i in T.Parallel(64):
            T.atomic_add(A[i], i)
        for i in T.Parallel(64):
            C[i] = A[63 - i]


@program(tags={"barriers", "gemm"})
def tensor_multiplied_in_place(A: T.Tensor((96, 32), "float16"), B: T.Tensor((32, 32), "float16")):
    """Rows of a tensor, twice."""
    with T.Kernel(3, threads=64) as block:
        tile = T.alloc_shared((32, 32), "float16")
        factor = T.alloc_shared((32, 32), "float16")
        product = T.alloc_fragment((32, 32), "float32")
        T.copy(B, factor)
        for _ in T.serial(2):
            T.copy(A[block * 32, 0], tile)
            for i, j in T.Parallel(32, 32):
                tile[i, j] = tile[i, j] * 0.125
            T.clear(product)
            T.gemm(tile, factor, product)
            T.copy(product, A[block * 32, 0])


@program(
    tags={"barriers"},
    parameters={"rows": [64, 61]},
    examples=[{"rows": 61}, {"rows": 64}],
    expects={"metal": ["not barrier"]},
)
def tensor_changed_in_place(A: T.Tensor((rows, 96), "float16"), B: T.Tensor((rows, 96), "float16")):
    """Threads wait for nobody."""
    with T.Kernel(T.ceildiv(rows, 32), threads=64) as block:
        tile = T.alloc_fragment((32, 96), "float16")
        T.copy(A[block * 32, 0], tile)
        for i, j in T.Parallel(32, 96):
            if block * 32 + i < rows:
                tile[i, j] = tile[i, j] + B[block * 32 + i, j]
        T.copy(tile, A[block * 32, 0])
        for i, j in T.Parallel(32, 96):
            if block * 32 + i < rows:
                A[block * 32 + i, j] = A[block * 32 + i, j] * 2


@program(tags={"barriers", "copy"}, fast=["metal"])
def second_of_two_copies_to_a_tensor(
    A: T.Tensor((32, 32), "float16"),
    B: T.Tensor((32, 32), "float16"),
    C: T.Tensor((32, 32), "float16"),
):
    """The tiles lie in different threads."""
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((32, 32), "float16")
        held = T.alloc_fragment((32, 32), "float32")
        T.copy(A, tile)
        T.copy(B, held)
        T.copy(tile, C)
        T.copy(held, C)


@program(tags={"barriers"}, inputs={"order": lambda rng, shape: rng.permutation(64)})
def places_that_other_threads_wrote(order: T.Tensor((64,), "int32"), C: T.Tensor((64,), "int32")):
    with T.Kernel(1, threads=64):
        places = T.alloc_shared((64,), "int32")
        for i in T.Parallel(64):
            places[i] = order[i]
        for i in T.Parallel(64):
            T.atomic_add(C[places[63 - i] % 64], i)
