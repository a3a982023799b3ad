"""Code written by thread index on a CPU: the numbers are those of threads that run together."""

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.script import tirx as TS

import tvmtile
import tvmtile.language as T
from tvmtile.passes import Legalize, SerializeThreads

RNG = np.random.default_rng(0)


def run(program, *arrays):
    tvmtile.compile(program, target="llvm")(*arrays)


def serialized(program):
    return SerializeThreads(Legalize(ir.IRModule({"main": program})))["main"]


def loops_over(func, extent):
    """How many loops of an extent a function has."""
    found = []

    def note(loop):
        if isinstance(loop.extent, tirx.IntImm) and int(loop.extent) == extent:
            found.append(loop)

    tvm_ffi.structural_walk(func.body, (tirx.For, note))
    return len(found)


# Runs and barriers --------------------------------------------------------------------------------


def test_every_thread_of_three_axes_runs_once():
    @T.prim_func
    def program(A: T.Tensor((3, 2, 4, 5), "int32")):
        with T.Kernel(3, threads=(5, 4, 2)) as bx:
            tx, ty, tz = T.get_thread_bindings()
            A[bx, tz, ty, tx] += 1 + tx + 10 * ty + 100 * tz

    a = np.zeros((3, 2, 4, 5), np.int32)
    run(program, a)
    z, y, x = np.ogrid[:2, :4, :5]
    np.testing.assert_array_equal(a, np.broadcast_to(1 + x + 10 * y + 100 * z, a.shape))


def test_private_array_lives_across_a_barrier():
    @T.prim_func
    def program(A: T.Tensor((64,), "float32"), C: T.Tensor((64, 3), "float32")):
        with T.Kernel(2, threads=32) as bx:
            tx = T.get_thread_binding()
            own = T.alloc_local((3,), "float32")
            shared = T.alloc_shared((32,), "float32")
            for i in T.serial(3):
                own[i] = A[bx * 32 + tx] * (i + 1)
            shared[tx] = own[1]
            T.sync_threads()
            own[2] += shared[31 - tx]
            for i in T.serial(3):
                C[bx * 32 + tx, i] = own[i]

    a, c = RNG.random(64, np.float32), np.empty((64, 3), np.float32)
    run(program, a, c)
    expected = a[:, None] * np.array([1, 2, 3], np.float32)
    expected[:, 2] += 2 * a.reshape(2, 32)[:, ::-1].ravel()
    np.testing.assert_allclose(c, expected, rtol=1e-6)


def test_tree_reduction_with_a_barrier_in_a_loop():
    @T.prim_func
    def program(A: T.Tensor((4, 128), "float32"), C: T.Tensor((4,), "float32")):
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

    a, c = RNG.random((4, 128), np.float32), np.empty(4, np.float32)
    run(program, a, c)
    np.testing.assert_allclose(c, a.sum(1, dtype=np.float64), rtol=1e-5)


