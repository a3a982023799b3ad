"""Code by thread index: all threads of a block are done with a statement before the next needs it."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program


@program()
def threads_of_three_axes(A: int32[3, 2, 4, 5]):
    with T.Kernel(3, threads=(5, 4, 2)) as bx:
        tx = T.get_thread_binding(0)
        ty = T.get_thread_binding(1)
        tz = T.get_thread_binding(2)
        A[bx, tz, ty, tx] += 1 + tx + 10 * ty + 100 * tz


@program(fast=["metal"])
def threads_with_arrays_of_their_own(A: float32[64, 2, 3], B: int32[64, 6], C: float32[3, 64]):
    """Arrays of threads live across barriers, also by another name, and begin anew in a loop."""
    with T.Kernel(2, threads=32) as bx:
        tx = T.get_thread_binding()
        own = T.alloc_local((2, 3), "float32")
        bits = T.view(own, (6,), "int32")
        shared = T.alloc_shared((32,), "float32")
        for i, j in T.grid(2, 3):
            own[i, j] = A[bx * 32 + tx, i, j]
        shared[tx] = own[0, 1]
        T.sync_threads()
        own[1, 2] = shared[31 - tx]
        T.sync_threads()
        for i in T.serial(6):
            B[bx * 32 + tx, i] = bits[i]
        for i in T.serial(3):
            fresh = T.alloc_local((1,), "float32")
            fresh[0] = A[bx * 32 + tx, 0, i] + tx
            shared[tx] = fresh[0]
            T.sync_threads()
            C[i, bx * 32 + tx] = shared[31 - tx] - fresh[0]
            T.sync_threads()


@program()
def threads_that_add_by_a_tree(A: float32[4, 128], C: float32[4]):
    with T.Kernel(4, threads=128) as bx:
        tx = T.get_thread_binding()
        part = T.alloc_shared((128,), "float32")
        part[tx] = A[bx, tx]
        T.sync_threads()
        for step in T.serial(7):
            half = 64 >> step
            if tx < half:
                part[tx] += part[tx + half]
            T.sync_threads()
        if tx == 0:
            C[bx] = part[0]


@program(
    parameters={"count": [5, 0, 1]},
    examples="count",
    inputs={"n": lambda rng, shape: count},
    fast=["metal"],
)
def threads_whose_barriers_are_understood(A: int32[32], B: int32[32], C: int32[4, 32], n: T.int32):
    """Barriers stand between accesses of a tile, between iterations, and in a loop over a vector."""
    with T.Kernel(1, threads=32):
        tx = T.get_thread_binding()
        shared = T.alloc_shared((32,), "int32")
        turns = T.alloc_shared((2, 32), "int32")
        rows = T.alloc_shared((4, 32), "int32")
        shared[tx] = A[tx]
        neighbour = shared[(tx + 1) % 32]
        shared[tx] = neighbour * 2
        A[tx] = shared[31 - tx]
        turns[0, tx] = B[tx]
        for i in T.serial(n):
            turns[(i + 1) % 2, tx] = turns[i % 2, (tx + 1) % 32] + 1
        B[tx] = turns[n % 2, tx]
        for i in T.vectorized(4):
            rows[i, tx] = C[i, tx]
            C[i, tx] = rows[i, 31 - tx]


@program(
    parameters={"form": ["statements", "a loop", "a branch", "a statement"]},
    examples="form",
    targets=lambda p: (
        ["llvm"] if p.form in ("a branch", "a statement") else ["llvm", "metal", "sm_80", "gpu"]
    ),
    fast=["metal"],
)
def threads_that_exchange_elements_of_a_tensor(A: int32[64], C: int32[64]):
    """A program itself has to order exchanges on a GPU where only some threads come."""
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        if form == "statements":
            A[tx] = A[tx] * 2
            C[tx] = A[63 - tx]
        elif form == "a loop":
            for i in T.serial(3):
                C[tx] = A[(tx + 1) % 64]
                A[tx] = C[tx] + i
        elif form == "a branch":
            if tx < 20:
                A[tx] = 2 * tx
                C[tx] = A[19 - tx]
            else:
                C[tx] = A[(tx + 8) % 20]
        else:
            A[tx] = A[63 - tx]
            C[tx] = tx


# As `__restrict__`, B[0] would be read in front of the barrier: seen on an H100.
@program(fast=["metal"], expects={"sm_90a": ["not __restrict__"]})
def threads_with_values_of_all(A: float32[32], B: int32[1], C: float32[32], D: int32[32, 6]):
    """A name keeps what memory held; what is the same for all threads is done once."""
    with T.Kernel(1, threads=32):
        tx = T.get_thread_binding()
        before = A[tx]
        flag = before > 0.5
        T.sync_threads()
        A[31 - tx] = -1.0
        T.sync_threads()
        C[31 - tx] = T.if_then_else(flag, before, -before)
        count = T.alloc_var("int32", init=0)
        for i in T.serial(4):
            count += i + 1
            D[tx, i] = count + 100 * tx
        for i in T.Parallel(32):
            D[i, 4] = count + i
        B[0] = B[0] + 1
        D[tx, 5] = B[0]


@program()
def threads_that_branch(A: float32[32], C: float32[32], D: int32[2, 32]):
    """A condition is that of before the branch, whatever the branch overwrites."""
    with T.Kernel(1, threads=32):
        tx = T.get_thread_binding()
        values = T.alloc_shared((32,), "float32")
        numbers = T.alloc_shared((32,), "int32")
        if A[tx] > 0.5:
            values[tx] = A[tx]
            A[tx] = 0.0
            C[tx] = values[tx] * 2
        else:
            C[tx] = -1.0
        numbers[tx] = tx
        if numbers[2] == 2:
            numbers[(tx + 1) % 32] = 10 + tx
        D[0, tx] = numbers[tx]
        T.sync_threads()
        large = numbers[31 - tx] > 30
        T.sync_threads()
        if large:
            numbers[tx] = 0
        else:
            D[1, tx] = numbers[tx]


@program(
    parameters={"at_once": [True, False]},
    examples="at_once",
    inputs={"A": lambda rng, shape: np.arange(0, 32, 2), "n": 3},
    targets=lambda p: ["llvm"] if p.at_once else ["llvm", "metal", "sm_80", "gpu"],
)
def threads_whose_loops_differ(A: int32[16], C: int32[16, 4], n: T.int32):
    """A loop that all of them leave may have barriers."""
    with T.Kernel(1, threads=16):
        tx = T.get_thread_binding()
        shared = T.alloc_shared((16,), "int32")
        total = T.alloc_var("int32", init=0)
        for i in T.serial(tx, 16):
            total += A[i]
        left = T.alloc_var("int32", init=tx)
        steps = T.alloc_var("int32", init=0)
        while left > 0:
            left -= 3
            steps += 1
        found = T.alloc_var("int32", init=-1)
        for i in T.serial(16):
            if A[i] >= tx:
                found = i
                break
        shared[tx] = tx
        for i in T.serial(10):
            if i == n:
                break
            if at_once:
                shared[tx] = shared[(tx + 1) % 16]
            else:
                neighbour = shared[(tx + 1) % 16]
                T.sync_threads()
                shared[tx] = neighbour
            T.sync_threads()
        C[tx, 0] = total
        C[tx, 1] = steps
        C[tx, 2] = found
        C[tx, 3] = shared[tx]


@program(inputs={"A": lambda rng, shape: rng.integers(0, 8, shape)}, fast=["metal"])
def threads_with_atomics(A: int32[4, 64], B: int32[3], C: int32[4, 8], D: int32[4, 64]):
    """Each thread adds once, work of the block is shared; what is added is read before it changes."""
    with T.Kernel(4, threads=(16, 4)) as bx:
        tx = T.get_thread_binding(0) + 16 * T.get_thread_binding(1)
        histogram = T.alloc_shared((8,), "int32")
        values = T.alloc_shared((64,), "int32")
        total = T.alloc_shared((64,), "int32")
        T.atomic_add(B[0], 1)
        for i in T.Parallel(16):
            T.atomic_add(B[1], A[bx, i])
        for i in T.serial(3):
            T.atomic_add(B[2], i)
        if tx < 8:
            histogram[tx] = 0
        T.atomic_add(histogram[A[bx, tx]], 1)
        if tx < 8:
            C[bx, tx] = histogram[tx]
        values[tx] = A[bx, tx]
        total[tx] = 0
        T.sync_threads()
        T.atomic_add(total[tx], values[63 - tx])
        values[tx] = 0
        T.sync_threads()
        D[bx, tx] = total[tx]


@program(targets=["llvm", "sm_80", "sm_90a", "gpu"], fast=["sm_80"])
def threads_of_which_some_wait(A: int32[64]):
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        shared = T.alloc_shared((32,), "int32")
        if tx < 32:
            shared[tx] = A[tx]
            T.sync_threads(3, 32)
            A[tx] = shared[31 - tx]


@program(inputs={"A": lambda rng, shape: rng.integers(-20, 100, shape)}, fast=["metal"])
def threads_with_loops_of_their_own(A: int32[32, 16], C: int32[32]):
    """unroll, vectorized, serial with break and continue, while, and threads that end early."""
    with T.Kernel(1, threads=32):
        tx = T.get_thread_binding()
        total = T.alloc_var("int32", 0)
        own = T.alloc_local((4,), "int32")
        for i in T.unroll(4):
            own[i] = A[tx, i]
        for i in T.vectorized(4):
            own[i] = own[i] + A[tx, 4 + i]
        for i in T.serial(16):
            if A[tx, i] < 0:
                continue
            if A[tx, i] > 90:
                break
            total += A[tx, i]
        k = T.alloc_var("int32", 0)
        while k < 4:
            total += own[k]
            k += 1
        if tx >= 30:
            T.thread_return()
        C[tx] = total


@program(
    parameters={"block": [(1, 5, 7), (24, 3, 48), (48, 8, 16), (100, 16, 32)]},
    examples="block",
    fast=["metal"],
)
def threads_of_any_number_that_meet(A: float32[block[1], block[2]], C: float32[block[1], block[2]]):
    threads, rows, columns = block
    with T.Kernel(1, threads=threads):
        thread = T.get_thread_binding()
        shared = T.alloc_shared((threads,), "float32")
        for i, step in T.grid(rows, T.ceildiv(columns, threads)):
            shared[thread] = 0
            if step * threads + thread < columns:
                shared[thread] = A[i, step * threads + thread]
            T.sync_threads()
            if step * threads + thread < columns:
                C[i, step * threads + thread] = shared[thread] + shared[0]
            T.sync_threads()


@program(
    parameters={"shape": [(48, 1), (5, 1), (100, 1), (16, 3)]},
    examples=[{}, {"shape": (5, 1)}, {"shape": (16, 3)}],
    fast=["metal", "sm_80"],
)
def threads_of_a_partial_warp_that_count(
    A: float32[shape[1], shape[0]], C: int32[shape[1], shape[0], 2]
):
    """TVM's own reduction over threads takes lanes that the last warp does not have."""
    with T.Kernel(1, threads=shape):
        x, y = T.get_thread_binding(0), T.get_thread_binding(1)
        for i in T.serial(2):
            C[y, x, i] = T.syncthreads_count(A[y, x] > i)
        C[y, x, 1] += 100 * T.syncthreads_or(A[y, x] > 1) + 200 * T.syncthreads_and(A[y, x] > -9)


