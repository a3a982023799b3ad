"""What statements mean: the same on every target.

A program runs on the CPU and on Metal's emulator, and on an NVIDIA GPU, where there is one; elsewhere
it is compiled for one.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.gpu.machine import HAS_GPU, by_way_of_gpu, on_gpu
from tests.metal.programs import emulated, runnable
from tvmtile.errors import CudaEmulationError, MetalEmulationError

TARGETS = ("llvm", "metal", {"kind": "cuda", "arch": "sm_80"})
NAN = math.nan


def everywhere(program, *arguments):
    """What a program leaves in its last argument, which every target must agree on."""
    results = []
    for build in (tvmtile.compile, emulated, *([by_way_of_gpu] if HAS_GPU else [])):
        own = [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments]
        options = {"target": "llvm"} if build is tvmtile.compile else {}
        build(program, **options)(*own)
        results.append(own[-1])
    if not HAS_GPU:
        assert on_gpu(program).cubin
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=0, equal_nan=True)
    return results[0]


def signs(n=64):
    return torch.where(torch.arange(n) % 2 == 0, 1.0, -1.0)


@T.prim_func
def asserting(A: T.Tensor((64,), "float32")):
    with T.Kernel(2, threads=32) as bx:
        for i in T.Parallel(32):
            T.device_assert(A[bx * 32 + i] > 0, "positive")  # here


@pytest.mark.parametrize(
    "target", ["llvm", {"kind": "cuda", "arch": "sm_80"}], ids=["llvm", "cuda"]
)
def test_an_assertion_that_does_not_hold_names_its_line(target):
    kernel = runnable(asserting, target)
    kernel(torch.ones(64))
    lines = Path(__file__).read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if text.endswith("# here"))
    with pytest.raises((RuntimeError, CudaEmulationError), match="positive") as caught:
        kernel(torch.zeros(64))
    assert f"{Path(__file__).name}:{line}" in str(caught.value)


@pytest.mark.full
def test_an_assertion_stops_a_kernel_that_one_thread_runs():
    """TVM's pool of one thread loses the errors of its loops."""
    code = (
        "import torch, tvmtile\n"
        "from tests.language.test_statements import asserting\n"
        "tvmtile.compile(asserting, target='llvm')(torch.zeros(64))\n"
    )
    environment = {**os.environ, "TVM_NUM_THREADS": "1"}
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "positive" in done.stderr
    assert done.returncode == 1


# Leaving loops -----------------------------------------------------------------------------------


@pytest.mark.full(but=1)
@pytest.mark.parametrize("threads", [32, 64, 128])
def test_continue_ends_an_iteration_of_a_parallel_loop(threads):
    @T.prim_func
    def program(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=threads):
            for _ in T.serial(3):
                for i in T.Parallel(64):
                    if X[i] > 0:
                        continue
                    Y[i] += 1
                for i in T.Parallel(64):
                    Y[i] += 100

    y = everywhere(program, signs(), torch.zeros(64))
    assert torch.equal(y, torch.where(signs() > 0, 300.0, 303.0))


