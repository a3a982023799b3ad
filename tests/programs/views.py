"""Tensors and tiles that threads exchange elements through, also by several names."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

TAGS = {"views"}
DEVICE = "  tvmtile_threadgroup_barrier();"


@program(inputs={"order": lambda rng, shape: rng.permutation(64)}, fast=["metal", "sm_80"])
def elements_between_threads(
    order: int32[64],
    A: int32[4, 64],
    B: int32[64],
    C: int32[2, 64],
    U: uint32[128],
    H: float16[96, 32],
    F: float16[32, 32],
    O: float16[32, 32],
    V: float32[64],
    W: float32[8, 8],
    X: int32[64],
    Y: float32[64, 32],
    Z: int32[4, 32],
):
    halves, twice = T.reshape(Y, (128, 16)), T.reshape(Z, (8, 16))
    words, bits = T.view(twice, (128,), "uint32"), T.view(A, (4, 64), "uint32")
    # A tensor that is read before and after updates.
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            B[i] = A[0, 63 - i]
        for i in T.Parallel(64):
            T.atomic_add(A[0, i], i)
        for i in T.Parallel(64):
            C[0, i] = A[0, 63 - i]
    # Rows that are multiplied in place, twice.
    with T.Kernel(3, threads=64) as block:
        tile, factor = T.alloc_shared((32, 32), "float16"), T.alloc_shared((32, 32), "float16")
        product = T.alloc_fragment((32, 32), "float32")
        T.copy(F, factor)
        for _ in T.serial(2):
            T.copy(H[block * 32, 0], tile)
            for i, j in T.Parallel(32, 32):
                tile[i, j] = tile[i, j] * 0.125
            T.clear(product)
            T.gemm(tile, factor, product)
            T.copy(product, H[block * 32, 0])
    # The second of two copies to a tensor, of tiles that lie in different threads.
    with T.Kernel(1, threads=64):
        first, held = T.alloc_shared((32, 32), "float16"), T.alloc_fragment((32, 32), "float32")
        T.copy(F, first)
        T.copy(H[0:32, :], held)
        T.copy(first, O)
        T.copy(held, O)
    # Places that other threads wrote.
    with T.Kernel(1, threads=64):
        places = T.alloc_shared((64,), "int32")
        for i in T.Parallel(64):
            places[i] = order[i]
        for i in T.Parallel(64):
            T.atomic_add(C[1, places[63 - i] % 64], i)
    # Views: elements are exchanged by one, copied between one and its tensor, seen by a view of one.
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            A[1, i] = -i
        for i in T.Parallel(64):
            U[i] = bits[1, 63 - i]
        for i in T.Parallel(64):
            bits[1, i] = T.cast(i, "uint32")
        T.copy(halves[0:32, 0:16], Y[8:40, 0:16])
        for i in T.Parallel(32):
            words[i] = T.cast(Z[1, i], "uint32")
    # Views of shared memory.
    with T.Kernel(1, threads=32):
        vector = T.alloc_shared((64,), "float32")
        T.copy(V, vector)
        T.copy(T.reshape(vector, (8, 8)), W)
        T.copy(T.view(vector, (64,), "int32"), X)
        rows = T.view(V, (4, 16))
        for i, j in T.Parallel(4, 16):
            W[i * 2 + j // 8, j % 8] += rows[i, j]


@program(
    expects={
        "metal": [DEVICE, "not  threadgroup_barrier(mem_flags::mem_threadgroup);"],
        "sm_80": ["__syncthreads"],
    },
    fast=["metal"],
)
def rows_reversed_through_a_tensor(A: float32[3, 128], W: float32[3, 128]):
    with T.Kernel(3, threads=64) as row:
        for _ in T.serial(3):
            for i in T.Parallel(128):
                W[row, i] = A[row, 127 - i] + 1
            for i in T.Parallel(128):
                A[row, i] = W[row, i] * 2


@program(
    parameters={"rows": [64, 61]},
    examples=[{"rows": 61}, {"rows": 64}],
    expects={"metal": ["not barrier"]},
)
def tensor_changed_in_place(A: float16[rows, 96], B: float16[rows, 96]):
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


@program(tags=TAGS, parameters={"stages": [2, 0]}, fast=["sm_90a"])
def views_written_for_the_next_iteration(A: float32[5, 32, 32], O: float32[4, 32, 32]):
    """A copy of a pipelined loop sees what an iteration before has written by another name."""
    rows = T.reshape(A, (160, 32))
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((32, 32), "float32")
        for k in T.Pipelined(4, num_stages=stages):
            T.copy(A[k, 0:32, 0:32], s)
            T.copy(s, O[k, 0:32, 0:32])
            for i, j in T.Parallel(32, 32):
                rows[(k + 1) * 32 + i, j] = s[i, j] + 1


@program(
    targets=["llvm", "sm_90a", "gpu"], inputs={"Q": lambda rng, shape: rng.integers(-2, 3, shape)}
)
def views_of_a_tile_that_a_producer_copies_once(
    Q: float16[4, 64, 64], K: float16[64, 256], O: float32[4, 64, 64]
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


@program(targets=["llvm", "sm_90a", "gpu"])
def views_by_which_stored_sums_are_read(
    A: float16[64, 128], B: float16[128, 64], O: float16[4, 64, 64]
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
    examples="operator",
    inputs={"A": lambda rng, shape: rng.integers(-3, 4, shape)},
    fast=["metal", "sm_80"],
)
def views_of_an_operand(A: float32[32, 32]):
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
