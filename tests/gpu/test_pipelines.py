"""A pipelined loop on an NVIDIA GPU, called often: what goes wrong there depends on time."""

import pytest
import torch

import tvmtile.language as T
from tests.gpu.machine import DEVICE, on_gpu

pytestmark = pytest.mark.gpu


@T.prim_func
def counted(
    A: T.Tensor((320, 128), "bfloat16"),
    B: T.Tensor((320, 48), "bfloat16"),
    D: T.Tensor((128, 48), "float16"),
    total: T.Tensor((1,), "float32"),
    C: T.Tensor((128, 48), "float32"),
):
    with T.Kernel(2, threads=256) as bx:
        a = T.alloc_shared((64, 128), "bfloat16")
        b = T.alloc_shared((64, 24), "bfloat16")
        d = T.alloc_shared((128, 24), "float16")
        products = T.alloc_fragment((128, 24), "float32")
        sums = T.alloc_fragment((128, 24), "float32")
        T.annotate_warp_specialize()
        T.clear(products)
        T.clear(sums)
        for k in T.Pipelined(7, num_stages=3):
            T.copy(A[k * 64 : k * 64 + 64, 0:128], a)
            T.copy(B[k * 64 : k * 64 + 64, bx * 24 : bx * 24 + 24], b)
            T.copy(D[0:128, bx * 24 : bx * 24 + 24], d)
            for i, j in T.Parallel(128, 24):
                T.atomic_add(total[0], sums[i, j])
            for i, j in T.Parallel(128, 24):
                sums[i, j] += T.cast(d[i, j], "float32")
            T.gemm(a, b, products, transpose_A=True)
        T.copy(products, C[0:128, bx * 24 : bx * 24 + 24])


@pytest.mark.filterwarnings("ignore::tvmtile.errors.TileWarning")
def test_copies_come_behind_loads_that_additions_delay():
    """Loads behind atomic additions take long; copies of rows outside of the tensor come at once.

    Where consumers gave slots back with such loads under way, 482 of 500 calls were wrong on an H200.
    """
    generator = torch.Generator().manual_seed(0)
    a, b, d = (
        torch.randint(-4, 5, shape, generator=generator).to(dtype)
        for shape, dtype in (
            ((320, 128), torch.bfloat16),
            ((320, 48), torch.bfloat16),
            ((128, 48), torch.float16),
        )
    )
    products = (a.double().T @ b.double()).float()
    added = d.double().sum().item() * sum(range(7))
    kernel = on_gpu(counted)
    given = [tensor.to(DEVICE) for tensor in (a, b, d)]
    for _ in range(100):
        total, result = torch.zeros(1, device=DEVICE), torch.zeros(128, 48, device=DEVICE)
        kernel(*given, total, result)
        torch.testing.assert_close(result.cpu(), products, rtol=0, atol=0)
        assert total.item() == added