@program(fast=["metal"])
def threads_that_choose_what_their_lane_says(C: int32[64, 3]):
    """The remainder is left out in a branch or selection, and Metal's `select` has both sides."""
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        C[tx, 0] = T.all_sync(tx < 24)
        C[tx, 1] = T.Select(tx < 24, T.int32(1) << (tx % 32), tx)
        C[tx, 2] = T.Select(tx >= 24, tx, T.int32(-5) >> (tx % 32))


@program(
    parameters={"known": ["by a condition", "assumed"]},
    examples="known",
    inputs={"A": lambda rng, shape: rng.integers(0, 4, shape)},
    fast=["metal"],
)
def threads_that_count_in_rows_of_their_own(A: int32[8, 32], C: int32[32, 4]):
    """The element of a row is loaded from memory, and known to be one of four."""
    with T.Kernel(1, threads=64):
        counts = T.alloc_shared((132,), "int32")
        worker = T.get_thread_binding() - 32
        if worker >= 0:
            for i in T.serial(4):
                counts[(worker + 1) * 4 + i] = 0
            for i in T.serial(8):
                value = A[i, worker]
                if known == "assumed":
                    T.assume(value >= 0)
                    T.assume(value < 4)
                    counts[(worker + 1) * 4 + value] = counts[(worker + 1) * 4 + value] + 1
                elif value >= 0 and value < 4:
                    counts[(worker + 1) * 4 + value] += 1
            for i in T.serial(4):
                C[worker, i] = counts[(worker + 1) * 4 + i]
