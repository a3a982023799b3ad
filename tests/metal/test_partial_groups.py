"""Blocks whose last simdgroup, or warp, is partial: any number of threads, as on the CPU."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import TileWarning

EMULATOR = {"target": "metal", "execution_backend": "emulator"}
SM80 = {"target": {"kind": "cuda", "arch": "sm_80"}}


def copied(rows, columns, threads):
    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), C: T.Tensor((rows, columns), "float32")):
        with T.Kernel(1, threads=threads):
            shared = T.alloc_shared((rows, columns), "float32")
            tile = T.alloc_fragment((rows, columns), "float32")
            T.copy(A, shared)
            T.copy(shared, tile)
            for i, j in T.Parallel(rows, columns):
                tile[i, j] = tile[i, j] * 2 + shared[rows - 1 - i, columns - 1 - j]
            T.copy(tile, C)

    return main


def without_sums_of_rows(rows, columns, threads):
    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), C: T.Tensor((rows, columns), "float32")):
        with T.Kernel(1, threads=threads):
            tile = T.alloc_fragment((rows, columns), "float32")
            total = T.alloc_fragment((rows,), "float32")
            T.copy(A, tile)
            T.reduce_sum(tile, total, dim=1)
            for i, j in T.Parallel(rows, columns):
                tile[i, j] = tile[i, j] - total[i]
            T.copy(tile, C)

    return main


def without_sums_of_columns(rows, columns, threads):
    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), C: T.Tensor((rows, columns), "float32")):
        with T.Kernel(1, threads=threads):
            tile = T.alloc_shared((rows, columns), "float32")
            total = T.alloc_shared((columns,), "float32")
            T.copy(A, tile)
            T.reduce_sum(tile, total, dim=0)
            for i, j in T.Parallel(rows, columns):
                C[i, j] = tile[i, j] - total[j]

    return main


def scanned(rows, columns, threads):
    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), C: T.Tensor((rows, columns), "float32")):
        with T.Kernel(1, threads=threads):
            tile = T.alloc_shared((rows, columns), "float32")
            T.copy(A, tile)
            T.cumsum(tile, dim=1)
            T.cumsum(tile, dim=0)
            T.copy(tile, C)

    return main


def reduced_by_all(rows, columns, threads):
    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), C: T.Tensor((rows, columns), "float32")):
        with T.Kernel(1, threads=threads):
            total = T.alloc_reducer((columns,), "float32", "sum")
            T.clear(total)
            for i, j in T.Parallel(rows, columns):
                total[j] += A[i, j]
            T.finalize_reducer(total)
            for i, j in T.Parallel(rows, columns):
                C[i, j] = total[j]

    return main


def pipelined(rows, columns, threads):
    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), C: T.Tensor((rows, columns), "float32")):
        with T.Kernel(1, threads=threads):
            row = T.alloc_shared((1, columns), "float32")
            total = T.alloc_fragment((columns,), "float32")
            T.clear(total)
            for k in T.Pipelined(rows, num_stages=2):
                T.copy(A[k, 0], row)
                for j in T.Parallel(columns):
                    total[j] = total[j] + row[0, columns - 1 - j]
                for j in T.Parallel(columns):
                    C[k, j] = total[j]

    return main


def by_thread(rows, columns, threads):
    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), C: T.Tensor((rows, columns), "float32")):
        with T.Kernel(1, threads=threads):
            thread = T.get_thread_binding()
            shared = T.alloc_shared((threads,), "float32")
            for i, step in T.grid(rows, T.ceildiv(columns, threads)):
                shared[thread] = 0
                if step * threads + thread < columns:
                    shared[thread] = A[i, step * threads + thread]
                T.sync_threads()
                if step * threads + thread < columns:
                    C[i, step * threads + thread] = shared[thread] + shared[0]
                T.sync_threads()

    return main


def transposed(rows, columns, threads):
    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), C: T.Tensor((rows, columns), "float32")):
        with T.Kernel(1, threads=threads):
            tile = T.alloc_fragment((rows, columns), "float32")
            turned = T.alloc_fragment((columns, rows), "float32")
            T.copy(A, tile)
            T.transpose(tile, turned)
            for i, j in T.Parallel(rows, columns):
                C[i, j] = turned[j, i]

    return main


PROGRAMS = (
    copied,
    without_sums_of_rows,
    without_sums_of_columns,
    scanned,
    reduced_by_all,
    pipelined,
    by_thread,
    transposed,
)


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
@pytest.mark.parametrize(
    ("threads", "rows", "columns"), [(1, 5, 7), (24, 3, 48), (48, 8, 16), (100, 16, 32)]
)
def test_a_block_of_any_number_of_threads(make, threads, rows, columns):
    """Integers, so that the order of a sum does not matter; the emulator looks for races too."""
    program = make(rows, columns, threads)
    A = torch.randint(-8, 8, (rows, columns)).float()
    expected, C = torch.zeros_like(A), torch.zeros_like(A)
    tvmtile.compile(program, target="llvm")(A, expected)
    tvmtile.compile(program, **EMULATOR)(A, C)
    assert torch.equal(C, expected)
    assert tvmtile.compile(program, **SM80).cubin


@pytest.mark.parametrize(("shape", "threads"), [((8, 4, 3), 96), ((2, 8, 3), 48), ((2, 4, 5), 40)])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_threads_that_lie_a_number_apart_that_is_no_power_of_two(shape, threads, dim):
    """Shuffles exchange by the bits of a lane's number."""
    kept = tuple(extent for axis, extent in enumerate(shape) if axis != dim)

    @T.prim_func
    def main(A: T.Tensor(shape, "float32"), C: T.Tensor(kept, "float32")):
        with T.Kernel(1, threads=threads):
            T.reduce_sum(A, C, dim=dim)

    A, C = torch.randint(-8, 8, shape).float(), torch.zeros(kept)
    tvmtile.compile(main, **EMULATOR)(A, C)
    assert torch.equal(C, A.sum(dim))


def product(threads):
    @T.prim_func
    def main(A: T.Tensor((16, 16), "float16"), C: T.Tensor((16, 16), "float32")):
        with T.Kernel(1, threads=threads):
            tile = T.alloc_shared((16, 16), "float16")
            sums = T.alloc_fragment((16, 16), "float32")
            T.copy(A, tile)
            T.clear(sums)
            T.gemm(tile, tile, sums)
            T.copy(sums, C)

    return main


def test_matrix_units_need_whole_groups():
    a, sums = torch.randn(16, 16).half(), torch.zeros(16, 16)
    with pytest.warns(
        TileWarning, match="element by element.* 48 threads are not whole simdgroups of 32"
    ):
        tvmtile.compile(product(48), **EMULATOR)(a, sums)
    torch.testing.assert_close(sums, (a.double() @ a.double()).float())
    with pytest.warns(
        TileWarning, match="element by element.* 48 threads are not whole warps of 32"
    ):
        tvmtile.compile(product(48), **SM80)