def test_barriers_between_accesses_of_a_shared_tile_are_understood():
    @T.prim_func
    def program(A: T.Tensor((32,), "float32"), C: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            shared = T.alloc_shared((32,), "float32")
            shared[tx] = A[tx]
            neighbour = shared[(tx + 1) % 32]
            shared[tx] = neighbour * 2
            C[tx] = shared[31 - tx]

    a, c = RNG.random(32, np.float32), np.empty(32, np.float32)
    run(program, a, c)
    np.testing.assert_array_equal(c, 2 * np.roll(a, -1)[::-1])


def test_barriers_between_the_iterations_of_a_loop_are_understood():
    @T.prim_func
    def program(A: T.Tensor((16,), "int32"), n: T.int32):
        with T.Kernel(1, threads=16):
            tx = T.get_thread_binding()
            shared = T.alloc_shared((2, 16), "int32")
            shared[0, tx] = A[tx]
            for i in T.serial(n):
                shared[(i + 1) % 2, tx] = shared[i % 2, (tx + 1) % 16] + 1
            A[tx] = shared[n % 2, tx]

    for n in (0, 1, 5):
        a = np.arange(16, dtype=np.int32) * 7
        expected = np.roll(a, -n) + n
        run(program, a, n)
        np.testing.assert_array_equal(a, expected)


def test_a_vector_loop_with_a_barrier_inside_becomes_serial():
    @T.prim_func
    def program(A: T.Tensor((4, 8), "float32"), C: T.Tensor((4, 8), "float32")):
        with T.Kernel(1, threads=8):
            tx = T.get_thread_binding()
            shared = T.alloc_shared((4, 8), "float32")
            for i in T.vectorized(4):
                shared[i, tx] = A[i, tx]
                C[i, tx] = shared[i, 7 - tx]

    a, c = RNG.random((4, 8), np.float32), np.empty((4, 8), np.float32)
    run(program, a, c)
    np.testing.assert_array_equal(c, a[:, ::-1])


# Values and arrays across runs --------------------------------------------------------------------


def test_a_bound_value_keeps_what_memory_held():
    @T.prim_func
    def program(A: T.Tensor((32,), "float32"), C: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            place = 31 - tx
            before = A[tx]
            flag = before > 0.5
            T.sync_threads()
            A[place] = -1.0
            T.sync_threads()
            C[place] = T.if_then_else(flag, before, -before)

    a, c = RNG.random(32, np.float32), np.empty(32, np.float32)
    expected = np.where(a > 0.5, a, -a)[::-1]
    run(program, a, c)
    np.testing.assert_array_equal(c, expected)
    np.testing.assert_array_equal(a, -1)


def test_a_counter_that_is_the_same_for_all_threads_is_counted_once():
    @T.prim_func
    def program(C: T.Tensor((8, 4), "int32"), D: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=8):
            tx = T.get_thread_binding()
            count = T.alloc_var("int32", init=0)
            for i in T.serial(4):
                count += i + 1
                C[tx, i] = count + 100 * tx
            for i in T.Parallel(8):
                D[i] = count + i

    c, d = np.zeros((8, 4), np.int32), np.zeros(8, np.int32)
    run(program, c, d)
    np.testing.assert_array_equal(c, 100 * np.arange(8)[:, None] + np.array([1, 3, 6, 10]))
    np.testing.assert_array_equal(d, 10 + np.arange(8))


def test_a_statement_that_is_the_same_for_all_threads_runs_once():
    @T.prim_func
    def program(A: T.Tensor((1,), "int32"), C: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=8):
            tx = T.get_thread_binding()
            A[0] = A[0] + 1
            C[tx] = A[0]

    a, c = np.zeros(1, np.int32), np.zeros(8, np.int32)
    run(program, a, c)
    assert a[0] == 1
    np.testing.assert_array_equal(c, 1)


def test_a_view_of_a_private_array_lives_across_a_barrier():
    @T.prim_func
    def program(A: T.Tensor((16, 2, 3), "float32"), C: T.Tensor((16, 6), "int32")):
        with T.Kernel(1, threads=16):
            tx = T.get_thread_binding()
            own = T.alloc_local((2, 3), "float32")
            bits = T.view(own, (6,), "int32")
            for i, j in T.grid(2, 3):
                own[i, j] = A[tx, i, j]
            T.sync_threads()
            for i in T.serial(6):
                C[tx, i] = bits[i]

    a, c = RNG.random((16, 2, 3), np.float32), np.empty((16, 6), np.int32)
    run(program, a, c)
    np.testing.assert_array_equal(c, a.view(np.int32).reshape(16, 6))


def test_an_array_allocated_in_a_loop_with_a_barrier():
    @T.prim_func
    def program(A: T.Tensor((3, 8), "float32"), C: T.Tensor((3, 8), "float32")):
        with T.Kernel(1, threads=8):
            tx = T.get_thread_binding()
            shared = T.alloc_shared((8,), "float32")
            for i in T.serial(3):
                own = T.alloc_local((1,), "float32")
                own[0] = A[i, tx] + tx
                shared[tx] = own[0]
                T.sync_threads()
                C[i, tx] = shared[7 - tx] - own[0]
                T.sync_threads()

    a, c = RNG.random((3, 8), np.float32), np.empty((3, 8), np.float32)
    run(program, a, c)
    own = a + np.arange(8, dtype=np.float32)
    np.testing.assert_allclose(c, own[:, ::-1] - own, rtol=1e-6)


# Branches and loops that differ between threads ---------------------------------------------------


def test_a_branch_with_a_conflict_inside_keeps_its_condition_per_thread():
    @T.prim_func
    def program(A: T.Tensor((32,), "float32"), C: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            shared = T.alloc_shared((32,), "float32")
            if A[tx] > 0.5:
                shared[tx] = A[tx]
                A[tx] = 0.0
                C[tx] = shared[tx] * 2
            else:
                C[tx] = -1.0

    a, c = RNG.random(32, np.float32), np.empty(32, np.float32)
    expected = np.where(a > 0.5, 2 * a, -1).astype(np.float32)
    left = np.where(a > 0.5, 0, a)
    run(program, a, c)
    np.testing.assert_array_equal(c, expected)
    np.testing.assert_array_equal(a, left)


def test_a_branch_whose_body_overwrites_what_its_condition_reads():
    @T.prim_func
    def program(C: T.Tensor((2, 8), "int32")):
        with T.Kernel(1, threads=8):
            tx = T.get_thread_binding()
            shared = T.alloc_shared((8,), "int32")
            shared[tx] = tx
            if shared[2] == 2:
                shared[(tx + 1) % 8] = 10 + tx
            C[0, tx] = shared[tx]
            if shared[7 - tx] > 13:
                shared[tx] = 0
            else:
                C[1, tx] = shared[7 - tx]

    c = np.zeros((2, 8), np.int32)
    run(program, c)
    first = 10 + np.roll(np.arange(8), 1)
    second = np.where(first[::-1] > 13, 0, first)
    np.testing.assert_array_equal(c[0], first)
    np.testing.assert_array_equal(c[1], np.where(first[::-1] > 13, 0, second[::-1]))


def test_loops_whose_length_differs_between_threads():
    @T.prim_func
    def program(A: T.Tensor((16,), "int32"), C: T.Tensor((16, 3), "int32")):
        with T.Kernel(1, threads=16):
            tx = T.get_thread_binding()
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
            C[tx, 0] = total
            C[tx, 1] = steps
            C[tx, 2] = found

    a, c = np.arange(0, 32, 2, dtype=np.int32), np.empty((16, 3), np.int32)
    run(program, a, c)
    t = np.arange(16)
    np.testing.assert_array_equal(c[:, 0], a[::-1].cumsum()[::-1])
    np.testing.assert_array_equal(c[:, 1], -(-t // 3))
    np.testing.assert_array_equal(c[:, 2], -(-t // 2))


@pytest.mark.full
def test_warps_go_through_a_loop_a_different_number_of_times():
    """Lanes begin at places of their own and exchange values; each warp has its own end."""

    @T.prim_func
    def program(A: T.Tensor((300,), "int32"), B: T.Tensor((300,), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            end = T.alloc_var("int32")
            end = 96 + tx // 32 * 192
            for i in T.serial(tx // 32 * 96 + tx % 32, end, 32):
                B[i] = T.shfl_xor(A[i], 1) + T.popcount(
                    T.call_extern("uint32", "__match_any_sync", 0xFFFFFFFF, A[i])
                )
                T.sync_warp()

    a, b = RNG.integers(0, 5, 300, np.int32), np.zeros(300, np.int32)
    run(program, a, b)
    warps = a[:288].reshape(9, 32)
    peers = (warps[:, :, None] == warps[:, None, :]).sum(-1)
    partners = warps.reshape(9, 16, 2)[:, :, ::-1].reshape(9, 32)
    np.testing.assert_array_equal(b[:288], (partners + peers).ravel())
    assert not b[288:].any()


def test_a_uniform_break_leaves_a_loop_with_barriers():
    @T.prim_func
    def program(C: T.Tensor((8,), "int32"), n: T.int32):
        with T.Kernel(1, threads=8):
            tx = T.get_thread_binding()
            shared = T.alloc_shared((8,), "int32")
            shared[tx] = tx
            for i in T.serial(10):
                if i == n:
                    break
                shared[tx] = shared[(tx + 1) % 8]
                T.sync_threads()
            C[tx] = shared[tx]

    c = np.empty(8, np.int32)
    run(program, c, 3)
    np.testing.assert_array_equal(c, np.roll(np.arange(8), -3))


# The work of the block beside that of threads -----------------------------------------------------


def test_tile_operators_between_statements_of_threads():
    @T.prim_func
    def program(A: T.Tensor((40, 32), "float32"), C: T.Tensor((40, 32), "float32")):
        with T.Kernel(2, threads=32) as bx:
            tx = T.get_thread_binding()
            shared = T.alloc_shared((24, 32), "float32")
            fragment = T.alloc_fragment((24, 32), "float32")
            T.copy(A[bx * 24, 0], shared)
            for i in T.serial(24):
                shared[i, tx] += tx
            T.copy(shared, fragment)
            for i, j in T.Parallel(24, 32):
                fragment[i, j] *= 2
            T.copy(fragment, shared)
            for i in T.serial(24):
                if bx * 24 + i < 40:
                    C[bx * 24 + i, tx] = shared[23 - i, 31 - tx]

    a, c = RNG.random((40, 32), np.float32), np.empty((40, 32), np.float32)
    run(program, a, c)
    padded = np.zeros((48, 32), np.float32)
    padded[:40] = a
    blocks = 2 * (padded.reshape(2, 24, 32) + np.arange(32, dtype=np.float32))
    np.testing.assert_allclose(c, blocks[:, ::-1, ::-1].reshape(48, 32)[:40], rtol=1e-6)


def test_tile_operators_on_private_arrays_are_done_by_each_thread():
    @T.prim_func
    def program(A: T.Tensor((16, 4), "float32"), C: T.Tensor((16, 4), "float32")):
        with T.Kernel(1, threads=16):
            tx = T.get_thread_binding()
            row = T.alloc_local((4,), "float32")
            total = T.alloc_local((4,), "float32")
            T.clear(total)
            T.copy(A[tx, 0:4], row)
            T.sync_threads()
            for k in T.serial(4):
                total[k] += row[k] * 3
            T.copy(total, C[tx, 0:4])

    a, c = RNG.random((16, 4), np.float32), np.empty((16, 4), np.float32)
    run(program, a, c)
    np.testing.assert_allclose(c, a * 3, rtol=1e-6)


@pytest.mark.parametrize(("low", "done"), [(0, True), (32, True), (64, False)])
def test_a_tile_operator_is_done_by_the_threads_that_come(low, done):
    @T.prim_func
    def program(A: T.Tensor((8,), "float32"), C: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            warp = tx - low
            if warp >= 0:
                T.copy(A, C)

    a, c = RNG.random(8, np.float32), np.zeros(8, np.float32)
    run(program, a, c)
    np.testing.assert_array_equal(c, a if done else 0)


def test_a_program_that_names_no_thread_has_no_loops_over_threads():
    @TS.prim_func
    def program(A: TS.Buffer((64,), "float32")):
        for bx in TS.thread_binding(2, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in TS.thread_binding(96, thread="threadIdx.x"):
                count = TS.alloc_buffer((1,), "int32", scope="local")
                count[0] = bx
                for i in TS.parallel(32):
                    A[bx * 32 + i] = TS.Cast("float32", count[0])
                TS.evaluate(TS.tvm_storage_sync("shared"))
                for i in range(2):
                    count[0] = count[0] + i

    before = program

    @TS.prim_func
    def program(A: TS.Buffer((64,), "float32")):
        for bx in TS.thread_binding(2, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            count = TS.alloc_buffer((1,), "int32", scope="local")
            count[0] = bx
            for i in TS.parallel(32):
                A[bx * 32 + i] = TS.Cast("float32", count[0])
            for i in range(2):
                count[0] = count[0] + i

    tvm.ir.assert_structural_equal(serialized(before), program)


def test_statements_without_a_cut_between_them_share_one_loop():
    @T.prim_func
    def program(A: T.Tensor((37,), "float32")):
        with T.Kernel(1, threads=37):
            tx = T.get_thread_binding()
            own = T.alloc_local((1,), "float32")
            own[0] = A[tx]
            for i in T.serial(4):
                own[0] = own[0] * own[0]
            A[tx] = own[0]

    func = serialized(program)
    assert loops_over(func, 37) == 1
    assert 'own = T.alloc_buffer((37,), scope="local")' not in func.script()


# Effects that every thread has --------------------------------------------------------------------


def test_an_atomic_of_a_kernel_written_for_threads_happens_once_per_thread():
    @T.prim_func
    def program(A: T.Tensor((3,), "int32"), B: T.Tensor((64,), "int32")):
        with T.Kernel(2, threads=(8, 4)) as bx:
            if T.get_thread_binding(0) == 99:
                A[0] = 0
            T.atomic_add(A[0], 1)
            for i in T.Parallel(16):
                T.atomic_add(A[1], B[i])
            for i in T.serial(3):
                T.atomic_add(A[2], i)

    a, b = np.zeros(3, np.int32), np.arange(64, dtype=np.int32)
    run(program, a, b)
    np.testing.assert_array_equal(a, [2 * 32, 2 * 120, 2 * 32 * 3])


def test_atomics_on_a_shared_tile_without_barriers_of_the_user():
    @T.prim_func
    def program(A: T.Tensor((4, 96), "int32"), C: T.Tensor((4, 8), "int32")):
        with T.Kernel(4, threads=96) as bx:
            tx = T.get_thread_binding()
            histogram = T.alloc_shared((8,), "int32")
            if tx < 8:
                histogram[tx] = 0
            T.atomic_add(histogram[A[bx, tx]], 1)
            if tx < 8:
                C[bx, tx] = histogram[tx]

    a = RNG.integers(0, 8, (4, 96)).astype(np.int32)
    c = np.empty((4, 8), np.int32)
    run(program, a, c)
    np.testing.assert_array_equal(c, [np.bincount(row, minlength=8) for row in a])


def test_what_atomics_add_is_read_before_another_thread_overwrites_it():
    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), C: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            s = T.alloc_shared((64,), "int32")
            total = T.alloc_shared((64,), "int32")
            s[tx] = A[tx]
            total[tx] = 0
            T.sync_threads()
            T.atomic_add(total[tx], s[63 - tx])
            s[tx] = 0
            T.sync_threads()
            C[tx] = total[tx]

    a, c = np.arange(64, dtype="int32"), np.zeros(64, "int32")
    tvmtile.compile(main, target="llvm")(a, c)
    np.testing.assert_array_equal(c, a[::-1])


def test_an_atomic_s_previous_value_is_taken_once_by_each_thread():
    @T.prim_func
    def program(A: T.Tensor((64,), "int32"), n: T.int32, C: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            count = T.alloc_shared((1,), "int32")
            if tx == 0:
                count[0] = 0
            T.sync_threads()
            place = T.alloc_var("int32", init=-1)
            if A[tx] > n:
                place = T.atomic_add(count[0], 1, return_prev=True)
            T.sync_threads()
            if place >= 0:
                C[place] = tx

    a, c = RNG.integers(0, 100, 64).astype(np.int32), np.full(64, -1, np.int32)
    run(program, a, 60, c)
    chosen = np.flatnonzero(a > 60)
    assert 0 < len(chosen) < 64
    np.testing.assert_array_equal(np.sort(c[: len(chosen)]), chosen)
    np.testing.assert_array_equal(c[len(chosen) :], -1)


def test_barrier_for_some_threads():
    @T.prim_func
    def program(A: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            shared = T.alloc_shared((32,), "int32")
            if tx < 16:
                shared[tx] = A[tx]
                T.sync_threads(3, 16)
                A[tx] = shared[15 - tx]

    a = np.arange(32, dtype=np.int32)
    run(program, a)
    np.testing.assert_array_equal(a, [*range(15, -1, -1), *range(16, 32)])


def test_value_in_a_branch_of_some_threads_that_work_of_the_block_uses():
    """The threads of the branch share the work, which takes what they all know."""

    @T.prim_func
    def program(P: T.Tensor((4,), "float32"), X: T.Tensor((4, 64), "float32"), C: T.Tensor((64,))):
        with T.Kernel(1, threads=64):
            factors = T.alloc_shared((4,), "float32")
            T.copy(P, factors)
            if T.get_thread_binding() >= 32:
                sums = T.alloc_fragment((64,), "float32")
                T.clear(sums)
                for k in T.serial(4):
                    factor = factors[k]
                    row = 3 - k
                    for i in T.Parallel(64):
                        sums[i] += factor * X[row, i]
                T.copy(sums, C)

    p, x = RNG.normal(size=4).astype("float32"), RNG.normal(size=(4, 64)).astype("float32")
    c = np.zeros(64, "float32")
    run(program, p, x, c)
    np.testing.assert_allclose(c, p @ x[::-1], rtol=1e-5, atol=1e-5)


def test_an_element_of_a_fragment_that_some_threads_add_to():
    """All threads of the branch hold it, and it grows once, also in a loop beside work of each."""

    @T.prim_func
    def program(Q: T.Tensor((3,), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            if tx < 32:
                total = T.alloc_fragment(1, "float32")
                total[0] = 1
                for k in T.serial(3):
                    total[0] += Q[k]
                    C[tx] += k
                total[0] = total[0] * 2
                for i in T.Parallel(32):
                    C[32 + i] = total[0]

    q, c = RNG.normal(size=3).astype("float32"), np.zeros(64, "float32")
    run(program, q, c)
    np.testing.assert_allclose(c[:32], 3)
    np.testing.assert_allclose(c[32:], 2 * (1 + q.sum()), rtol=1e-6)
