"""Copies of four rows: the instructions of Blackwell's GPUs, and what is refused."""

from __future__ import annotations

import pytest

import tvmtile
import tvmtile.language as T
from tvmtile.errors import InvalidOperand, NoLowering, ShapeMismatch

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


def mistaken(action, match, error=InvalidOperand):
    with pytest.raises(error, match=f"(?s){match}"):

        @T.prim_func
        def main(A: T.Tensor((64, 60), "float16"), B: T.Tensor((64, 64), "float16")):
            with T.Kernel(1, threads=128):
                tile = T.alloc_shared((4, 64), "float16")
                bar = T.alloc_barrier(1)
                if action == "pitch":
                    T.tma_gather4(A, tile, 0, [0, 1, 2, 3], barrier=bar)
                elif action == "rows":
                    T.tma_gather4(B, tile, 0, [0, 1, 2], barrier=bar)
                elif action == "memory":
                    T.tma_scatter4(B, tile, 0, [0, 1, 2, 3])
                elif action == "tile":
                    T.tma_gather4(tile, B, 0, [0, 1, 2, 3], barrier=bar)
                elif action == "height":
                    T.tma_gather4(B, T.alloc_shared((8, 64), "float16"), 0, [0] * 4, barrier=bar)
                elif action == "barrier":
                    T.tma_gather4(B, tile, 0, [0, 1, 2, 3], barrier=tile)
                elif action in ("narrow", "uneven", "wide"):
                    columns = {"narrow": 3, "uneven": 12, "wide": 512}[action]
                    rows = T.alloc_shared((4, columns), "float16")
                    T.tma_gather4(B, rows, 0, [0, 1, 2, 3], barrier=bar)
                elif action == "dtype":
                    wide = T.alloc_shared((4, 64), "float32")
                    T.tma_gather4(B, wide, 0, [0, 1, 2, 3], barrier=bar)
                else:
                    T.tma_gather4(B[0:4, 0:64], tile, 0, [0, 1, 2, 3], barrier=bar)


def test_mistakes():
    mistaken("pitch", r"rows of A\[64, 60\] float16 may not begin at multiples of 16 bytes")
    mistaken("rows", "there are 4 indices", ShapeMismatch)
    mistaken("memory", "the tensor is in global memory")
    mistaken("tile", "the tensor is in global memory")
    mistaken("height", "the tile has 4 rows", ShapeMismatch)
    mistaken("barrier", "T.alloc_barrier")
    mistaken("narrow", "a row of .* has 3 columns, 6 bytes.*a multiple of 16 bytes")
    mistaken("uneven", "a row of .* has 12 columns, 24 bytes")
    mistaken("wide", "a row of .* has 512 columns.*at most 256")
    mistaken("dtype", "differ in their dtypes")
    mistaken("region", "is not a whole tensor of two axes")
