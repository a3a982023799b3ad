"""Kernels without `T.Kernel`: loops and indices bound by hand, on every target."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.metal.programs import runnable

EVERYWHERE = ("llvm", "metal", {"kind": "cuda", "arch": "sm_90a"})
ROWS, COLUMNS = 4, 96


@T.prim_func
def by_loops(A: T.Tensor((ROWS, COLUMNS), "int32"), C: T.Tensor((ROWS, COLUMNS), "int32")):
    for by in T.thread_binding(ROWS, thread="blockIdx.y"):
        for tx in T.thread_binding(0, COLUMNS, "threadIdx.x"):
            for i in T.unroll(0, 4, step=2):
                for j in T.unroll(2, unroll_factor=2):
                    if tx % 4 == i + j:
                        C[by, tx] = A[by, tx] * 2


@T.prim_func
def by_statements(A: T.Tensor((ROWS, COLUMNS), "int32"), C: T.Tensor((ROWS, COLUMNS), "int32")):
    bx = T.launch_thread("blockIdx.x", ROWS)
    ty = T.launch_thread("threadIdx.y", 3)
    with T.launch_thread("threadIdx.x", 32) as tx:
        C[bx, ty * 32 + tx] = A[bx, ty * 32 + tx] * 2


@T.prim_func
def by_two_loops_over_the_threads(
    A: T.Tensor((ROWS, COLUMNS), "int32"), C: T.Tensor((ROWS, COLUMNS), "int32")
):
    for bx in T.thread_binding(ROWS, thread="blockIdx.x"):
        tile = T.alloc_shared((COLUMNS,), "int32")
        for tx in T.thread_binding(COLUMNS, thread="threadIdx.x"):
            tile[tx] = A[bx, COLUMNS - 1 - tx]
        T.sync_threads()
        for tx in T.thread_binding(COLUMNS, thread="threadIdx.x"):
            C[bx, tx] = tile[COLUMNS - 1 - tx] * 2


@T.prim_func
def by_tiles(A: T.Tensor((ROWS, COLUMNS), "int32"), C: T.Tensor((ROWS, COLUMNS), "int32")):
    for bx in T.thread_binding(ROWS, thread="blockIdx.x"):
        for _ in T.thread_binding(32, thread="threadIdx.x"):
            tile = T.alloc_shared((COLUMNS,), "int32")
            T.copy(A[bx, :], tile)
            for j in T.Parallel(COLUMNS):
                tile[j] *= 2
            T.copy(tile, C[bx, :])


@T.prim_func
def by_blocks_alone(A: T.Tensor((ROWS, COLUMNS), "int32"), C: T.Tensor((ROWS, COLUMNS), "int32")):
    for bz in T.thread_binding(ROWS, thread="blockIdx.z"):
        for j in T.serial(COLUMNS):
            C[bz, j] = A[bz, j] * 2


@T.prim_func
def by_kernels_one_after_the_other(
    A: T.Tensor((T.dynamic("rows"), COLUMNS), "int32"),
    C: T.Tensor((T.dynamic("rows"), COLUMNS), "int32"),
):
    for bx in T.thread_binding(A.shape[0], thread="blockIdx.x"):
        for tx in T.thread_binding(COLUMNS, thread="threadIdx.x"):
            C[bx, tx] = A[bx, tx]
    with T.Kernel(A.shape[0], threads=COLUMNS) as bx:
        tx = T.get_thread_binding()
        C[bx, tx] = C[bx, tx] * 2


@T.prim_func
def by_an_index_of_the_kernel(
    A: T.Tensor((ROWS, COLUMNS), "int32"), C: T.Tensor((ROWS, COLUMNS), "int32")
):
    with T.Kernel(ROWS, threads=(32, 3)) as bx:
        ty = T.thread_binding(0, 3, thread="threadIdx.y")
        for tx in T.thread_binding(0, 32, thread="threadIdx.x"):
            C[bx, ty * 32 + tx] = A[bx, ty * 32 + tx] * 2


PROGRAMS = (
    by_loops,
    by_statements,
    by_two_loops_over_the_threads,
    by_tiles,
    by_blocks_alone,
    by_kernels_one_after_the_other,
    by_an_index_of_the_kernel,
)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", EVERYWHERE, ids=lambda t: t if isinstance(t, str) else "cuda")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: str(p.attrs["global_symbol"]))
def test_kernels_bound_by_hand(program, target):
    a = torch.randint(-1000, 1000, (ROWS, COLUMNS), dtype=torch.int32)
    c = torch.zeros_like(a)
    runnable(program, target)(a, c)
    assert torch.equal(c, 2 * a)


def test_a_program_for_any_call():
    @tvmtile.jit
    def doubled(A: T.Tensor((ROWS, 32), "int32")):
        C = T.empty((ROWS, 32), "int32")
        for bx in T.thread_binding(ROWS, thread="blockIdx.x"):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                C[bx, tx] = A[bx, tx] * 2
        return C

    assert "doubled" in doubled.get_kernel_source()
    a = torch.randint(-1000, 1000, (ROWS, 32), dtype=torch.int32)
    assert torch.equal(doubled(a), 2 * a)