@pytest.mark.full
def test_continue_inside_branches_that_go_on_otherwise():
    @T.prim_func
    def program(X: T.Tensor((8, 16), "int32"), Y: T.Tensor((8, 16), "int32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_fragment((8, 16), "int32")
            T.copy(X, tile)
            for i, j in T.Parallel(8, 16):
                if tile[i, j] > 10:
                    if tile[i, j] % 2 == 0:
                        if tile[i, j] % 4 == 0:
                            continue
                        Y[i, j] += 1
                    else:
                        continue
                    Y[i, j] += 10
                Y[i, j] += 100

    x = torch.arange(128, dtype=torch.int32).view(8, 16)
    y = everywhere(program, x, torch.zeros_like(x))
    small, odd = x <= 10, x % 2 == 1
    expected = torch.where(small, 100, torch.where(odd | (x % 4 == 0), 0, 111))
    assert torch.equal(y, expected.int())


def test_continue_of_a_serial_loop_in_a_parallel_one():
    @T.prim_func
    def program(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                for k in T.serial(4):
                    if X[i] > 0 and k % 2 == 0:
                        continue
                    Y[i] += 1
                Y[i] += 10

    y = everywhere(program, signs(), torch.zeros(64))
    assert torch.equal(y, torch.where(signs() > 0, 12.0, 14.0))


@pytest.mark.full(but=1)
@pytest.mark.parametrize("kind", [T.unroll, T.vectorized])
def test_leaving_loops_that_would_be_unrolled(kind):
    @T.prim_func
    def program(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                for k in kind(4):
                    if X[i] > 0:
                        if k > 1:
                            break
                    elif k == 0:
                        continue
                    Y[i] += 1

    y = everywhere(program, signs(), torch.zeros(64))
    assert torch.equal(y, torch.where(signs() > 0, 2.0, 3.0))


@pytest.mark.full
def test_a_small_fragment_is_visited_by_parallel_and_by_serial_loops():
    @T.prim_func
    def main(A: T.Tensor((3, 16), "float32"), B: T.Tensor((3,), "float32")):
        with T.Kernel(3, threads=64) as bx:
            f = T.alloc_fragment((16,), "float32")
            T.clear(f)
            for k in T.serial(3):
                for i in T.Parallel(16):
                    f[i] += A[bx, i] * k
            most = T.alloc_local((1,), "float32")
            most[0] = f[0]
            for c in range(1, 16):
                most[0] = T.max(most[0], f[c])
            total = T.alloc_local((1,), "float32")
            total[0] = 0
            for c in range(16):
                total[0] += T.abs(f[c] - most[0])
            B[bx] = total[0]

    a = torch.arange(48, dtype=torch.float32).reshape(3, 16)
    b = everywhere(main, a, torch.zeros(3))
    assert torch.equal(b, torch.full((3,), 3.0 * sum(range(16))))


def test_parallel_loops_of_parallel_loops_are_one_nest():
    @T.prim_func
    def main(A: T.Tensor((6, 4, 10), "int32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(6):
                for j in T.Parallel(4):
                    for k in T.Parallel(10):
                        A[i, j, k] = i * 100 + j * 10 + k

    a = everywhere(main, torch.zeros(6, 4, 10, dtype=torch.int32))
    i, j, k = (torch.arange(n) for n in a.shape)
    assert torch.equal(a, (i[:, None, None] * 100 + j[:, None] * 10 + k).int())


# Copies ------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_copy_within_a_buffer_reads_before_it_writes():
    @T.prim_func
    def program(X: T.Tensor((64,), "float32"), Y: T.Tensor((5, 64), "float32")):
        with T.Kernel(1, threads=64):
            shared = T.alloc_shared((64,), "float32")
            own = T.alloc_fragment((64,), "float32")
            T.copy(X, shared)
            T.copy(X, own)
            T.copy(shared[0:32], shared[16:48])
            T.copy(shared, Y[0, :])
            T.copy(own[16:48], own[0:32])
            T.copy(own, Y[1, :])
            for k in range(3):
                T.copy(shared[k : k + 32], shared[k + 1 : k + 33])
            T.copy(shared, Y[2, :])
            rows = T.view(shared, (16, 4), "float32")
            others = T.view(shared, (16, 4), "float32")
            T.copy(rows[0:8, :], others[4:12, :])
            T.copy(shared, Y[3, :])
            T.copy(Y[3, 0:32], Y[3, 5:37])

    x = torch.arange(64.0)
    tile, expected = x.clone(), torch.zeros(5, 64)
    tile[16:48] = x[0:32]
    expected[0] = tile
    expected[1] = torch.cat([x[16:48], x[32:]])
    for k in range(3):
        tile[k + 1 : k + 33] = tile[k : k + 32].clone()
    expected[2] = tile
    tile[16:48] = tile[0:32].clone()
    expected[3] = tile
    expected[3, 5:37] = tile[0:32]
    assert torch.equal(everywhere(program, x, torch.zeros(5, 64)), expected)


# Scalar statements -------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("threads", [None, 32, 256])
def test_what_names_no_thread_is_done_once_a_block(threads):
    @T.prim_func
    def program(X: T.Tensor((8,), "int32"), Y: T.Tensor((24,), "int32")):
        with T.Kernel(4, threads=threads) as bx:
            Y[bx] += 1
            T.atomic_add(Y[4], 1)
            for i in T.serial(8):
                T.atomic_add(Y[5], X[i])
            total = T.alloc_fragment((1,), "int32")
            total[0] = 0
            for i in T.Parallel(8):
                total[0] += X[i]
            T.atomic_add(Y[6], total[0])
            before = T.alloc_var("int32")
            before = T.atomic_add(Y[7], 1, return_prev=True)
            Y[8 + before] = 7
            place = T.atomic_add(Y[12], 1, return_prev=True)
            Y[16 + place] = 9
            Y[20 + bx] = T.min(T.atomic_max(Y[13], 3, return_prev=True), 0) + 5

    x = torch.arange(8, dtype=torch.int32)
    y = everywhere(program, x, torch.zeros(24, dtype=torch.int32))
    assert y.tolist() == [1] * 4 + [4, 112, 112, 4] + [7] * 4 + [4, 3, 0, 0] + [9] * 4 + [5] * 4


# Vectors -----------------------------------------------------------------------------------------


def test_vectors_with_dependences_run_in_order():
    @T.prim_func
    def program(A: T.Tensor((8, 4), "float32"), Y: T.Tensor((3, 8, 8), "float32")):
        with T.Kernel(1, threads=32):
            total = T.alloc_local((1,), "float32")
            for r in range(8):
                total[0] = 0
                for k in T.vectorized(4):
                    total[0] += A[r, k]
                Y[0, r, 0] = total[0]
            for r in T.Parallel(8):
                for k in T.vectorized(4):
                    place = k + 1
                    Y[1, r, place] = Y[1, r, k] + A[r, k]
                for k in T.vectorized(4):
                    Y[2, r, k] = A[r, k]
                    Y[2, r, k + 4] = Y[2, r, k] + 1
                    Y[2, r, k + 2] += 1

    a = torch.arange(32.0).view(8, 4)
    y = everywhere(program, a, torch.zeros(3, 8, 8))
    assert torch.equal(y[0, :, 0], a.sum(1))
    assert torch.equal(y[1, :, 1:5], a.cumsum(1))
    expected = torch.zeros(8, 8)
    for k in range(4):
        expected[:, k] = a[:, k]
        expected[:, k + 4] = expected[:, k] + 1
        expected[:, k + 2] += 1
    assert torch.equal(y[2], expected)


# Conditions --------------------------------------------------------------------------------------


@pytest.mark.full
def test_conditions_of_numbers_that_are_none():
    """TVM's simplifier takes floats for ordered."""

    @T.prim_func
    def program(X: T.Tensor((64,), "float32"), Y: T.Tensor((6, 64), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                value = X[i]
                if value > 0:
                    Y[0, i] = 1
                elif value <= 0:
                    Y[0, i] = 2
                else:
                    Y[0, i] = 3
                if not X[i] > 0:
                    Y[1, i] = 1
                if X[i] > 0:
                    pass
                else:
                    Y[2, i] = 1
                if value != value:
                    Y[3, i] = 1
                if X[i] == X[i]:
                    Y[4, i] = 1
                if not (value > 0 or value < 0):
                    Y[5, i] = 1

    x = torch.tensor([NAN, 1, -1, 0]).repeat(16)
    y = everywhere(program, x, torch.zeros(6, 64))
    expected = [[3, 1, 2, 2], [1, 0, 1, 1], [1, 0, 1, 1], [1, 0, 0, 0], [0, 1, 1, 1], [1, 0, 0, 1]]
    assert y[:, :4].tolist() == expected


@pytest.mark.full(but=1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_negated_conditions_of_other_floats(dtype):
    if dtype == "float64":  # Metal has none
        builds = [lambda program: tvmtile.compile(program, target="llvm")]
    else:
        builds = [lambda program: tvmtile.compile(program, target="llvm"), emulated]

    @T.prim_func
    def program(X: T.Tensor((64,), dtype), Y: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                Y[i] = T.if_then_else(T.Not(X[i] > X[0]), 1, 0) + T.if_then_else(X[i] != X[i], 2, 0)
                Y[i] += T.if_then_else(X[i] != X[1], 4, 0)

    x = torch.tensor([0, 1, -1, NAN]).repeat(16).to(getattr(torch, dtype))
    for build in builds:
        y = torch.zeros(64, dtype=torch.int32)
        build(program)(x, y)
        assert y[:4].tolist() == [5, 0, 5, 7]


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_differences_keep_what_a_sum_has_lost(dtype):
    """As compensated sums need it; and infinity less itself is no number."""

    @T.prim_func
    def program(X: T.Tensor((32,), dtype), Z: T.Tensor((32,), dtype), Y: T.Tensor((3, 32), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                total = X[i] + Z[i]
                Y[0, i] = (total - X[i]) - Z[i]
                Y[1, i] = X[i] - (Z[i] + X[i])
                Y[2, i] = X[i] - X[i]

    x = torch.tensor([3e4, 1e-3, math.inf, NAN]).repeat(8).to(getattr(torch, dtype))
    z = torch.tensor([0.37, 1.7, 1.0, 2.0]).repeat(8).to(x.dtype)
    expected = torch.stack([((x + z) - x) - z, x - (z + x), x - x])
    assert expected[0, 0] != 0
    y = everywhere(program, x, z, torch.zeros(3, 32, dtype=x.dtype))
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)


def test_constants_become_booleans_and_other_bits():
    """TVM's folding of constants asks booleans for 0 or 1, and takes bits of zero for a pointer."""

    @T.prim_func
    def program(X: T.Tensor((4,), "float32"), Y: T.Tensor((3, 4), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(4):
                Y[0, i] = T.if_then_else(T.cast(T.int32(3), "bool"), 1, 2)
                Y[1, i] = T.cast(T.cast(X[i], "bool"), "int32")
                Y[2, i] = T.cast(T.reinterpret(T.int32(0), "float32") + X[0], "int32")

    y = everywhere(program, torch.tensor([5, 0, NAN, -0.0]), torch.zeros(3, 4, dtype=torch.int32))
    assert y.tolist() == [[1, 1, 1, 1], [1, 0, 1, 0], [5, 5, 5, 5]]


@pytest.mark.full(but=2)
@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("number", [65504, 65519, 65520, 2**31 - 1, -65519, -65520, 448, -449])
def test_constants_beyond_a_narrow_float_become_what_they_do_at_run_time(number, dtype):
    @T.prim_func
    def program(X: T.Tensor((1,), "int32"), Y: T.Tensor((3,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(1):
                constant = T.int32(number) + 0 * i
                Y[0] = T.cast(T.cast(constant, dtype), "float32")
                Y[1] = T.cast(T.cast(T.cast(constant, "float32"), dtype), "float32")
                Y[2] = T.cast(T.cast(X[i], dtype), "float32")

    y = everywhere(program, torch.tensor([number], dtype=torch.int32), torch.zeros(3))
    assert y.tolist() == [y[2]] * 3


@pytest.mark.full(but=1)
@pytest.mark.parametrize("amount", [31, 32, 40, 63])
def test_numbers_of_32_bits_in_64_are_shifted_by_more(amount):
    """By a constant, and by what is known at run time only."""

    @T.prim_func
    def program(
        X: T.Tensor((8,), "int8"),
        Z: T.Tensor((8,), "uint64"),
        N: T.Tensor((8,), "int32"),
        Y: T.Tensor((5, 8), "int64"),
    ):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                by = T.cast(N[i], "int64")
                Y[0, i] = T.cast(X[i], "int64") >> amount
                Y[1, i] = T.cast(Z[i] >> amount, "int64")
                Y[2, i] = T.cast(X[i], "int64") >> by
                Y[3, i] = (T.cast(i - 4, "int64") >> by) & 7
                Y[4, i] = (T.cast(X[i], "int64") << by) >> by

    x = torch.arange(-4, 4, dtype=torch.int8)
    z = torch.arange(8, dtype=torch.int64) * 1234567890123456789 & (2**63 - 1)
    n = torch.full((8,), amount, dtype=torch.int32)
    y = everywhere(program, x, z.to(torch.uint64), n, torch.zeros(5, 8, dtype=torch.int64))
    shifted = x.long() >> amount
    expected = [shifted, z >> amount, shifted, shifted & 7, (x.long() << amount) >> amount]
    assert torch.equal(y, torch.stack(expected))


# Extrema -----------------------------------------------------------------------------------------


def extremum(function, a, b):
    """IEEE's maxNum or minNum."""
    return torch.where(a.isnan(), b, torch.where(b.isnan(), a, function(a, b)))


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_number_is_larger_and_smaller_than_none(dtype):
    low, high, lowest = (T.cast(value, dtype) for value in (-1, 1, -math.inf))

    @T.prim_func
    def program(X: T.Tensor((64,), dtype), Z: T.Tensor((64,), dtype), Y: T.Tensor((10, 64), dtype)):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((8, 8), dtype)
            rows = T.alloc_fragment((8,), dtype)
            T.copy(T.view(X, (8, 8), dtype), tile)
            for i in T.Parallel(64):
                Y[0, i] = T.max(X[i], Z[i])
                Y[1, i] = T.min(X[i], Z[i])
                Y[2, i] = T.max(X[i], high)
                Y[3, i] = T.max(high, X[i])
                Y[4, i] = T.clamp(X[i], low, high)
            T.reduce_max(tile, rows, dim=1)
            T.copy(rows, Y[5, 0:8])
            T.reduce_min(tile, rows, dim=1)
            T.copy(rows, Y[6, 0:8])
            T.reduce_absmax(tile, rows, dim=1)
            T.copy(rows, Y[7, 0:8])
            T.reduce_max(tile, rows, dim=1, nan_propagate=True)
            T.copy(rows, Y[8, 0:8])
            T.fill(rows, lowest)
            for i, j in T.Parallel(8, 8):
                rows[i] = T.max(rows[i], tile[i, j])
            T.copy(rows, Y[9, 0:8])

    x, z = torch.arange(64.0) - 30, torch.full((64,), 2.0)
    x[::3] = x[8:15] = z[::2] = math.nan
    x, z, y = (t.to(getattr(torch, dtype)) for t in (x, z, torch.zeros(10, 64)))
    one, rows = torch.ones_like(x), x.view(8, 8)
    numbers = extremum(torch.maximum, rows, torch.full_like(rows, -math.inf))
    expected = y.clone()
    expected[0] = extremum(torch.maximum, x, z)
    expected[1] = extremum(torch.minimum, x, z)
    expected[2] = expected[3] = extremum(torch.maximum, x, one)
    expected[4] = extremum(torch.minimum, extremum(torch.maximum, x, -one), one)
    expected[5, :8] = expected[9, :8] = numbers.amax(1)
    expected[6, :8] = extremum(torch.minimum, rows, torch.full_like(rows, math.inf)).amin(1)
    expected[7, :8] = extremum(torch.maximum, rows.abs(), torch.zeros_like(rows)).amax(1)
    expected[8, :8] = rows.amax(1)
    y = everywhere(program, x, z, y)
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)


# Large loops -------------------------------------------------------------------------------------


def test_an_element_that_very_many_iterations_add_to():
    """The registers of a thread are no reason to write out thousands of iterations."""
    count = 1 << 17

    @T.prim_func
    def program(X: T.Tensor((count,), "float32"), Y: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=32):
            total = T.alloc_fragment((1,), "float32")
            T.clear(total)
            for i in T.Parallel(count):
                total[0] += X[i]
            T.atomic_add(Y[0], total[0])

    x, y = (torch.arange(count) % 4).float(), torch.ones(1)
    kernel = emulated(program)
    kernel(x, y)
    assert y.item() == 1 + count * 1.5
    loads = kernel.get_kernel_source().count("(X_ptr + ")
    assert 0 < loads < 64


# Indices -----------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("threads", [32, 64])
def test_indices_that_lie_outside_of_a_tensor_at_run_time(threads):
    """Negative ones do not count from the end: they are outside, too."""

    @T.prim_func
    def program(
        X: T.Tensor((8, 8), "float32"),
        places: T.Tensor((64,), "int32"),
        Y: T.Tensor((2, 64), "float32"),
    ):
        with T.Kernel(1, threads=threads):
            for i in T.Parallel(64):
                Y[0, i] = X[places[i], 1]
            for i in T.Parallel(64):
                if i % 16 < 12:
                    Y[1, places[i] + i * 2 - 32] = i
            for k in T.serial(2):
                Y[1, places[k] - 20] = 1

    x = torch.arange(64.0).view(8, 8) + 1
    places = torch.tensor([-1, 0, 7, 8, -8, 2**31 - 1, -(2**31), 3] * 8, dtype=torch.int32)
    y = everywhere(program, x, places, torch.full((2, 64), -1.0))
    expected = torch.full((2, 64), -1.0)
    inside = (places >= 0) & (places < 8)
    expected[0] = torch.where(inside, x[places.clamp(0, 7).long(), 1], 0)
    for i in range(64):
        place = (int(places[i]) + i * 2 - 32 + 2**31) % 2**32 - 2**31
        if i % 16 < 12 and 0 <= place < 64:
            expected[1, place] = i
    assert torch.equal(y, expected)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", ["llvm", "metal"])
def test_the_right_side_of_and_and_or_is_read_where_the_left_one_leaves_it_open(target):
    @T.prim_func
    def main(
        A: T.Tensor((8,), "float32"), P: T.Tensor((8,), "int32"), C: T.Tensor((2, 8), "int32")
    ):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((8,), "float32")
            T.copy(A, s)
            for i in T.Parallel(8):
                C[0, i] = 0
                C[1, i] = 0
                if P[i] < 8 and s[P[i]] > 3:
                    C[0, i] = 1
                if P[i] >= 8 or s[P[i]] > 3:
                    C[1, i] = 1

    p = torch.tensor([0, 5, 7, 1 << 30, 4, 3, 1 << 29, 1], dtype=torch.int32)
    c = torch.empty(2, 8, dtype=torch.int32)
    runnable(main, target)(torch.arange(8.0), p, c)
    assert c.tolist() == [[0, 1, 1, 0, 1, 0, 0, 0], [0, 1, 1, 1, 1, 0, 1, 0]]


@T.prim_func
def flags(
    A: T.Tensor((4, 128), "int32"),
    B: T.Tensor((8,), "int32"),
    C: T.Tensor((3, 8), "int32"),
):
    with T.Kernel(2, threads=64) as bx:
        found = T.alloc_shared((8,), "int32")
        known = T.alloc_fragment((8,), "int32")
        T.fill(found, -1)
        T.fill(known, -1)
        for k in T.serial(4):
            for i in T.Parallel(128):
                if A[k, i] < 8:
                    found[A[k, i]] = k
                    known[A[k, i]] = 2 * k
                    C[2, A[k, i]] = A[k, i] + 1
        for i in T.Parallel(128):
            if A[0, i] < 4:
                found[A[0, i]] = -2
            if A[bx, i] < 8:
                B[A[bx, i]] = 1
        if bx == 0:
            T.copy(found, C[0, 0])
            T.copy(known, C[1, 0])


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.* is kept in shared memory")
@pytest.mark.parametrize("target", [*TARGETS, {"kind": "cuda", "arch": "sm_90a"}], ids=str)
def test_stores_of_one_value_by_several_iterations_and_blocks(target):
    """The last statement, and of it the last iteration of the loop around, wins."""
    numbers = torch.randint(
        0, 14, (4, 128), dtype=torch.int32, generator=torch.Generator().manual_seed(3)
    )
    some, all_of_them = torch.zeros(8, dtype=torch.int32), torch.zeros(3, 8, dtype=torch.int32)
    runnable(flags, target)(numbers, some, all_of_them)
    rows = [{int(n) for n in row} for row in numbers]
    last = [max((k for k in range(4) if n in rows[k]), default=-1) for n in range(8)]
    assert some.tolist() == [int(n in rows[0] | rows[1]) for n in range(8)]
    assert all_of_them[0].tolist() == [-2 if n in rows[0] and n < 4 else last[n] for n in range(8)]
    assert all_of_them[1].tolist() == [2 * k if k >= 0 else -1 for k in last]
    assert all_of_them[2].tolist() == [n + 1 if last[n] >= 0 else 0 for n in range(8)]


@T.prim_func
def last_ones(A: T.Tensor((64,), "int32"), B: T.Tensor((1,), "int32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            if A[i] > 0:
                B[0] = A[i]  # which one?


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", ["metal", {"kind": "cuda", "arch": "sm_80"}], ids=str)
def test_stores_of_different_values_are_a_race(target):
    """Where they are known only when the kernel runs, the emulators find it."""
    kernel = tvmtile.compile(last_ones, target=target, execution_backend="emulator")
    result = torch.zeros(1, dtype=torch.int32)
    kernel(torch.full((64,), 3, dtype=torch.int32), result)
    assert result.item() == 3
    with pytest.raises((MetalEmulationError, CudaEmulationError), match=r"race: .* B_ptr\[0\]"):
        kernel(torch.arange(64, dtype=torch.int32), result)
