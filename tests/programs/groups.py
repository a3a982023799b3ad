"""Groups of threads: what tile operators mean in a branch that lets in some of a block's warps."""

from __future__ import annotations

from functools import partial

import tvmtile.language as T
from tests.programs import program

# Where a group of several warps has barriers of its own.
groups = partial(program, targets=["llvm", "sm_80", "sm_90a", "gpu"])


@program(
    parameters={"threads": [(0, 128, 256), (32, 128, 192), (0, 96, 128)]},
    examples="threads",
    fast=["metal", "sm_80"],
)
def groups_that_do_different_things(A: float32[64, 48], B: float32[64, 48], C: float32[64, 48]):
    first, end, count = threads
    with T.Kernel(1, threads=count):
        tx = T.get_thread_binding()
        x = T.alloc_fragment((64, 48), "float32")
        y = T.alloc_fragment((48,), "float32")
        if T.And(tx >= first, tx < end):
            T.copy(A, x)
            for i, j in T.Parallel(64, 48):
                x[i, j] = x[i, j] * 2
            T.copy(x, B)
        elif tx >= end:
            for i in T.serial(64):
                T.copy(A[i, :], y)
                for j in T.Parallel(48):
                    C[i, j] = y[j] + i
            C[0, 0] = 7


@program(sizes=[{"n": 77}, {"n": 5}], inputs={"C": 0}, fast=["metal"])
def atomics_of_groups(A: int32[n], C: int32[2]):
    with T.Kernel(1, threads=128):
        if T.get_warp_idx() == 2:
            for i in T.Parallel(n):
                T.atomic_add(C[0], A[i])
        elif T.get_warp_idx() == 1:
            for i in T.Parallel(n):
                if A[i] > 3:
                    T.atomic_add(C[1], 1)


@program(fast=["metal"])
def reductions_within_a_warp(A: float32[16, 64], C: float32[2, 16]):
    with T.Kernel(1, threads=64):
        tile = T.alloc_fragment((16, 64), "float32")
        total = T.alloc_fragment((16,), "float32")
        other = T.alloc_fragment((16, 64), "float32")
        most = T.alloc_fragment((16,), "float32")
        if T.get_thread_binding() < 32:
            T.copy(A, tile)
            T.reduce_sum(tile, total, dim=1)
            T.copy(total, C[0, :])
        else:
            T.copy(A, other)
            T.reduce_max(other, most, dim=1)
            T.copy(most, C[1, :])


