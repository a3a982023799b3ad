"""Elements of arrays that are written as vectors, read at strides that vectors do not have."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import TileWarning, UnsupportedDtype


def on_metal(program):
    return tvmtile.compile(program, target="metal", execution_backend="emulator")


def test_elements_of_a_tile_of_float32_go_to_a_fragment_of_half():
    """A thread reads eight neighbours one by one: at `8 * thread + c`."""

    @T.prim_func
    def main(A: T.Tensor((32, 16), "float32"), C: T.Tensor((32, 16), "float16")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((32, 16), "float32")
            result = T.alloc_fragment((32, 16), "float16")
            T.copy(A, tile)
            for i, j in T.Parallel(32, 16):
                result[i, j] = T.if_then_else(tile[i, j] > 0, T.float32(1), tile[i, j])
            T.copy(result, C)

    a, c = torch.randn(32, 16), torch.empty(32, 16, dtype=torch.float16)
    on_metal(main)(a, c)
    assert torch.equal(c, torch.where(a > 0, torch.ones(()), a).half())


@pytest.mark.full(but=1)
@pytest.mark.parametrize(("dtype", "accum"), [("float32", "float32"), ("int32", "int32")])
@pytest.mark.parametrize("accumulator", [T.alloc_fragment, T.alloc_shared])
def test_products_of_words(dtype, accum, accumulator):
    @T.prim_func
    def main(
        A: T.Tensor((32, 64), dtype), B: T.Tensor((64, 32), dtype), C: T.Tensor((32, 32), accum)
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((32, 32), dtype)
            b = T.alloc_shared((32, 32), dtype)
            c = accumulator((32, 32), accum)
            T.clear(c)
            for k in T.Pipelined(2, num_stages=0):
                T.copy(A[0, k * 32], a)
                T.copy(B[k * 32, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C)

    x = torch.randint(-4, 5, (32, 64)).to(getattr(torch, dtype))
    y = torch.randint(-4, 5, (64, 32)).to(getattr(torch, dtype))
    out = torch.empty(32, 32, dtype=getattr(torch, accum))
    slow = pytest.warns(TileWarning, match="element by element")
    with slow if dtype == "int32" else nullcontext():
        kernel = on_metal(main)
    kernel(x, y, out)
    assert torch.equal(out, x @ y)


def test_vectors_of_bfloat16():
    @T.prim_func
    def main(A: T.Tensor((128,), "bfloat16"), C: T.Tensor((128,), "bfloat16")):
        with T.Kernel(1, threads=32):
            thread = T.get_thread_binding()
            C[T.ramp(thread * 4, 1, 4)] = A[T.ramp(thread * 4, 1, 4)]

    with pytest.raises(
        UnsupportedDtype, match="accessed by vectors, and Metal has none of bfloat16"
    ):
        on_metal(main)
