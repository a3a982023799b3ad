"""What a kernel assumes of sizes: it is right where that holds, and an error says where it does not."""

import pytest
import torch

import tvmtile.language as T
from tests.gpu.machine import ARCHITECTURES, DEVICE, on_gpu
from tvmtile.errors import ArgumentError

K = 128


def gemm(multiple, tile):
    m, n = T.dynamic("m, n")

    @T.prim_func
    def product(
        A: T.Tensor((m, K), "float16"),
        B: T.Tensor((K, n), "float16"),
        C: T.Tensor((m, n), "float16"),
    ):
        with T.Kernel(T.ceildiv(n, tile), T.ceildiv(m, tile), threads=128) as (bx, by):
            T.assume(n % multiple == 0)
            a, b = T.alloc_shared((tile, 64), "float16"), T.alloc_shared((64, tile), "float16")
            c = T.alloc_fragment((tile, tile), "float32")
            T.clear(c)
            for k in T.Pipelined(K // 64, num_stages=2):
                T.copy(A[by * tile, k * 64], a)
                T.copy(B[k * 64, bx * tile], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * tile, bx * tile])

    return product


@pytest.mark.parametrize("arch", [ARCHITECTURES[0], "sm_90a"])
@pytest.mark.parametrize("multiple", [2, 8, 64])
@pytest.mark.parametrize(("m", "n"), [(64, 64), (77, 192), (1, 128)])
def test_a_product(m, n, multiple, arch):
    kernel = on_gpu(gemm(multiple, 64), arch)
    generator = torch.Generator().manual_seed(m * n)
    a, b = (torch.randint(-3, 4, shape, generator=generator).half() for shape in ((m, K), (K, n)))
    c = torch.full((m + 1, n), 77.0, device=DEVICE).half()
    kernel(a.to(DEVICE), b.to(DEVICE), c[:m])
    assert torch.equal(c[:m].cpu(), (a.double() @ b.double()).half())
    assert (c[m:] == 77).all()
    with pytest.raises(ArgumentError, match=f"product assumes that n % {multiple} == 0: n is 65"):
        kernel(a.to(DEVICE), b.new_zeros(K, 65).to(DEVICE), a.new_zeros(m, 65).to(DEVICE))
