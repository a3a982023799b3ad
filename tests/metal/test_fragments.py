"""Fragments that are used in unusual ways: every thread must still hold what it reads."""

from __future__ import annotations

import warnings

import pytest
import torch

import tvmtile.language as T
from tests.metal.programs import assert_close, emulated, random
from tvmtile.errors import TileWarning

# Extents that the threads divide, and that they don't.
EXTENTS = [(16, 64), (7, 13), (5, 100), (3, 257), (1, 1)]


def elementwise(body, shapes, out_shape, threads=64):
    """A kernel that loads tensors into fragments, computes another, and stores it.

    Parameters
    ----------
    body : macro
        Fills the last fragment from the others.
    """

    if len(shapes) == 1:

        @T.prim_func
        def main(A: T.Tensor(shapes[0], "float32"), C: T.Tensor(out_shape, "float32")):
            with T.Kernel(1, threads=threads):
                a = T.alloc_fragment(shapes[0], "float32")
                c = T.alloc_fragment(out_shape, "float32")
                T.copy(A, a)
                body(a, c)
                T.copy(c, C)

        return main

    @T.prim_func
    def main(
        A: T.Tensor(shapes[0], "float32"),
        B: T.Tensor(shapes[1], "float32"),
        C: T.Tensor(out_shape, "float32"),
    ):
        with T.Kernel(1, threads=threads):
            a = T.alloc_fragment(shapes[0], "float32")
            b = T.alloc_fragment(shapes[1], "float32")
            c = T.alloc_fragment(out_shape, "float32")
            T.copy(A, a)
            T.copy(B, b)
            body(a, b, c)
            T.copy(c, C)

    return main


def check(body, reference, shapes, out_shape, threads=64, may_stage=False):
    """Compare what `body` computes with `reference` of the same tensors.

    Parameters
    ----------
    may_stage : bool
        Whether a fragment may go through shared memory, which warns.
    """
    tensors = [random(*shape) for shape in shapes]
    c = torch.empty(out_shape)
    with warnings.catch_warnings():
        if may_stage:
            warnings.filterwarnings("ignore", ".* is kept in shared memory", TileWarning)
        kernel = emulated(elementwise(body, shapes, out_shape, threads))
    kernel(*tensors, c)
    assert_close(c, reference(*(tensor.double() for tensor in tensors)))


@pytest.mark.parametrize(("M", "N"), EXTENTS)
@pytest.mark.parametrize("threads", [32, 96, 256])
def test_extents_that_threads_do_not_divide(M, N, threads):
    @T.macro
    def body(a, c):
        for i, j in T.Parallel(M, N):
            c[i, j] = a[i, j] * 2 + 1

    check(body, lambda a: a * 2 + 1, [(M, N)], (M, N), threads)


@pytest.mark.parametrize(("M", "N"), EXTENTS)
def test_transposed_loop_variables(M, N):
    @T.macro
    def body(a, c):
        for i, j in T.Parallel(N, M):
            c[i, j] = a[j, i]

    check(body, lambda a: a.T, [(M, N)], (N, M))


