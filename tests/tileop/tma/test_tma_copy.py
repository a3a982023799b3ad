"""Copies by tensor maps: those of single threads, and why some can't be.

What they copy is tested by the programs of tests/programs/bulk_copies.py.
"""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.fuzz.run import loaded
from tests.programs import catalogue
from tvmtile import layout
from tvmtile.errors import DataRace, NoLowering

SM90 = {"kind": "cuda", "arch": "sm_90a"}


def emulated(program):
    return tvmtile.compile(program, target=SM90, execution_backend="emulator")


def assert_right(kernel, a, *, expected):
    """For some orders of the copies."""
    for seed in range(3):
        kernel.adapter.seed = seed
        c = torch.zeros_like(expected)
        kernel(a, c)
        assert torch.equal(c, expected)


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
    assert_right(kernel, a, expected=a)
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
    a = torch.randint(-9, 9, (steps, n, n)).float()
    assert_right(kernel, a, expected=a.double().sum(0).float())


@pytest.mark.full
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_a_map_is_a_parameter_of_the_kernel(arch, tmp_path):
    program = loaded(catalogue()["bulk_loads_of_a_product"].case(), tmp_path).main
    source = tvmtile.compile(program, target={"kind": "cuda", "arch": arch}).get_kernel_source()
    assert "const __grid_constant__ CUtensorMap A_map" in source


def alone(shape=(64, 64), tile=(64, 64), back="none", by_hand=False, annotate=None):
    """A tile that is copied by a tensor map, or stored by one."""

    @T.prim_func
    def main(A: T.Tensor(shape, "float16")):
        with T.Kernel(1, threads=128):
            t = T.alloc_shared(tile, "float16")
            if annotate is not None:
                T.annotate_layout({t: annotate(t)})
            if by_hand:
                T.tma_copy(A[0, 0], t, barrier=T.alloc_barrier(128))
            else:
                T.copy(A[0, 0], t, impl=None if back == "tma" else "tma")
            if back != "none":
                T.copy(t, A[0, 0], impl=back)

    return main


@pytest.mark.parametrize(
    ("program", "arch", "reason"),
    [
        (alone((64, 60)), "sm_90a", "rows of A[64, 60] float16 may not begin at"),
        (alone((512, 512), (64, 512)), "sm_90a", "t[0:64, 0:512] float16 would be 128"),
        (
            alone((64, 512), (64, 512), by_hand=True, annotate=layout.make_linear_layout),
            "sm_90a",
            "its rows are longer than a box, and the layout of t is fixed by hand",
        ),
        (
            alone((64, 328), (64, 328), by_hand=True),
            "sm_90a",
            "the rows of t[0:64, 0:328] float16 are longer than a box, and are no whole panels",
        ),
        (alone(), "sm_80", "from compute capability 9.0 on"),
        (alone(back="elements"), "sm_90a", "the kernel writes A[64, 64] float16"),
        (alone(back="tma"), "sm_90a", "the kernel reads A[64, 64] float16"),
    ],
)
def test_where_no_tensor_map_can_be_the_reason_is_said(program, arch, reason):
    with pytest.raises(NoLowering) as error:
        tvmtile.compile(program, target={"kind": "cuda", "arch": arch})
    assert reason in str(error.value)


def test_a_tile_that_is_written_while_it_is_stored():
    @T.prim_func
    def main(A: T.Tensor((3, 32, 32), "float16")):
        with T.Kernel(1, threads=128):
            t = T.alloc_shared((32, 32), "float16")
            for k in T.serial(3):
                for i, j in T.Parallel(32, 32):
                    t[i, j] = k
                T.tma_copy(t, A[k, 0, 0])

    with pytest.raises(DataRace, match="are written before the copy of them to a tensor") as error:
        emulated(main)
    assert "put T.tma_store_wait() in front of it" in str(error.value)
