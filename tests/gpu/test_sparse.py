"""Products with tiles of which half the elements are left out, by `mma.sp`."""

import numpy as np
import pytest
import torch

import tvmtile.language as T
from tests.gpu.machine import DEVICE, on_gpu
from tests.tileop.gemm_sp.test_gemm_sp import K, M, N, program, sparse
from tvmtile.tileop.gemm_sp import reference

KINDS = [
    ("float16", "float32", "sm_80"),
    ("float16", "float16", "sm_80"),
    ("bfloat16", "float32", "sm_80"),
    ("float32", "float32", "sm_80"),
    ("int8", "int32", "sm_80"),
    ("float8_e4m3fn", "float32", "sm_89"),
    ("float8_e5m2", "float32", "sm_89"),
]


def operands(kind, meta, m, n, k):
    """A, E and B, of small integers that every dtype has."""
    rng = np.random.default_rng(0)
    dtype = kind if kind in ("float32", "int8") else "float16"
    a, e = sparse(dtype, meta, rng, m, k)
    return a, e, rng.integers(-4, 5, (k, n)).astype(dtype)


def on_device(array, kind):
    return torch.from_numpy(np.ascontiguousarray(array)).to(getattr(torch, kind)).to(DEVICE)


@pytest.mark.full
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("transposed", [(False, False, False), (False, False, True), (True,) * 3])
@pytest.mark.parametrize("meta", ["uint8", "int16", "int32"])
@pytest.mark.parametrize(("kind", "accumulator", "arch"), KINDS)
def test_tile(kind, accumulator, arch, meta, transposed, stages):
    a, e, b = operands(kind, meta, M, N, K)
    kernel = on_gpu(program(kind, meta, accumulator, e.shape[1], transposed, stages), arch)
    assert "mma.sp::ordered_metadata" in kernel.get_kernel_source()
    expected = 2 * reference(a, e, b, np.zeros((M, N)))
    given = [x.T if t else x for x, t in zip((a, e, b), transposed, strict=True)]
    c = torch.empty(M, N, dtype=getattr(torch, accumulator), device=DEVICE)
    kernel(*map(on_device, given, (kind, meta, kind)), c)
    np.testing.assert_array_equal(c.double().cpu(), expected)


def blocked(m, n, k, block, kind, accumulator, per_element, policy):
    """C = A @ B, block by block; an element of E describes so many elements of the whole A."""
    rows, columns, depth = block

    @T.prim_func
    def main(
        A: T.Tensor((m, k // 2), kind),
        E: T.Tensor((m, k // per_element), "int16"),
        B: T.Tensor((k, n), kind),
        C: T.Tensor((m, n), accumulator),
    ):
        with T.Kernel(n // columns, m // rows, threads=128) as (bx, by):
            a, b = T.alloc_shared((rows, depth // 2), kind), T.alloc_shared((depth, columns), kind)
            e = T.alloc_shared((rows, depth // per_element), "int16")
            c = T.alloc_fragment((rows, columns), accumulator)
            T.clear(c)
            for ko in T.Pipelined(k // depth, num_stages=3):
                T.copy(A[by * rows, ko * depth // 2], a)
                T.copy(E[by * rows, ko * depth // per_element], e)
                T.copy(B[ko * depth, bx * columns], b)
                T.gemm_sp(a, e, b, c, policy=policy)
            T.copy(c, C[by * rows, bx * columns])

    return main


@pytest.mark.full
@pytest.mark.parametrize("policy", list(T.GemmWarpPolicy))
@pytest.mark.parametrize(("kind", "accumulator", "arch"), KINDS)
def test_product(kind, accumulator, arch, policy):
    m, n, k = 128, 192, 512
    a, e, b = operands(kind, "int16", m, n, k)
    program = blocked(m, n, k, (64, 64, 128), kind, accumulator, k // e.shape[1], policy)
    c = torch.empty(m, n, dtype=getattr(torch, accumulator), device=DEVICE)
    on_gpu(program, arch)(on_device(a, kind), on_device(e, "int16"), on_device(b, kind), c)
    expected = reference(a, e, b, np.zeros((m, n)))
    np.testing.assert_allclose(c.double().cpu(), expected, rtol=1e-2 * (accumulator == "float16"))
