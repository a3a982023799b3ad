"""Shuffles, votes and reductions over threads against numpy."""

import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.metal.programs import runnable

RNG = np.random.default_rng(0)


def in_groups(values, width):
    """Values of threads as rows of groups; the last group may be short."""
    return [values[i : i + width] for i in range(0, len(values), width)]


def shuffled(values, width, source):
    """What each thread reads from the lane `source(lane)` of its group, its own if there is none."""
    result = []
    for group in in_groups(values, width):
        for lane in range(len(group)):
            other = source(lane)
            result.append(group[other] if 0 <= other < len(group) else group[lane])
    return np.array(result)


@pytest.mark.full
@pytest.mark.parametrize("threads", [32, 48, 128])
@pytest.mark.parametrize("width", [4, 32])
def test_shuffles(threads, width):
    @T.prim_func
    def program(A: T.Tensor((threads,), "float32"), C: T.Tensor((4, threads), "float32")):
        with T.Kernel(1, threads=threads):
            tx = T.get_thread_binding()
            C[0, tx] = T.shfl_up(A[tx], 3, width)
            C[1, tx] = T.shfl_down(A[tx], 2, width)
            C[2, tx] = T.shfl_xor(A[tx], 2, width)
            C[3, tx] = T.shfl_sync(A[tx], 1, width)

    a, c = RNG.random(threads, np.float32), np.empty((4, threads), np.float32)
    tvmtile.compile(program, target="llvm")(a, c)
    np.testing.assert_array_equal(c[0], shuffled(a, width, lambda lane: lane - 3))
    np.testing.assert_array_equal(c[1], shuffled(a, width, lambda lane: lane + 2))
    np.testing.assert_array_equal(c[2], shuffled(a, width, lambda lane: lane ^ 2))
    np.testing.assert_array_equal(c[3], shuffled(a, width, lambda lane: 1))


def test_a_shuffle_of_a_shuffled_value_in_a_loop():
    @T.prim_func
    def program(A: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            own = T.alloc_local((1,), "int32")
            own[0] = A[tx]
            for i in T.serial(5):
                own[0] += T.shfl_xor(T.shfl_xor(own[0], 1 << i), (1 << i) ^ 1)
            A[tx] = own[0]

    a = np.arange(32, dtype=np.int32) ** 2
    expected = a.copy()
    for _ in range(5):
        expected = expected + expected[np.arange(32) ^ 1]
    tvmtile.compile(program, target="llvm")(a)
    np.testing.assert_array_equal(a, expected)


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int8"])
def test_warp_reductions(dtype):
    @T.prim_func
    def program(A: T.Tensor((64,), dtype), C: T.Tensor((3, 64), dtype)):
        with T.Kernel(1, threads=(8, 8)):
            thread = T.get_thread_binding(0) + 8 * T.get_thread_binding(1)
            C[0, thread] = T.warp_reduce_sum(A[thread])
            C[1, thread] = T.warp_reduce_max(A[thread])
            C[2, thread] = T.warp_reduce_min(A[thread])

    a = RNG.integers(-3, 4, 64).astype(dtype)
    c = np.empty((3, 64), dtype)
    tvmtile.compile(program, target="llvm")(a, c)
    warps = a.reshape(2, 32)
    expected = [np.repeat(f(warps, axis=1), 32) for f in (np.sum, np.max, np.min)]
    np.testing.assert_array_equal(c, np.array(expected, dtype))


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["uint32", "int64"])
def test_bitwise_warp_reductions(dtype):
    @T.prim_func
    def program(A: T.Tensor((32,), dtype), C: T.Tensor((2, 32), dtype)):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            C[0, tx] = T.warp_reduce_bitand(A[tx])
            C[1, tx] = T.warp_reduce_bitor(A[tx])

    a = RNG.integers(0, 1 << 31, 32).astype(dtype) | np.array(64, dtype)
    c = np.empty((2, 32), dtype)
    tvmtile.compile(program, target="llvm")(a, c)
    np.testing.assert_array_equal(c[0], np.bitwise_and.reduce(a))
    np.testing.assert_array_equal(c[1], np.bitwise_or.reduce(a))


