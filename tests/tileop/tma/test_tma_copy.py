"""Copies by tensor maps: numbers in the emulator, instructions, and why some can't be."""

from __future__ import annotations

import pytest
import torch
from tvm.ir import assert_structural_equal
from tvm.script import from_source

import tvmtile
import tvmtile.language as T
from tvmtile.errors import DataRace, NoLowering

SM90 = {"kind": "cuda", "arch": "sm_90a"}


def emulated(program):
    return tvmtile.compile(program, target=SM90, execution_backend="emulator")


def checked(kernel, *args, expected, seeds=3):
    for seed in range(seeds):
        kernel.adapter.seed = seed
        args[-1].zero_()
        kernel(*args)
        torch.testing.assert_close(args[-1], expected, rtol=0, atol=0)


def values(shape, dtype):
    if dtype.startswith(("int", "uint")):
        return torch.randint(0, 100, shape, dtype=getattr(torch, dtype))
    return torch.randn(shape).to(getattr(torch, dtype))


# Loads ---------------------------------------------------------------------------------------------


def by_hand(shape, tile, dtype, count, layout=None):
    """Each block copies a tile, with an mbarrier at which `count` threads arrive."""
    rows, columns = tile

    @T.prim_func
    def main(A: T.Tensor(shape, dtype), C: T.Tensor(shape, dtype)):
        with T.Kernel(T.ceildiv(shape[1], columns), T.ceildiv(shape[0], rows), threads=128) as (
            x,
            y,
        ):
            t = T.alloc_shared(tile, dtype)
            if layout is not None:
                T.annotate_layout({t: layout(t)})
            arrived = T.alloc_barrier(count)
            T.tma_copy(A[y * rows, x * columns], t, barrier=arrived)
            if count == 128:
                T.mbarrier_arrive(arrived)
            elif T.get_thread_binding() == 0:
                T.mbarrier_arrive(arrived)
            T.mbarrier_wait_parity(arrived, 0)
            T.copy(t, C[y * rows, x * columns])

    return main


@pytest.mark.parametrize("count", [1, 128])
@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float32", "float64", "int8", "int32", "float8_e4m3fn"]
)
def test_ragged_tiles_of_a_tensor(dtype, count):
    shape = (50, 80)
    a, c = values(shape, "int8").to(getattr(torch, dtype)), None
    c = torch.zeros(shape).to(getattr(torch, dtype))
    kernel = emulated(by_hand(shape, (32, 32), dtype, count))
    if dtype == "float8_e4m3fn":
        kernel(a, c)
        assert torch.equal(a.view(torch.uint8), c.view(torch.uint8))
        return
    checked(kernel, a, c, expected=a)
    assert kernel.adapter.statistics.bulk_copies == 2 * 3


@pytest.mark.parametrize(
    ("name", "columns", "copies"),
    [
        ("make_full_bank_swizzled_layout", 64, 1),
        ("make_full_bank_swizzled_layout", 128, 2),  # a panel each
        ("make_half_bank_swizzled_layout", 32, 1),
        ("make_half_bank_swizzled_layout", 64, 2),
        ("make_quarter_bank_swizzled_layout", 16, 1),
        ("make_linear_layout", 64, 1),
    ],
)
def test_swizzles_are_those_of_the_tile(name, columns, copies):
    from tvmtile import layout

    shape = (64, columns)
    kernel = emulated(by_hand(shape, (16, columns), "float16", 128, getattr(layout, name)))
    a, c = torch.randn(shape).half(), torch.zeros(shape).half()
    checked(kernel, a, c, expected=a)
    assert kernel.adapter.statistics.bulk_copies == 4 * copies


def test_rows_longer_than_a_box_lie_in_panels():
    a = torch.randn(100, 320).half()
    load = emulated(by_hand((100, 320), (64, 320), "float16", 128))
    checked(load, a, torch.zeros_like(a), expected=a)
    assert load.adapter.statistics.bulk_copies == 2 * 5
    store = emulated(stored((100, 320), (64, 320), "float16", True))
    checked(store, a, torch.zeros_like(a), expected=a * 2)
    assert store.adapter.statistics.bulk_copies == 2 * 5