@program(inputs={"A": lambda rng, shape: np.arange(64)}, fast=["metal"])
def stores_in_branches_of_any_threads(A: int32[64], C: int32[6]):
    """One of the threads that come to a statement does what is the same for all of them."""
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        if tx == 5:
            C[0] = 1
        if tx >= 40:
            C[1] = 2
            if tx % 7 == 3:
                C[2] = 3
        else:
            C[3] = 4
        for _ in T.serial(tx // 63):
            C[4] = 5
        if A[tx] == 9:
            C[5] = 6


@groups(fast=["sm_80"])
def product_beside_sums(A: float16[64, 64], B: float16[64, 64], C: float32[64, 64], D: float32[64]):
    """mma.sync by 4 warps of 8, from shared tiles; the others transpose and reduce."""
    with T.Kernel(1, threads=256):
        a = T.alloc_shared((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        other = T.alloc_shared((64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        turned = T.alloc_fragment((64, 64), "float32")
        total = T.alloc_fragment((64,), "float32")
        with T.ws(1):
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, acc, clear_accum=True)
            T.copy(acc, C)
        with T.ws(0):
            T.copy(A, other)
            for i, j in T.Parallel(64, 64):
                turned[i, j] = other[j, i]
            T.reduce_sum(turned, total, dim=0)
            T.copy(total, D)


@T.macro
def _half_of_a_product(A, B, C, row):
    a = T.alloc_shared((32, 32), "float16")
    b = T.alloc_shared((32, 64), "float16")
    acc = T.alloc_fragment((32, 64), "float32")
    T.clear(acc)
    for k in T.Pipelined(4, num_stages=2):
        T.copy(A[row, k * 32], a)
        T.copy(B[k * 32, 0], b)
        T.gemm(a, b, acc)
    T.copy(acc, C[row, 0])


@groups(tags={"pipelined"}, fast=["sm_80"])
def pipelined_products_of_two_groups(A: float16[64, 128], B: float16[128, 64], C: float32[64, 64]):
    """Each group pipelines copies of its own, asynchronously on CUDA."""
    with T.Kernel(1, threads=192):
        if T.get_thread_binding() < 64:
            _half_of_a_product(A, B, C, 0)
        else:
            _half_of_a_product(A, B, C, 32)


@groups(fast=["sm_80"])
def scans_and_sums_of_several_warps(A: int32[8, 256], C: int32[2, 8, 256]):
    with T.Kernel(1, threads=288):
        tile = T.alloc_shared((8, 256), "int32")
        held = T.alloc_fragment((8, 256), "int32")
        most = T.alloc_fragment((256,), "int32")
        if T.get_warp_idx() == 0:
            T.fill(C[1, 7, :], -1)
        if T.And(T.get_warp_idx() >= 1, T.get_warp_idx() < 5):
            T.copy(A, tile)
            T.cumsum(tile, dim=1)
            T.copy(tile, C[0, :, :])
        if T.get_warp_idx() >= 5:
            T.copy(A, held)
            T.reduce_max(held, most, dim=0)
            T.copy(most, C[1, 0, :])


@groups(inputs={"C": 0}, fast=["sm_80"])
def groups_that_hand_over(
    A: float32[4, 256], C: float32[4, 128], D: float32[4, 256], E: float32[4]
):
    """A region reads what another one writes, of other threads, of its own or of a part of them."""
    with T.Kernel(1, threads=384):
        tile = T.alloc_shared((128,), "float32")
        mine = T.alloc_shared((256,), "float32")
        for k in T.serial(4):
            with T.ws(0):
                for i in T.Parallel(128):
                    tile[i] = A[k, 127 - i]
            with T.ws(1, 2):
                for i in T.Parallel(256):
                    mine[i] = A[k, i]
                with T.ws(2):
                    for i in T.Parallel(128):
                        mine[i] = mine[255 - i]
            with T.ws(1):
                for i in T.Parallel(128):
                    C[k, i] = tile[i] + k
            with T.ws(0):
                T.atomic_add(E[k], 1.0)
            with T.ws(2, 1):
                for i in T.Parallel(256):
                    D[k, i] = mine[255 - i]


@groups(fast=["sm_80"])
def threads_of_a_group_exchange_elements(A: int32[64], C: int32[3, 64]):
    """Code written by thread index gets barriers in a region too, or names them."""
    with T.Kernel(1, threads=128):
        tx = T.get_thread_binding()
        shared = T.alloc_shared((64,), "int32")
        if tx < 64:
            shared[tx] = A[tx]
            C[0, tx] = shared[63 - tx]
            T.sync_threads()
            shared[tx] = A[tx] * 2
            T.sync_threads(5)
            C[1, tx] = shared[63 - tx]
            T.sync_threads(6, 64)
            shared[tx] = A[tx] * 3
            C[2, tx] = shared[63 - tx]


@groups(
    parameters={"steps": [(0, 9), (3, 9), (4, 2)]},
    examples="steps",
    inputs={"Steps": lambda rng, shape: steps},
    fast=["sm_80"],
)
def group_that_counts_by_itself(A: float32[64], Steps: int32[2], C: float32[64], D: int32[2]):
    """A variable that one group uses has one value for it, and decides about its work."""
    with T.Kernel(1, threads=128):
        tx = T.get_thread_binding()
        tile = T.alloc_shared((64,), "float32")
        flipped = T.alloc_fragment((64,), "float32")
        if tx < 64:
            done = T.alloc_var("int32", 0)
            T.copy(A, tile)
            while done < Steps[0]:
                for i in T.Parallel(64):
                    flipped[i] = tile[63 - i]
                for i in T.Parallel(64):
                    tile[i] = flipped[i] + 1
                done += 1
                if done == Steps[1]:
                    T.fill(tile, 0)
            T.copy(tile, C)
            D[0] = done
        else:
            if tx % 64 == 3:
                D[1] = 7


@program(inputs={"A": lambda rng, shape: np.arange(512).reshape(8, 64), "C": 0}, fast=["metal"])
def groups_that_share_a_variable(A: int32[8, 64], C: int32[8, 64], D: int32[2, 96]):
    """Each group has a value of its own, which is one for the work that its threads share."""
    with T.Kernel(1, threads=96):
        tx = T.get_thread_binding()
        row = T.alloc_var("int32", init=0)
        if tx < 32:
            row = 1
            T.atomic_add(C[row, 0:64], A[row, 0:64])
            while row < 4:
                row += 1
                for i in T.Parallel(64):
                    C[row, i] += A[row, i]
        else:
            row = 5
            below = row - 5
            T.atomic_add(C[row, 0:64], A[below, 0:64])
            T.atomic_add(C[below, 0], 1)
            if tx >= 64:
                T.atomic_add(C[row, 0:64], A[below, 0:64])
        D[0, tx] = row
        last = row + 2
        if tx < 32:
            T.atomic_add(C[last, 0:64], A[row, 0:64])
        else:
            for k in T.serial(row - 3):
                T.atomic_add(C[last, 0:64], A[k, 0:64])
        D[1, tx] = last


@program(fast=["metal"])
def warp_that_waits_for_itself(A: float32[8, 32], C: float32[32]):
    with T.Kernel(1, threads=96):
        tile = T.alloc_shared((8, 32), "float32")
        row = T.alloc_fragment((32,), "float32")
        total = T.alloc_fragment((32,), "float32")
        if T.get_warp_idx() == 1:
            T.copy(A, tile)
            for i in T.serial(8):
                for j in T.Parallel(32):
                    row[j] = tile[7 - i, 31 - j]
                for j in T.Parallel(32):
                    tile[i, j] += row[j]
            T.sync_threads()
            T.reduce_sum(tile, total, dim=0)
            T.copy(total, C)


@program(targets=["sm_80", "sm_90a", "gpu"], fast=["sm_80"])
def groups_that_meet_at_a_barrier(A: float32[128], C: float32[128]):
    """Two of three groups meet."""
    with T.Kernel(1, threads=384):
        tile = T.alloc_shared((128,), "float32")
        own = T.alloc_fragment((128,), "float32")
        tx = T.get_thread_binding()
        if tx < 128:
            T.copy(A, own)
            for i in T.Parallel(128):
                tile[i] = own[i] * 2
            T.sync_threads(5, 256)
        elif tx < 256:
            T.sync_threads(5, 256)
            for i in T.Parallel(128):
                C[i] = tile[127 - i]


@program(targets=["sm_90a", "gpu"], fast=["sm_90a"])
def group_that_copies_for_another_one(A: float16[64, 256], B: float16[256, 64], C: float32[64, 64]):
    """TileLang's way to specialise warpgroups: two buffers and four mbarriers."""
    with T.Kernel(1, threads=256):
        a = T.alloc_shared((2, 64, 64), "float16")
        b = T.alloc_shared((2, 64, 64), "float16")
        acc = T.alloc_fragment((64, 64), "float32")
        full = T.alloc_barrier([128, 128])
        empty = T.alloc_barrier([128, 128])
        with T.ws(0):
            T.clear(acc)
        for k in T.serial(4):
            with T.ws(1):
                T.barrier_wait(empty[k % 2], k // 2 % 2 ^ 1)
                T.tma_copy(A[0, k * 64], a[k % 2, :, :], barrier=full[k % 2])
                T.tma_copy(B[k * 64, 0], b[k % 2, :, :], barrier=full[k % 2])
                T.barrier_arrive(full[k % 2])
            with T.ws(0):
                T.barrier_wait(full[k % 2], k // 2 % 2)
                T.gemm(a[k % 2, :, :], b[k % 2, :, :], acc)
                T.barrier_arrive(empty[k % 2])
        with T.ws(0):
            T.copy(acc, C)


@groups(parameters={"stages": [0, 1, 2, 3]}, examples="stages", fast=["sm_90a"])
def warpgroups_that_multiply_one_tile(
    A: float16[64, 256], B: float16[256, 128], C: float32[64, 128]
):
    """All threads copy the tile; the next one is copied when both have multiplied the one before."""
    with T.Kernel(1, threads=256):
        a = T.alloc_shared((64, 64), "float16")
        b, d = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        c, e = T.alloc_fragment((64, 64), "float32"), T.alloc_fragment((64, 64), "float32")
        with T.ws(0):
            T.clear(c)
        with T.ws(1):
            T.clear(e)
        for k in T.Pipelined(4, num_stages=stages):
            T.copy(A[0, k * 64], a)
            T.copy(B[k * 64, 0], b)
            T.copy(B[k * 64, 64], d)
            with T.ws(0):
                T.gemm(a, b, c)
            with T.ws(1):
                T.gemm(a, d, e)
        with T.ws(0):
            T.copy(c, C[0, 0])
        with T.ws(1):
            T.copy(e, C[0, 64])


@groups(expects={"sm_90a": ["wgmma.mma_async"], "sm_80": ["not wgmma"]}, fast=["sm_90a"])
def warpgroups_that_multiply_together(A: float16[128, 64], B: float16[64, 64], C: float32[128, 64]):
    """The rows of one product are shared by the second and the third warpgroup."""
    with T.Kernel(1, threads=384):
        a, b = T.alloc_shared((128, 64), "float16"), T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((128, 64), "float32")
        with T.ws(0):
            T.copy(A, a)
            T.copy(B, b)
        with T.ws(1, 2):
            T.gemm(a, b, c, clear_accum=True)
            T.copy(c, C)


@program(inputs={"N": [1, 3]}, fast=["metal", "sm_90a"])
def groups_that_do_as_often_as_a_variable_says(N: int32[2], X: float32[2, 64], C: float32[2, 64]):
    """Each group has a value of its own in it, the same for all of its threads."""
    with T.Kernel(1, threads=64):
        times = T.alloc_local((1,), "int32")
        first, second = T.alloc_shared((64,), "float32"), T.alloc_shared((64,), "float32")
        tx = T.get_thread_binding()
        if tx < 32:
            times[0] = N[0]
            if times[0] == 1:
                T.copy(X[0, 0:64], first)
                for i in T.Parallel(64):
                    C[0, i] = first[63 - i]
        else:
            times[0] = N[1]
            for k in T.serial(times[0]):
                T.copy(X[1, 0:64], second)
                for i in T.Parallel(64):
                    C[1, i] = second[63 - i] + k
