"""Copies by tensor maps: how many there are, those of single threads, and why some can't be.

What they copy is tested by the programs of tests/programs/bulk_copies.py.
"""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile import layout
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


@pytest.mark.parametrize(
    ("name", "columns", "count", "copies"),
    [
        ("full_bank_swizzled", 128, 128, 2),  # a panel each
        ("half_bank_swizzled", 32, 1, 1),
        ("half_bank_swizzled", 64, 128, 2),
        ("quarter_bank_swizzled", 16, 1, 1),
        ("linear", 64, 1, 1),
    ],
)
def test_swizzles_are_those_of_the_tile(name, columns, count, copies):
    shape, tile = (32, columns), (16, columns)
    make = getattr(layout, f"make_{name}_layout")
    for program, factor in (
        (by_hand(shape, tile, "float16", count, make), 1),
        (stored(shape, tile, "float16", True, layout=make), 2),
    ):
        kernel, a = emulated(program), torch.randn(shape).half()
        checked(kernel, a, torch.zeros_like(a), expected=a * factor, seeds=1)
        assert kernel.adapter.statistics.bulk_copies == 2 * copies


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


def pipelined(stages, repeated=1):
    """A product whose operands come by tensor maps."""

    @T.prim_func
    def main(
        A: T.Tensor((100, 160), "float16"),
        B: T.Tensor((160, 72), "float16"),
        S: T.Tensor((5,), "int32"),
        C: T.Tensor((100, 72), "float32"),
    ):
        with T.Kernel(2, 2, threads=128) as (bx, by):
            T.annotate_warp_specialize(False)
            a = T.alloc_shared((64, 32), "float16")
            b = T.alloc_shared((32, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for _ in T.serial(repeated):
                for k in T.Pipelined(5, num_stages=stages):
                    T.copy(A[by * 64, k * 32], a, impl="tma")
                    T.copy(B[k * 32, bx * 64], b, impl="tma")
                    T.gemm(a, b, c)
            T.copy(c, C[by * 64, bx * 64], impl="elements")

    return main


def test_an_iteration_has_one_barrier_and_a_copy_for_each_operand():
    kernel = emulated(pipelined(3))
    a, b = torch.randn(100, 160).half(), torch.randn(160, 72).half()
    kernel(a, b, torch.zeros(5, dtype=torch.int32), torch.zeros(100, 72))
    statistics = kernel.adapter.statistics
    assert statistics.block_barriers == 4 * (1 + 5)
    assert (statistics.bulk_copies, statistics.async_copies) == (4 * 5 * 2, 0)


def alone(shape=(64, 64), tile=(64, 64), back="elements"):
    """A tile that is copied by a tensor map, or stored by one."""

    @T.prim_func
    def main(A: T.Tensor(shape, "float16")):
        with T.Kernel(1, threads=128):
            t = T.alloc_shared(tile, "float16")
            T.copy(A[0, 0], t, impl=None if back == "tma" else "tma")
            if back != "none":
                T.copy(t, A[0, 0], impl=back)

    return main


@pytest.mark.full
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_machine_code(arch):
    target = {"kind": "cuda", "arch": arch}
    kernel = tvmtile.compile(pipelined(3), target=target)
    assert kernel.cubin
    assert "const __grid_constant__ CUtensorMap A_map" in kernel.get_kernel_source()
    store = stored((128, 64), (32, 64), "float16", arch == "sm_90a", steps=2)
    assert tvmtile.compile(store, target=target).cubin


# What can't be ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "arch", "reason"),
    [
        (alone((64, 60), back="none"), "sm_90a", "rows of A[64, 60] float16 may not begin at"),
        (
            alone((512, 512), (64, 512), back="none"),
            "sm_90a",
            "t[0:64, 0:512] float16 would be 128",
        ),
        (
            by_hand((64, 512), (64, 512), "float16", 128, layout.make_linear_layout),
            "sm_90a",
            "its rows are longer than a box, and the layout of t is fixed by hand",
        ),
        (
            by_hand((64, 328), (64, 328), "float16", 128),
            "sm_90a",
            "the rows of t[0:64, 0:328] float16 are longer than a box, and are no whole panels",
        ),
        (alone(back="none"), "sm_80", "from compute capability 9.0 on"),
        (alone(), "sm_90a", "the kernel writes A[64, 64] float16"),
        (alone(back="tma"), "sm_90a", "the kernel reads A[64, 64] float16"),
    ],
)
def test_where_no_tensor_map_can_be_the_reason_is_said(program, arch, reason):
    with pytest.raises(NoLowering) as error:
        tvmtile.compile(program, target={"kind": "cuda", "arch": arch})
    assert reason in str(error.value)


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


def test_a_tile_that_is_written_while_it_is_stored():
    with pytest.raises(DataRace) as error:
        emulated(stored((96, 32), (32, 32), "float16", True, waits=False, steps=3))
    assert "elements of t[32, 32] float16 are written before the copy of them to a tensor" in str(
        error.value
    )
    assert "put T.tma_store_wait() in front of it" in str(error.value)
