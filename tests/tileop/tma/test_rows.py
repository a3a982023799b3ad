"""Copies of four rows: the instructions of Blackwell's GPUs, and what is refused."""

from __future__ import annotations

import pytest

import tvmtile
import tvmtile.language as T
from tvmtile.errors import NoLowering

SM100 = {"kind": "cuda", "arch": "sm_100a"}


def moved(dtype="bfloat16", columns=64):
    """Gather four rows, and scatter them to other ones."""

    @T.prim_func
    def main(
        A: T.Tensor((1000, 256), dtype), R: T.Tensor((8,), "int32"), C: T.Tensor((500, 256), dtype)
    ):
        with T.Kernel(256 // columns, threads=128) as x:
            tile = T.alloc_shared((4, columns), dtype)
            arrived = T.alloc_barrier(1)
            if T.shuffle_elect(128):
                T.mbarrier_expect_tx(arrived, T.tma_gather4_bytes(columns, dtype))
                T.tma_gather4(A, tile, x * columns, [R[i] for i in range(4)], barrier=arrived)
                T.mbarrier_arrive(arrived)
            T.mbarrier_wait_parity(arrived, 0)
            T.fence_proxy_async()
            if T.shuffle_elect(128):
                T.tma_scatter4(tile, C, x * columns, [R[4 + i] for i in range(4)])
                T.tma_store_arrive()
                T.tma_store_wait()

    return main


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float8_e4m3fn"])
def test_the_instructions_are_those_of_blackwell(dtype):
    kernel = tvmtile.compile(moved(dtype), target=SM100)
    source = kernel.get_kernel_source()
    name = "shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes"
    assert f"cp.async.bulk.tensor.2d.{name}" in source
    assert "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group" in source
    assert "__shared__ alignas(128)" in source
    assert kernel.cubin


def test_a_map_has_boxes_of_one_row():
    main = tvmtile.compile(moved(), target=SM100).get_kernel_source(kernel_only=False)
    assert "const __grid_constant__ CUtensorMap A_map" in main
    assert "const __grid_constant__ CUtensorMap C_map" in main


def test_the_bytes_of_a_gather():
    assert T.tma_gather4_bytes(64, "bfloat16") == 512
    assert T.tma_gather4_bytes(128, T.float8_e4m3fn) == 512


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120"])
def test_other_gpus_have_no_such_copies(arch):
    with pytest.raises(NoLowering) as error:
        tvmtile.compile(moved(), target={"kind": "cuda", "arch": arch})
    assert "of compute capability 10.0 move four rows at once" in str(error.value)
    assert "T.gather4 and T.scatter4 run everywhere" in str(error.value)
