"""InsertBoundsGuards: what no program of the catalogue shows of accesses over the edge of a tensor."""

from __future__ import annotations

import torch

import tvmtile
import tvmtile.language as T

N = 100


def test_reads_outside_have_the_value_that_a_program_asks_for():
    @T.prim_func
    def shift(A: T.Tensor((N,), "float16"), C: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 32)) as bx:
            T.annotate_safe_value({A: -2.5})
            tile = T.alloc_shared((32,), "float32")
            T.copy(A[bx * 32 + 3], tile)
            for i in T.Parallel(32):
                C[bx * 32 + i] = tile[i] + A[bx * 32 + i - 4]

    a = torch.randn(N).half()
    padded = torch.cat([torch.full((4,), -2.5), a.float(), torch.full((3,), -2.5)])
    assert torch.equal(tvmtile.compile(shift, out_idx=-1)(a), padded[7:] + padded[:N])


def test_each_lane_of_a_vector_is_guarded_by_itself():
    @T.prim_func
    def shift(A: T.Tensor((N,), "int32"), C: T.Tensor((N,), "int32")):
        with T.Kernel(T.ceildiv(N, 8)) as bx:
            C[bx * 8 - 2 : bx * 8 + 6] = A[bx * 8 - 4 : bx * 8 + 4]

    a, result = torch.arange(N, dtype=torch.int32) + 1, torch.full((N,), -1, dtype=torch.int32)
    tvmtile.compile(shift)(a, result)
    assert torch.equal(result, torch.cat([torch.zeros(2, dtype=torch.int32), a[:-2]]))


def test_only_the_innermost_loop_gets_a_version_without_guards():
    """The work before it and after it is done once; tests/programs/memory.py has its numbers."""
    m = T.dynamic("m")

    @T.prim_func
    def sums(A: T.Tensor((m, 64), "float32"), C: T.Tensor((m,), "float32")):
        with T.Kernel(T.ceildiv(m, 32), threads=32) as bx:
            total = T.alloc_fragment((32,), "float32")
            for i in T.Parallel(32):
                total[i] = C[bx * 32 + i]
            for k in T.serial(64):
                for i in T.Parallel(32):
                    total[i] += A[bx * 32 + i, k]
            for i in T.Parallel(32):
                C[bx * 32 + i] = total[i]

    source = tvmtile.compile(sums, target="metal", execution_backend="emulator").get_kernel_source()
    assert sum("A_ptr[" in line for line in source.splitlines()) == 2
    assert sum("C_ptr[" in line for line in source.splitlines()) == 2
