"""Dynamic extents that stand in expressions only."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T


def count_to(shape_of, dtype="int32"):
    n = T.dynamic("n", dtype)

    @T.prim_func
    def count(A: T.Tensor((shape_of(n),), "int64")):
        with T.Kernel(1):
            for i in range(shape_of(n)):
                A[i] = n

    return tvmtile.compile(count)


def test_a_linear_extent_tells_a_variable_of_64_bits():
    kernel, a = count_to(lambda n: 3 * n - 2, "int64"), torch.zeros(13, dtype=torch.int64)
    kernel(a)
    assert a.eq(5).all()


def test_an_extent_that_fits_no_whole_number():
    with pytest.raises(ValueError, match=r"axis 0 of A must be n \* 4"):
        count_to(lambda n: n * 4)(torch.zeros(6, dtype=torch.int64))


def test_slices_that_begin_anywhere():
    n = T.dynamic("n")

    @T.prim_func
    def copy(A: T.Tensor((n * 2,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 16)) as block:
            for i in T.Parallel(16):
                B[block * 16 + i] = A[2 * (block * 16 + i)]

    @T.prim_func
    def halve(A: T.Tensor((n * 2,), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(n * 2):
                A[i] = A[i] / 2

    a = torch.randn(41)
    result = torch.empty(20)
    tvmtile.compile(copy)(a[1:], result)
    torch.testing.assert_close(result, a[1::2])
    expected = a[1:] / 2
    tvmtile.compile(halve)(a[1:])
    torch.testing.assert_close(a[1:], expected)


def test_a_result_of_an_extent_in_an_expression():
    n = T.dynamic("n")

    @T.prim_func
    def double(A: T.Tensor((n * 2,), "int32"), B: T.Tensor((n * 4,), "int32")):
        with T.Kernel(1):
            for i in range(n * 4):
                B[i] = A[i // 2]

    a = torch.arange(6, dtype=torch.int32)
    result = tvmtile.compile(double, out_idx=-1)(a)
    torch.testing.assert_close(result, a.repeat_interleave(2))


def test_one_variable_tells_the_next():
    m, n = T.dynamic("m, n")

    @T.prim_func
    def fill(A: T.Tensor((m + n, 3), "int32"), B: T.Tensor((n * 2, 3), "int32")):
        with T.Kernel(m) as i:
            for j in T.Parallel(3):
                A[n + i, j] = m

    a, b = torch.zeros(7, 3, dtype=torch.int32), torch.zeros(8, 3, dtype=torch.int32)
    tvmtile.compile(fill)(a, b)
    assert a[:4].eq(0).all()
    assert a[4:].eq(3).all()


@pytest.mark.parametrize("extents", [("n", 4), (4, "N"), ("n", "N"), ("N", "n"), (4, 4)])
@pytest.mark.parametrize("strides", [(8, 1), ("s", 1), ("S", 1), ("s", "S"), (8, "S")])
def test_extents_and_strides_of_any_width(extents, strides):
    """Of 32 and of 64 bits, constants among them: TVM reads each in the dtype of others."""
    names = {name: T.dynamic(name, "int64" if name.isupper() else "int32") for name in "nNsS"}
    shape, steps = ([names.get(item, item) for item in items] for items in (extents, strides))

    @T.prim_func
    def read(A: T.StridedTensor(shape, steps, "int32"), B: T.Tensor((4, 4), "int32")):
        with T.Kernel(1):
            for i, j in T.Parallel(4, 4):
                B[i, j] = A[i, j]

    a, b = torch.arange(64, dtype=torch.int32).view(8, 8)[:4, :4], torch.zeros(4, 4).int()
    kernel = tvmtile.compile(read)
    kernel(a, b)
    assert torch.equal(a, b)
