"""DeclareInKernel: one argument of a kernel for each tensor."""

import re

import pytest
import torch
import tvm
from tvm import ir
from tvm.script import tirx

import tvmtile
import tvmtile.language as T
from tvmtile.passes import DeclareInKernel


def test_tensors_without_views_or_without_other_accesses_stay_as_they_are():
    @tirx.prim_func
    def main(A: tirx.Buffer((4, 32), "uint32"), C: tirx.Buffer((4, 64), "float16")):
        for bx in tirx.thread_binding(4, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in tirx.thread_binding(32, thread="threadIdx.x"):
                tile = tirx.alloc_buffer((32,), "uint32", scope="shared")
                halves = tirx.decl_buffer((64,), "float16", data=tile.data, scope="shared")
                words = tirx.decl_buffer((4, 32), "uint32", data=C.data)
                tile[tx] = A[bx, tx]
                halves[tx] = tirx.float16(0)
                words[bx, tx] = tile[tx]

    module = ir.IRModule({"main": main})
    tvm.ir.assert_structural_equal(DeclareInKernel(module), module)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_tensor_that_moves_as_vectors_and_elements_is_one_argument(dtype):
    """Rows are reversed, which reads element by element, and stored, which does not."""

    @T.prim_func
    def main(A: T.Tensor((3, 128), dtype), B: T.Tensor((3, 128), dtype)):
        with T.Kernel(3, threads=32) as row:
            tile = T.alloc_fragment((128,), dtype)
            for i in T.Parallel(128):
                tile[i] = A[row, 127 - i] + B[row, i]
            T.copy(tile, A[row, 0])

    kernel = tvmtile.compile(main, target="metal", execution_backend="emulator")
    assert len(re.findall(r"\[\[ buffer\(", kernel.get_kernel_source())) == 2
    A, B = (
        torch.randn(3, 128).to(getattr(torch, dtype)),
        torch.ones(3, 128, dtype=getattr(torch, dtype)),
    )
    expected = A.flip(1) + B
    kernel(A, B)
    torch.testing.assert_close(A, expected)
