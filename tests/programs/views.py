"""Tensors and tiles by several names."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

TAGS = {"views"}


@program(tags=TAGS, parameters={"stages": [2, 0]}, fast=["sm_90a"])
def views_written_for_the_next_iteration(
    A: T.Tensor((5, 32, 32), "float32"), O: T.Tensor((4, 32, 32), "float32")
):
    """A copy of a pipelined loop sees what an iteration before has written by another name."""
    rows = T.reshape(A, (160, 32))
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((32, 32), "float32")
        for k in T.Pipelined(4, num_stages=stages):
            T.copy(A[k, 0:32, 0:32], s)
            T.copy(s, O[k, 0:32, 0:32])
            for i, j in T.Parallel(32, 32):
                rows[(k + 1) * 32 + i, j] = s[i, j] + 1


@program(tags=TAGS, fast=["metal"])
def views_by_which_threads_exchange_elements(
    A: T.Tensor((128,), "int32"), O: T.Tensor((128,), "uint32")
):
    bits = T.view(A, (128,), "uint32")
    with T.Kernel(1, threads=128):
        for i in T.Parallel(128):
            A[i] = -i
        for i in T.Parallel(128):
            O[i] = bits[127 - i]
        for i in T.Parallel(128):
            bits[i] = T.cast(i, "uint32")


@program(tags=TAGS)
def views_between_which_is_copied(A: T.Tensor((64, 32), "float32")):
    halves = T.reshape(A, (128, 16))
    with T.Kernel(1, threads=128):
        T.copy(halves[0:32, 0:16], A[8:40, 0:16])


@program(tags=TAGS)
def views_of_views(A: T.Tensor((4, 32), "int32")):
    rows = T.reshape(A, (8, 16))
    words = T.view(rows, (128,), "uint32")
    with T.Kernel(1, threads=32):
        for i in T.Parallel(32):
            words[i] = T.cast(A[1, i], "uint32")


@program(
    tags={*TAGS, "roles"},
    targets=["llvm", "sm_90a", "gpu"],
    inputs={"Q": lambda rng, shape: rng.integers(-2, 3, shape)},
)
def views_of_a_tile_that_a_producer_copies_once(
    Q: T.Tensor((4, 64, 64), "float16"),
    K: T.Tensor((64, 256), "float16"),
    O: T.Tensor((4, 64, 64), "float32"),
):
    """Consumers write what it copies next, by another name."""
    rows = T.reshape(Q, (256, 64))
    with T.Kernel(1, threads=128):
        q, k = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        sums = T.alloc_fragment((64, 64), "float32")
        for r in T.serial(3):
            T.copy(Q[r, 0:64, 0:64], q)
            T.clear(sums)
            for n in T.Pipelined(4, num_stages=2):
                T.copy(K[0:64, n * 64 : n * 64 + 64], k)
                T.gemm(q, k, sums)
            for i, j in T.Parallel(64, 64):
                rows[(r + 1) * 64 + i, j] = T.cast(T.max(T.min(sums[i, j], 2), -2), "float16")
            T.copy(sums, O[r, 0:64, 0:64])


@program(tags={*TAGS, "roles"}, targets=["llvm", "sm_90a", "gpu"])
def views_by_which_stored_sums_are_read(
    A: T.Tensor((64, 128), "float16"),
    B: T.Tensor((128, 64), "float16"),
    O: T.Tensor((4, 64, 64), "float16"),
):
    rows = T.reshape(O, (256, 64))
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        sums = T.alloc_fragment((64, 64), "float32")
        for r in T.serial(3):
            T.clear(sums)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, sums)
            for i, j in T.Parallel(64, 64):
                sums[i, j] += rows[r * 64 + i, j]
            T.copy(sums, O[r + 1, 0:64, 0:64])


@program(
    tags=TAGS,
    parameters={"operator": ["transpose", "cumsum", "gemm"]},
    examples=[{}, {"operator": "cumsum"}, {"operator": "gemm"}],
    inputs={"A": lambda rng, shape: rng.integers(-3, 4, shape)},
    fast=["metal", "sm_80"],
)
def views_of_an_operand(A: T.Tensor((32, 32), "float32")):
    """All is read before a view of it is written."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((32, 32), "float32"), T.alloc_shared((32, 32), "float32")
        again = T.reshape(a, (32, 32))
        T.copy(A, a)
        T.copy(A, b)
        if operator == "transpose":
            T.transpose(a, again)
        elif operator == "cumsum":
            T.cumsum(a, again, dim=0)
        else:
            T.gemm(a, b, again, clear_accum=True)
        T.copy(a, A)