def test_axes_that_a_tile_does_not_have():
    @T.prim_func
    def main(A: T.Tensor((2, 3, 40, 4, 64), "float16"), C: T.Tensor((2, 3, 40, 4, 64), "float16")):
        with T.Kernel(5, 3 * 4, 2, threads=128) as (x, y, z):
            t = T.alloc_shared((8, 64), "float16")
            arrived = T.alloc_barrier(128)
            T.tma_copy(A[z, y // 4, x * 8 : x * 8 + 8, y % 4, :], t, barrier=arrived)
            T.mbarrier_arrive(arrived)
            T.mbarrier_wait_parity(arrived, 0)
            T.copy(t, C[z, y // 4, x * 8 : x * 8 + 8, y % 4, :])

    a = torch.randn(2, 3, 40, 4, 64).half()
    checked(emulated(main), a, torch.zeros_like(a), expected=a)


def test_one_box_of_three_axes():
    @T.prim_func
    def main(A: T.Tensor((4, 8, 32), "float32"), C: T.Tensor((4, 8, 32), "float32")):
        with T.Kernel(2, threads=64) as x:
            t = T.alloc_shared((2, 8, 32), "float32")
            arrived = T.alloc_barrier(64)
            T.tma_copy(A[x * 2, 0, 0], t, barrier=arrived)
            T.mbarrier_arrive(arrived)
            T.mbarrier_wait_parity(arrived, 0)
            T.copy(t, C[x * 2, 0, 0])

    a = torch.randn(4, 8, 32)
    kernel = emulated(main)
    checked(kernel, a, torch.zeros_like(a), expected=a)
    assert kernel.adapter.statistics.bulk_copies == 2


def test_a_dynamic_number_of_rows():
    rows = T.dynamic("rows")

    @T.prim_func
    def main(A: T.Tensor((rows, 64), "float16"), C: T.Tensor((rows, 64), "float16")):
        with T.Kernel(T.ceildiv(rows, 32), threads=128) as x:
            t = T.alloc_shared((32, 64), "float16")
            arrived = T.alloc_barrier(128)
            T.tma_copy(A[x * 32, 0], t, barrier=arrived)
            T.mbarrier_arrive(arrived)
            T.mbarrier_wait_parity(arrived, 0)
            T.copy(t, C[x * 32, 0])

    kernel = emulated(main)
    for count in (100, 32, 1, 0):
        a = torch.randn(count, 64).half()
        checked(kernel, a, torch.zeros_like(a), expected=a, seeds=1)


def test_each_warp_copies_its_own_row():
    @T.prim_func
    def main(A: T.Tensor((16, 256), "float32"), C: T.Tensor((16, 256), "float32")):
        with T.Kernel(4, threads=128) as x:
            t = T.alloc_shared((4, 256), "float32")
            arrived = T.alloc_barrier([32] * 4)
            tx = T.get_thread_binding()
            warp = tx // 32
            T.tma_copy(
                A[x * 4 + warp, 0:256],
                t[warp, 0:256],
                barrier=arrived[warp],
                leader_scope_threads=32,
            )
            T.mbarrier_arrive(arrived[warp])
            T.mbarrier_wait_parity(arrived[warp], 0)
            for i in T.serial(8):
                C[x * 4 + warp, i * 32 + tx % 32] = t[warp, i * 32 + tx % 32]

    a = torch.randn(16, 256)
    kernel = emulated(main)
    checked(kernel, a, torch.zeros_like(a), expected=a)
    assert kernel.adapter.statistics.bulk_copies == 16


def test_producers_and_consumers():
    """Half of the block begins copies three steps ahead, the other half adds the tiles up."""
    steps, n = 7, 64

    @T.prim_func
    def main(A: T.Tensor((steps, n, n), "float32"), C: T.Tensor((n, n), "float32")):
        with T.Kernel(1, threads=2 * n):
            t = T.alloc_shared((3, n, n), "float32")
            full, empty = T.alloc_barrier([n] * 3), T.alloc_barrier([n] * 3)
            tx = T.get_thread_binding()
            for k in T.serial(steps):
                if tx < n:
                    T.mbarrier_wait_parity(empty[k % 3], k // 3 % 2 ^ 1)
                    T.tma_copy(A[k, 0, 0], t[k % 3, 0:n, 0:n], barrier=full[k % 3])
                    T.mbarrier_arrive(full[k % 3])
                else:
                    T.mbarrier_wait_parity(full[k % 3], k // 3 % 2)
                    for i in T.serial(n):
                        C[tx - n, i] += t[k % 3, tx - n, i]
                    T.mbarrier_arrive(empty[k % 3])

    kernel = emulated(main)
    body = kernel.get_kernel_source().rpartition("__global__")[2]
    assert body.count("__syncthreads") == 1  # behind the initialisation
    a = torch.randn(steps, n, n)
    expected = torch.zeros(n, n)
    for k in range(steps):
        expected += a[k]
    checked(kernel, a, torch.zeros(n, n), expected=expected)


# T.copy ---------------------------------------------------------------------------------------------


def pipelined(stages, dtype="float16", m=100, n=72, repeated=1, guard=None):
    """A product whose operands come by tensor maps."""
    accumulated = "int32" if dtype == "int8" else "float32"
    step = 64 if dtype == "int8" else 32

    @T.prim_func
    def main(
        A: T.Tensor((m, 5 * step), dtype),
        B: T.Tensor((5 * step, n), dtype),
        S: T.Tensor((5,), "int32"),
        C: T.Tensor((m, n), accumulated),
    ):
        with T.Kernel(T.ceildiv(n, 64), T.ceildiv(m, 64), threads=128) as (bx, by):
            T.annotate_warp_specialize(False)
            a = T.alloc_shared((64, step), dtype)
            b = T.alloc_shared((step, 64), dtype)
            c = T.alloc_fragment((64, 64), accumulated)
            T.clear(c)
            for _ in T.serial(repeated):
                for k in T.Pipelined(5, num_stages=stages):
                    if guard is None or S[k] > 0:
                        T.copy(A[by * 64, k * step], a, impl="tma")
                        T.copy(B[k * step, bx * 64], b, impl="tma")
                        T.gemm(a, b, c)
            T.copy(c, C[by * 64, bx * 64], impl="elements")

    return main


@pytest.mark.parametrize("repeated", [1, 3])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_pipelined_loops(stages, repeated):
    a, b = torch.randn(100, 160).half(), torch.randn(160, 72).half()
    kernel = emulated(pipelined(stages, repeated=repeated))
    expected = repeated * (a.double() @ b.double())
    skip, c = torch.zeros(5, dtype=torch.int32), torch.zeros(100, 72)
    for seed in range(3):
        kernel.adapter.seed = seed
        kernel(a, b, skip, c)
        torch.testing.assert_close(c.double(), expected, rtol=1e-3, atol=2e-2)
    assert kernel.adapter.statistics.bulk_copies == 2 * 2 * 5 * 2 * repeated
    assert kernel.adapter.statistics.async_copies == 0


@pytest.mark.parametrize("flag", [0, 1])
def test_a_loop_in_a_branch_runs_once_and_counts_no_iterations(flag):
    @T.prim_func
    def main(
        A: T.Tensor((128, 64), "float32"), S: T.Tensor((1,), "int32"), C: T.Tensor((64,), "float32")
    ):
        with T.Kernel(1, threads=128):
            T.annotate_warp_specialize(False)
            a = T.alloc_shared((32, 64), "float32")
            total = T.alloc_fragment((64,), "float32")
            T.clear(total)
            if S[0] > 0:
                for k in T.Pipelined(4, num_stages=2):
                    T.copy(A[k * 32, 0], a, impl="tma")
                    T.reduce_sum(a, total, dim=0, clear=False)
            T.copy(total, C)

    kernel = emulated(main)
    assert "mbarrier" in kernel.get_kernel_source()
    assert "iterations" not in kernel.get_kernel_source()
    a, c = torch.randint(-4, 5, (128, 64)).float(), torch.empty(64)
    kernel(a, torch.tensor([flag], dtype=torch.int32), c)
    assert torch.equal(c, flag * a.sum(0))


@pytest.mark.parametrize("stages", [2, 3])
def test_iterations_that_a_condition_skips(stages):
    a, b = torch.randn(100, 160).half(), torch.randn(160, 72).half()
    taken = torch.tensor([1, 0, 1, 0, 0], dtype=torch.int32)
    kernel = emulated(pipelined(stages, guard=True))
    parts = [a[:, 32 * k : 32 * k + 32].double() @ b[32 * k : 32 * k + 32].double() for k in (0, 2)]
    c = torch.zeros(100, 72)
    kernel(a, b, taken, c)
    torch.testing.assert_close(c.double(), sum(parts), rtol=1e-3, atol=2e-2)


def test_one_barrier_an_iteration():
    kernel = emulated(pipelined(3))
    c = torch.zeros(100, 72)
    a, b = torch.randn(100, 160).half(), torch.randn(160, 72).half()
    kernel(a, b, torch.zeros(5, dtype=torch.int32), c)
    assert kernel.adapter.statistics.block_barriers == 4 * (1 + 5)


def alone(shape=(64, 64), dtype="float16", tile=(64, 64), times=1, fill=False):
    @T.prim_func
    def main(A: T.Tensor(shape, dtype), C: T.Tensor(shape, dtype)):
        with T.Kernel(1, threads=128) as block:
            t = T.alloc_shared(tile, dtype)
            if fill:
                T.clear(t)
            for _ in T.serial(times):
                T.copy(A[block * tile[0], 0], t, impl="tma")
                T.copy(t, C[block * tile[0], 0])

    return main


@pytest.mark.parametrize("fill", [False, True])
@pytest.mark.parametrize("times", [1, 3])
def test_a_copy_by_itself(times, fill):
    a = torch.randn(64, 64).half()
    kernel = emulated(alone(times=times, fill=fill))
    checked(kernel, a, torch.zeros_like(a), expected=a)
    assert ("fence.proxy.async" in kernel.get_kernel_source()) == (fill or times > 1)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_machine_code(arch):
    target = {"kind": "cuda", "arch": arch}
    assert tvmtile.compile(pipelined(3), target=target).cubin
    source = tvmtile.compile(pipelined(3), target=target).get_kernel_source()
    assert "const __grid_constant__ CUtensorMap A_map" in source
    assert "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes" in source


def test_printed_programs_parse_back():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128):
            t = T.alloc_shared((64, 64), "float16")
            arrived = T.alloc_barrier([128, 128])
            T.tma_copy(A, t, barrier=arrived[1], leader_scope_threads=64)
            T.mbarrier_arrive(arrived[1])
            T.mbarrier_wait_parity(arrived[1], 0)
            T.copy(t, C)

    assert_structural_equal(from_source(program.script(), s_tir=True), program)


# What can't be ---------------------------------------------------------------------------------------


def refused(program, reason, target=SM90):
    with pytest.raises(NoLowering) as error:
        tvmtile.compile(program, target=target)
    assert reason in str(error.value)


def test_reasons_against_a_tensor_map():
    from tvmtile.layout import make_linear_layout

    refused(alone((64, 60)), "rows of A[64, 60] float16 may not begin at multiples of 16 bytes")
    refused(alone((512, 512), tile=(64, 512)), "t[0:64, 0:512] float16 would be 128 boxes")
    wide = by_hand((64, 512), (64, 512), "float16", 128, make_linear_layout)
    refused(wide, "its rows are longer than a box, and the layout of t is fixed by hand")
    no_panels = by_hand((64, 328), (64, 328), "float16", 128)
    refused(
        no_panels,
        "the rows of t[0:64, 0:328] float16 are longer than a box, and are no whole panels",
    )
    refused(alone(), "from compute capability 9.0 on", target={"kind": "cuda", "arch": "sm_80"})


# Stores --------------------------------------------------------------------------------------------


def stored(shape, tile, dtype, explicit, waits=True, steps=1, layout=None):
    """Tiles are doubled in shared memory, one after the other, and stored."""
    rows, columns = tile

    @T.prim_func
    def main(A: T.Tensor(shape, dtype), C: T.Tensor(shape, dtype)):
        with T.Kernel(
            T.ceildiv(shape[1], columns), T.ceildiv(shape[0], rows * steps), threads=128
        ) as (
            x,
            y,
        ):
            t = T.alloc_shared(tile, dtype)
            if layout is not None:
                T.annotate_layout({t: layout(t)})
            for k in T.serial(steps):
                row = (y * steps + k) * rows
                for i, j in T.Parallel(rows, columns):
                    t[i, j] = A[row + i, x * columns + j] * 2
                if explicit:
                    T.tma_copy(t, C[row, x * columns])
                    if waits:
                        T.tma_store_wait()
                else:
                    T.copy(t, C[row, x * columns], impl="tma")

    return main


@pytest.mark.parametrize("explicit", [True, False])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
@pytest.mark.parametrize("steps", [1, 3])
def test_stores_of_ragged_tiles(dtype, explicit, steps):
    shape = (150, 80)
    a = values(shape, dtype)
    kernel = emulated(stored(shape, (32, 32), dtype, explicit, steps=steps))
    checked(kernel, a, torch.zeros_like(a), expected=a * 2, seeds=5)
    assert kernel.adapter.statistics.bulk_copies == 3 * (5 if steps == 1 else 6)


def test_stores_of_a_swizzled_tile():
    from tvmtile.layout import make_full_bank_swizzled_layout

    a = torch.randn(64, 128).half()
    program = stored((64, 128), (16, 128), "float16", True, layout=make_full_bank_swizzled_layout)
    kernel = emulated(program)
    checked(kernel, a, torch.zeros_like(a), expected=a * 2)
    assert kernel.adapter.statistics.bulk_copies == 8


def test_two_stores_under_way():
    @T.prim_func
    def main(A: T.Tensor((6, 32, 64), "float16"), C: T.Tensor((6, 32, 64), "float16")):
        with T.Kernel(1, threads=128):
            t = T.alloc_shared((2, 32, 64), "float16")
            for k in T.serial(6):
                T.tma_store_wait(1)
                T.copy(A[k, 0, 0], t[k % 2, 0:32, 0:64])
                T.tma_copy(t[k % 2, 0:32, 0:64], C[k, 0, 0])
            T.tma_store_wait(0, read=False)

    a = torch.randn(6, 32, 64).half()
    kernel = emulated(main)
    checked(kernel, a, torch.zeros_like(a), expected=a, seeds=8)
    source = kernel.get_kernel_source()
    assert "cp.async.bulk.wait_group.read %0;" in source or "wait_group.read 1" in source
    assert "cp.async.bulk.wait_group 0;" in source  # the tensor is written, too


def test_a_tile_that_is_written_while_it_is_stored():
    with pytest.raises(DataRace) as error:
        emulated(stored((96, 32), (32, 32), "float16", True, waits=False, steps=3))
    assert "elements of t[32, 32] float16 are written before the copy of them to a tensor" in str(
        error.value
    )
    assert "put T.tma_store_wait() in front of it" in str(error.value)


def test_machine_code_of_stores():
    for explicit in (True, False):
        program = stored((128, 64), (32, 64), "float16", explicit, steps=2)
        kernel = tvmtile.compile(program, target=SM90)
        assert kernel.cubin
        source = kernel.get_kernel_source()
        assert "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group" in source
        assert "fence.proxy.async.shared::cta" in source


def test_a_tensor_that_the_kernel_reads():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=128):
            t = T.alloc_shared((64, 64), "float16")
            T.copy(A, t)
            T.copy(t, A, impl="tma")

    refused(main, "the kernel reads A[64, 64] float16")
