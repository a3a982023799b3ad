"""InlineSingleTripLoops: loops that TVM would fail on, and loops that have to stay."""

import pytest
import torch
import tvm
from tvm import ir
from tvm.script import tirx as TS

import tvmtile
import tvmtile.language as T
from tvmtile.passes import InlineSingleTripLoops


def diagonal(stages):
    """Each block visits the tile on its diagonal in a loop, with a mask on its variable."""

    @T.prim_func
    def main(A: T.Tensor((128, 128), "float32"), C: T.Tensor((128, 128), "float32")):
        with T.Kernel(4, threads=64) as bx:
            tile = T.alloc_shared((32, 32), "float32")
            first = bx * 32 // 32
            for k in T.Pipelined(first, T.ceildiv((bx + 1) * 32, 32), num_stages=stages):
                T.copy(A[bx * 32, k * 32], tile)
                for i, j in T.Parallel(32, 32):
                    tile[i, j] = T.if_then_else(bx * 32 + i >= k * 32 + j, tile[i, j], 0)
                T.copy(tile, C[bx * 32, k * 32])

    return main


@pytest.mark.full
def test_a_loop_of_no_iterations_over_a_swizzled_tile():
    # TVM divided by zero where it flattened the places of elements that lie anywhere.
    @T.prim_func
    def main(
        A: T.Tensor((64, 128), "float16"),
        B: T.Tensor((16, 64), "float16"),
        C: T.Tensor((128, 64), "float32"),
        D: T.Tensor((128, 64), "float16"),
    ):
        with T.Kernel(1, 1, threads=32) as (bx, by):
            a = T.alloc_shared((16, 128), "float16")
            b = T.alloc_shared((16, 64), "float16")
            c = T.alloc_fragment((128, 64), "float32")
            T.clear(c)
            T.copy(B, b)
            for k in T.Pipelined(2, 2 + by, num_stages=2):
                T.copy(A[k * 16, 0], a)
                for i, j in T.Parallel(128, 64):
                    D[i, j] = a[(j * 5) % 16, (j + 2) % 128]
                T.gemm(a, b, c, transpose_A=True)
            T.copy(c, C)

    a, b = torch.randn(64, 128).half(), torch.randn(16, 64).half()
    for target in ({"kind": "cuda", "arch": "sm_90a"}, "metal"):
        c, d = torch.ones(128, 64), torch.ones(128, 64).half()
        tvmtile.compile(main, target=target, execution_backend="emulator")(a, b, c, d)
        assert (c == 0).all()
        assert (d == 1).all()


@pytest.mark.full
@pytest.mark.parametrize("stages", [0, 2, 3])
def test_a_loop_of_one_iteration_with_a_start_of_its_own(stages):
    A, C = torch.randn(128, 128), torch.zeros(128, 128)
    tvmtile.compile(diagonal(stages), target="metal", execution_backend="emulator")(A, C)
    assert torch.equal(
        C, torch.block_diag(*(A[i : i + 32, i : i + 32].tril() for i in range(0, 128, 32)))
    )
    source = tvmtile.compile(
        diagonal(stages), target={"kind": "cuda", "arch": "sm_80"}
    ).get_kernel_source()
    assert "for (int k" not in source


def test_loops_that_are_left_stay():
    @TS.prim_func(private=True)
    def main(A: TS.Buffer((8,), "int32")):
        for bx in TS.thread_binding(8, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for k in range(bx, bx + 1):
                if A[k] == 0:
                    break
                A[k] = 1

    module = ir.IRModule({"main": main.with_attr("global_symbol", "main")})
    tvm.ir.assert_structural_equal(InlineSingleTripLoops(module), module)