@pytest.mark.parametrize(("M", "N"), [(8, 64), (3, 26)])
def test_every_element_for_two_neighbours(M, N):
    @T.macro
    def body(a, c):
        for i, j in T.Parallel(M, N):
            c[i, j] = a[i, j // 2]

    check(body, lambda a: a.repeat_interleave(2, 1), [(M, N // 2)], (M, N), may_stage=True)


@pytest.mark.parametrize(("M", "N"), [(8, 32), (3, 13)])
def test_every_second_element(M, N):
    @T.macro
    def body(a, c):
        for i, j in T.Parallel(M, N):
            c[i, j] = a[i, j * 2 + 1] - a[i, j * 2]

    check(body, lambda a: a[:, 1::2] - a[:, ::2], [(M, 2 * N)], (M, N))


@pytest.mark.parametrize(("M", "N"), [(8, 64), (6, 28)])
def test_halves_of_rows_are_exchanged(M, N):
    @T.macro
    def body(a, c):
        for i, j in T.Parallel(M, N // 2):
            c[i, j] = -a[i, j + N // 2]
            c[i, j + N // 2] = a[i, j]

    def reference(a):
        return torch.cat([-a[:, N // 2 :], a[:, : N // 2]], 1)

    check(body, reference, [(M, N)], (M, N), may_stage=True)


@pytest.mark.parametrize(("M", "N"), EXTENTS)
def test_reversed_rows(M, N):
    @T.macro
    def body(a, c):
        for i, j in T.Parallel(M, N):
            c[i, j] = a[M - 1 - i, j]

    check(body, lambda a: a.flip(0), [(M, N)], (M, N), may_stage=True)


@pytest.mark.parametrize(("M", "N"), EXTENTS)
def test_diagonals_of_a_column_vector_and_a_row_vector(M, N):
    @T.macro
    def body(rows, columns, c):
        for i, j in T.Parallel(M, N):
            c[i, j] = rows[i] * columns[j]

    check(body, torch.outer, [(M,), (N,)], (M, N))


@pytest.mark.parametrize(("M", "N"), EXTENTS)
@pytest.mark.parametrize("dims", [(1, 0), (0, 1)])
def test_vectors_from_reductions_of_different_fragments(M, N, dims):
    """One fragment is reduced along rows, the other along columns; a third needs both."""
    a_shape, b_shape = ((M, 9), (9, N)) if dims == (1, 0) else ((9, M), (N, 9))

    @T.macro
    def body(a, b, c):
        rows = T.alloc_fragment((M,), "float32")
        columns = T.alloc_fragment((N,), "float32")
        T.reduce_sum(a, rows, dim=dims[0])
        T.reduce_max(b, columns, dim=dims[1])
        for i, j in T.Parallel(M, N):
            c[i, j] = rows[i] - columns[j]

    def reference(a, b):
        return a.sum(dims[0])[:, None] - b.amax(dims[1])

    check(body, reference, [a_shape, b_shape], (M, N))


@pytest.mark.parametrize(("M", "N"), EXTENTS)
def test_a_row_vector_is_used_along_both_axes(M, N):
    @T.macro
    def body(a, c):
        sums = T.alloc_fragment((M,), "float32")
        T.reduce_sum(a, sums, dim=1)
        for i, j in T.Parallel(M, M):
            c[i, j] = sums[i] + 2 * sums[j]

    def reference(a):
        return a.sum(1)[:, None] + 2 * a.sum(1)

    check(body, reference, [(M, N)], (M, M), may_stage=True)


@pytest.mark.parametrize("dim", [0, 1])
def test_a_part_is_reduced(dim):
    @T.macro
    def body(a, c):
        part = T.alloc_fragment((16, 24), "float32")
        T.copy(a[8:24, 8:32], part)
        T.reduce_sum(part, c, dim=dim)

    check(body, lambda a: a[8:24, 8:32].sum(dim), [(32, 40)], ((24, 16)[dim],))


@pytest.mark.parametrize("dim", [0, 1])
def test_a_region_is_reduced(dim):
    @T.macro
    def body(a, c):
        T.reduce_max(a[8:24, 8:32], c, dim=dim)

    check(body, lambda a: a[8:24, 8:32].amax(dim), [(32, 40)], ((24, 16)[dim],))


@pytest.mark.parametrize(("start", "rows"), [(0, 4), (4, 8), (3, 5)])
def test_slices_are_copied_between_fragments(start, rows):
    @T.macro
    def body(a, c):
        T.fill(c, 7)
        T.copy(a[start : start + rows, 0:16], c[1 : rows + 1, 16:32])

    def reference(a):
        expected = torch.full((12, 48), 7.0, dtype=torch.float64)
        expected[1 : rows + 1, 16:32] = a[start : start + rows, :16]
        return expected

    check(body, reference, [(12, 32)], (12, 48))


@pytest.mark.parametrize("shape", [(4, 8, 16), (3, 5, 7), (2, 1, 65)])
def test_three_axes(shape):
    first, second, third = shape

    @T.macro
    def body(a, c):
        for i, j, k in T.Parallel(first, second, third):
            a[i, j, k] = a[i, j, k] + i * 100 + j * 10 + k
        sums = T.alloc_fragment((first, third), "float32")
        T.reduce_sum(a, sums, dim=1)
        for i, j, k in T.Parallel(first, second, third):
            c[k, i, j] = a[i, j, k] / second + sums[i, k]

    def reference(a):
        i, j, k = (torch.arange(extent, dtype=torch.float64) for extent in shape)
        a = a + 100 * i[:, None, None] + 10 * j[:, None] + k
        return (a / second + a.sum(1, keepdim=True)).permute(2, 0, 1)

    check(body, reference, [shape], (third, first, second))


@pytest.mark.parametrize("threads", [32, 128])
def test_a_fragment_that_all_threads_read_in_a_serial_loop(threads):
    @T.macro
    def body(a, b, c):
        T.clear(c)
        for k in T.serial(12):
            for i, j in T.Parallel(10, 30):
                c[i, j] += a[i, k] * b[k, j]

    check(body, lambda a, b: a @ b, [(10, 12), (12, 30)], (10, 30), threads, may_stage=True)


def test_a_scale_that_is_read_by_one_index():
    @T.macro
    def body(a, b, c):
        for i, j in T.Parallel(8, 32):
            c[i, j] = a[i, j] * b[0] + b[3]

    check(body, lambda a, b: a * b[0] + b[3], [(8, 32), (4,)], (8, 32))


def test_fragments_of_different_dtypes_and_layouts(compiled):
    @T.prim_func
    def main(
        A: T.Tensor((16, 64), "float16"),
        B: T.Tensor((16, 64), "int8"),
        C: T.Tensor((16, 64), "float32"),
    ):
        with T.Kernel(1, threads=64):
            a = T.alloc_fragment((16, 64), "float16")
            b = T.alloc_fragment((16, 64), "int8")
            c = T.alloc_fragment((16, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            for i, j in T.Parallel(16, 64):
                c[i, j] = T.cast(a[i, j], "float32") * T.cast(b[i, j], "float32")
            T.copy(c, C)

    a, b, c = random(16, 64, dtype="float16"), random(16, 64, dtype="int8"), torch.empty(16, 64)
    compiled(main)(a, b, c)
    assert_close(c, a.double() * b.double())


@pytest.mark.parametrize("length", [1, 31, 64, 100, 129])
def test_loops_of_dynamic_extents(compiled, length):
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), C: T.Tensor((n, 3), "float32")):
        with T.Kernel(T.ceildiv(n, 64), threads=32) as bx:
            for i, j in T.Parallel(T.min(64, n - bx * 64), 3):
                C[bx * 64 + i, j] = A[bx * 64 + i] * j

    a, c = random(length), torch.empty(length, 3)
    compiled(main)(a, c)
    assert_close(c, a.double()[:, None] * torch.arange(3.0, dtype=torch.float64))


def test_a_causal_mask_in_a_vectorised_loop(compiled):
    @T.prim_func
    def main(A: T.Tensor((70, 70), "float16"), C: T.Tensor((70, 70), "float16")):
        with T.Kernel(T.ceildiv(70, 32), T.ceildiv(70, 32), threads=64) as (bx, by):
            tile = T.alloc_shared((32, 32), "float16")
            T.copy(A[by * 32, bx * 32], tile)
            for i, j in T.Parallel(32, 32):
                visible = by * 32 + i >= bx * 32 + j
                tile[i, j] = T.if_then_else(visible, tile[i, j], T.float16(-1))
            T.copy(tile, C[by * 32, bx * 32])

    a = random(70, 70, dtype="float16")
    c = torch.empty_like(a)
    compiled(main)(a, c)
    assert torch.equal(c, torch.where(torch.ones(70, 70).tril() > 0, a, -1))


@pytest.mark.parametrize("stride", [33, 34, 36, 40])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_rows_whose_stride_is_no_multiple_of_a_vector(compiled, stride, dtype):
    @T.prim_func
    def main(
        A: T.StridedTensor((20, 32), (stride, 1), dtype),
        C: T.StridedTensor((20, 32), (stride, 1), dtype),
    ):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((20, 32), dtype)
            T.copy(A, tile)
            for i, j in T.Parallel(20, 32):
                C[i, j] = tile[i, j] + tile[19 - i, j]

    a = random(20, stride, dtype=dtype)
    c = torch.full_like(a, 5)
    compiled(main)(a[:, :32], c[:, :32])
    assert torch.equal(c[:, :32], a[:, :32] + a.flip(0)[:, :32])
    assert (c[:, 32:] == 5).all()


def test_two_kernels_of_one_name_and_different_bodies(compiled):
    def add(value):
        @T.prim_func
        def main(A: T.Tensor((40,), "float32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(40):
                    A[i] = A[i] * 2 + value

        return compiled(main)

    a = torch.zeros(40)
    one, ten = add(1), add(10)
    one(a)
    ten(a)
    one(a)
    assert (a == 25).all()