@pytest.mark.full
def test_votes():
    @T.prim_func
    def program(A: T.Tensor((64,), "int32"), C: T.Tensor((6, 64), "int64")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            C[0, tx] = T.any_sync(A[tx] == 7)
            C[1, tx] = T.all_sync(A[tx] < 50)
            C[2, tx] = T.cast(T.ballot(A[tx]), "int64")
            C[3, tx] = T.syncthreads_count(A[tx] > 3)
            C[4, tx] = T.syncthreads_and(A[tx] >= 0)
            C[5, tx] = T.syncthreads_or(A[tx] == 63)

    a, c = np.arange(64, dtype=np.int32), np.empty((6, 64), np.int64)
    a[40:50] = 0
    tvmtile.compile(program, target="llvm")(a, c)
    first, second = a[:32], a[32:]
    bits = [sum(1 << lane for lane in range(32) if warp[lane]) for warp in (first, second)]
    np.testing.assert_array_equal(c[0], np.repeat([1, 0], 32))
    np.testing.assert_array_equal(c[1], np.repeat([1, 0], 32))
    np.testing.assert_array_equal(c[2], np.repeat(bits, 32))
    np.testing.assert_array_equal(c[3], (a > 3).sum())
    np.testing.assert_array_equal(c[4], 1)
    np.testing.assert_array_equal(c[5], 1)


def test_places_of_threads():
    @T.prim_func
    def program(C: T.Tensor((5, 256), "int32")):
        with T.Kernel(1, threads=(64, 2, 2)):
            x, y, z = T.get_thread_bindings()
            thread = x + 64 * (y + 2 * z)
            C[0, thread] = T.get_lane_idx()
            C[1, thread] = T.get_warp_idx()
            C[2, thread] = T.get_warp_group_idx()
            C[3, thread] = T.get_warp_idx_sync(64)
            C[4, thread] = T.cast(T.shuffle_elect(128), "int32")

    c = np.empty((5, 256), np.int32)
    tvmtile.compile(program, target="llvm")(c)
    t = np.arange(256)
    np.testing.assert_array_equal(c, [t % 32, t // 32, t // 128, t // 64, t % 128 == 0])


def all_reduced(reducer, identity, dtype, axes):
    """A kernel of (4, 8) threads that reduces a value of each over some axes."""

    @T.prim_func
    def program(A: T.Tensor((8, 4), dtype), C: T.Tensor((8, 4), dtype)):
        with T.Kernel(1, threads=(4, 8)):
            x, y = T.get_thread_binding(0), T.get_thread_binding(1)
            own = T.alloc_local((1,), dtype)
            result = T.alloc_local((1,), dtype)
            own[0] = A[y, x]
            with T.attr(
                T.comm_reducer(reducer, [T.cast(identity, dtype)]),
                "reduce_scope",
                T.reinterpret(T.uint64(0), dtype="handle"),
            ):
                T.evaluate(
                    T.tvm_thread_allreduce(
                        T.uint32(1), own[0], True, result[0], *([x, y][axis] for axis in axes)
                    )
                )
            C[y, x] = result[0]

    return program


@pytest.mark.parametrize(("axes", "numpy_axes"), [((0,), (1,)), ((1,), (0,)), ((0, 1), (0, 1))])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_reduction_over_threads(axes, numpy_axes, dtype):
    program = all_reduced(lambda a, b: a + b, 0, dtype, axes)
    a, c = RNG.integers(-3, 4, (8, 4)).astype(dtype), np.empty((8, 4), dtype)
    tvmtile.compile(program, target="llvm")(a, c)
    expected = np.broadcast_to(a.sum(numpy_axes, keepdims=True), a.shape)
    np.testing.assert_array_equal(c, expected.astype(dtype))


def test_reduction_of_two_values_together():
    """The place of the largest value: each of the two results depends on both operands."""

    @T.prim_func
    def program(A: T.Tensor((32,), "float32"), C: T.Tensor((2,), "float32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            best = T.alloc_local((1,), "float32")
            place = T.alloc_local((1,), "float32")
            with T.attr(
                T.comm_reducer(
                    lambda a, i, b, j: (
                        T.Select(a >= b, a, b),
                        T.Select(a >= b, i, j),
                    ),
                    [T.float32(-1), T.float32(-1)],
                ),
                "reduce_scope",
                T.reinterpret(T.uint64(0), dtype="handle"),
            ):
                T.evaluate(
                    T.tvm_thread_allreduce(
                        T.uint32(2),
                        A[tx],
                        T.cast(tx, "float32"),
                        tx != 9,
                        best[0],
                        place[0],
                        tx,
                    )
                )
            C[0] = best[0]
            C[1] = place[0]

    a, c = RNG.random(32, np.float32), np.empty(2, np.float32)
    a[9] = 5  # its thread takes no part
    tvmtile.compile(program, target="llvm")(a, c)
    a[9] = 0
    np.testing.assert_array_equal(c, [a.max(), a.argmax()])


def check(program, outputs):
    """Run a program that only writes; Metal's threads come in whole warps."""
    for options in TARGETS if outputs.shape[-1] % 32 == 0 else TARGETS[:1]:
        out = np.empty_like(outputs)
        tvmtile.compile(program, **options)(out)
        np.testing.assert_array_equal(out, outputs)


TARGETS = (
    {"target": "llvm"},
    {"target": "metal", "execution_backend": "emulator"},
)


@pytest.mark.full
@pytest.mark.parametrize("threads", [32, 48, 96])
def test_matches_and_active_lanes(threads):
    @T.prim_func
    def program(A: T.Tensor((4, threads), "uint32")):
        with T.Kernel(1, threads=threads):
            tx = T.get_thread_binding()
            A[0, tx] = T.match_any_sync(tx % 5)
            A[1, tx] = T.match_all_sync(tx // 32)
            A[2, tx] = T.match_all_sync(T.cast(tx, "float32"), 0xFFFF)
            A[3, tx] = T.cast(T.activemask(), "uint32")

    expected = np.zeros((4, threads), np.uint32)
    for lane in range(threads):
        warp = range(lane // 32 * 32, min(lane // 32 * 32 + 32, threads))
        expected[0, lane] = sum(1 << (i % 32) for i in warp if i % 5 == lane % 5)
        expected[1, lane] = 0xFFFFFFFF
        expected[3, lane] = sum(1 << (i % 32) for i in warp)
    check(program, expected)
    assert threads % 32 or tvmtile.compile(program, target={"kind": "cuda", "arch": "sm_90a"}).cubin


@pytest.mark.full
@pytest.mark.parametrize(
    "target", ["llvm", "metal", {"kind": "cuda", "arch": "sm_80"}], ids=["llvm", "metal", "cuda"]
)
def test_active_lanes_of_branches_and_loops(target):
    """Those that come to the statement together, whatever the others do in the meantime."""

    @T.prim_func
    def program(N: T.Tensor((64,), "int32"), A: T.Tensor((6, 64), "uint32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            if N[tx] > 2:
                A[0, tx] = T.cast(T.activemask(), "uint32")
                if tx % 2 == 0:
                    A[1, tx] = T.cast(T.activemask(), "uint32")
                else:
                    here = T.activemask()
                    A[1, tx] = T.cast(here, "uint32")
            else:
                A[0, tx] = T.cast(T.activemask(), "uint32")
            for k in T.serial(3):
                if k < N[tx]:
                    A[2 + k, tx] = T.cast(T.activemask(), "uint32")
            A[5, tx] = T.cast(T.activemask(), "uint32")

    n = np.arange(64, dtype=np.int32) * 7 % 5
    lanes = np.arange(64)

    def together(key):
        """The bits of the lanes of the same warp that have the same key."""
        key = key + 100 * (lanes // 32)
        return [sum(1 << (j % 32) for j in lanes if key[j] == key[i]) for i in lanes]

    expected = np.zeros((6, 64), np.uint32)
    expected[0] = together(n > 2)
    expected[1] = np.where(n > 2, together((n > 2) * (1 + lanes % 2)), 0)
    for k in range(3):
        expected[2 + k] = np.where(k < n, together(k < n), 0)
    expected[5] = 0xFFFFFFFF
    result = np.zeros((6, 64), np.uint32)
    runnable(program, target)(n, result)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.full
def test_places_of_bits():
    masks = [0, 1, 0x80000000, 0xFFFFFFFF, 0b10110000]
    questions = [(0, 1), (0, 3), (4, 1), (5, -1), (31, -2), (4, 0), (6, 0), (31, 2)]

    def place(mask, base, offset):
        if offset == 0:
            return base if mask >> base & 1 else 0xFFFFFFFF
        order = range(base, 32) if offset > 0 else range(base, -1, -1)
        found = [i for i in order if mask >> i & 1]
        return found[abs(offset) - 1] if len(found) >= abs(offset) else 0xFFFFFFFF

    @T.prim_func
    def places(
        M: T.Tensor((len(masks),), "uint32"),
        Q: T.Tensor((len(questions), 2), "int32"),
        A: T.Tensor((len(masks), 32), "uint32"),
        F: T.Tensor((len(masks), 2), "int32"),
    ):
        with T.Kernel(len(masks), threads=32) as m:
            tx = T.get_thread_binding()
            if tx < len(questions):
                A[m, tx] = T.__fns(M[m], Q[tx, 0], Q[tx, 1])
            if tx == 0:
                F[m, 0] = T.__ffs(M[m])
                F[m, 1] = T.__ffs(T.cast(M[m], "int64") << 20)

    m, q = np.array(masks, np.uint32), np.array(questions, np.int32)
    for options in TARGETS:
        a, f = np.zeros((len(masks), 32), np.uint32), np.zeros((len(masks), 2), np.int32)
        tvmtile.compile(places, **options)(m, q, a, f)
        lowest = [(x & -x).bit_length() for x in masks]
        assert f.tolist() == [[x, x and x + 20] for x in lowest]
        wanted = [[place(x, *question) for question in questions] for x in masks]
        assert a[:, : len(questions)].tolist() == wanted
    assert tvmtile.compile(places, target={"kind": "cuda", "arch": "sm_90a"}).cubin


@pytest.mark.full
@pytest.mark.parametrize(
    "target", ["llvm", {"kind": "cuda", "arch": "sm_80"}], ids=["llvm", "cuda"]
)
def test_shuffles_of_some_lanes(target):
    half = 0xFFFF

    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            if tx % 32 < 16:
                crossed = T.shfl_xor(A[tx], 5, mask=half)
                following = T.shfl_down(A[tx], 1, width=8, mask=half)
                C[tx] = crossed + 4 * following + 16 * T.shfl_sync(A[tx], 3, mask=half)

    given = torch.randint(-8, 8, (64,)).float()
    result = torch.zeros(64)
    runnable(main, target)(given, result)
    tx = torch.arange(64)
    following = torch.where(tx % 8 < 7, tx + 1, tx)
    expected = given[tx ^ 5] + 4 * given[following % 64] + 16 * given[tx // 32 * 32 + 3]
    assert torch.equal(result, torch.where(tx % 32 < 16, expected, 0))
