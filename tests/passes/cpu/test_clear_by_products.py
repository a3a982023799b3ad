"""ClearByProducts: which clears the first product does, and that sums begin at zero."""

import pytest
import torch

import tvmtile
import tvmtile.language as T


def product(steps, value=0, between=None):
    """C = A @ B + value, in steps of 16 along K."""

    @T.prim_func
    def main(
        A: T.Tensor((32, 64), "float32"),
        B: T.Tensor((64, 32), "float32"),
        C: T.Tensor((32, 32), "float16"),
    ):
        with T.Kernel(1):
            sums = T.alloc_fragment((32, 32), "float32")
            T.fill(sums, value)
            if between is not None:
                between(sums)
            for k in T.serial(steps):
                T.gemm(A[0:32, k * 16 : k * 16 + 16], B[k * 16 : k * 16 + 16, 0:32], sums)
            T.copy(sums, C)

    return main


def begins_with_a_product(program):
    """Tell whether nothing sets the sums before a product does."""
    lowering = dict(tvmtile.compile(program, target="llvm").lowering)
    return "fill" not in lowering["tvmtile.ClearByProducts"].script()


@T.macro
def one_more(sums):
    sums[3, 4] = sums[3, 4] + 1.0


@pytest.mark.full(but=1)
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_the_first_product_begins_the_sums(steps):
    program = product(steps)
    assert begins_with_a_product(program)
    A, B = torch.randn(32, 64), torch.randn(64, 32)
    C = torch.full((32, 32), 7.0).half()
    tvmtile.compile(program, target="llvm")(A, B, C)
    expected = A[:, : steps * 16].double() @ B[: steps * 16].double()
    torch.testing.assert_close(C.double(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.full(but=1)
@pytest.mark.parametrize(("value", "between"), [(1, None), (-0.0, None), (0, one_more)])
def test_other_sums_are_filled(value, between):
    A, B = torch.randn(32, 64), torch.randn(64, 32)
    C = torch.full((32, 32), 7.0).half()
    program = product(4, value, between)
    assert not begins_with_a_product(program)
    tvmtile.compile(program, target="llvm")(A, B, C)
    expected = A.double() @ B.double() + value
    if between is not None:
        expected[3, 4] += 1
    torch.testing.assert_close(C.double(), expected, rtol=1e-2, atol=1e-2)


def test_a_loop_that_does_not_run_leaves_zeros():
    A, B, C = torch.randn(32, 64), torch.randn(64, 32), torch.full((32, 32), 7.0).half()
    tvmtile.compile(product(0), target="llvm")(A, B, C)
    assert not C.any()


@T.macro
def copied_by_another_name(sums, O):
    flat = T.reshape(sums, (1024,))
    T.copy(flat, O)


@T.macro
def filled_by_another_name(sums, O):
    flat = T.reshape(sums, (1024,))
    T.fill(flat, 3)
    T.copy(flat, O)


@T.macro
def one_element_by_another_name(sums, O):
    flat = T.view(sums, (16, 64))
    for i, j in T.Parallel(16, 64):
        O[i * 64 + j] = flat[i, j]


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("between", "value"),
    [
        (copied_by_another_name, 0),
        (filled_by_another_name, 3),
        (one_element_by_another_name, 0),
    ],
)
@pytest.mark.parametrize("first", [True, False], ids=["view first", "clear first"])
def test_sums_that_have_another_name_are_cleared(between, value, first):
    @T.prim_func
    def main(
        A: T.Tensor((32, 64), "float32"),
        B: T.Tensor((64, 32), "float32"),
        O: T.Tensor((1024,), "float32"),
        C: T.Tensor((32, 32), "float16"),
    ):
        with T.Kernel(1):
            sums = T.alloc_shared((32, 32), "float32")
            T.fill(sums, 5)
            if first:
                flat = T.reshape(sums, (1024,))
                T.clear(sums)
                T.copy(flat, O)
            else:
                T.clear(sums)
            between(sums, O)
            for k in T.serial(4):
                T.gemm(A[0:32, k * 16 : k * 16 + 16], B[k * 16 : k * 16 + 16, 0:32], sums)
            T.copy(sums, C)

    A, B, O = torch.randn(32, 64), torch.randn(64, 32), torch.full((1024,), 7.0)
    C = torch.full((32, 32), 7.0).half()
    tvmtile.compile(main, target="llvm")(A, B, O, C)
    assert (value == O).all()
    expected = A.double() @ B.double() + value
    torch.testing.assert_close(C.double(), expected, rtol=1e-2, atol=1e-2)


def test_a_loop_may_be_left_with_cleared_sums():
    @T.prim_func
    def main(
        A: T.Tensor((32, 64), "float32"),
        B: T.Tensor((64, 32), "float32"),
        last: T.Tensor((2,), "int32"),
        C: T.Tensor((32, 32), "float32"),
    ):
        with T.Kernel(1):
            sums = T.alloc_fragment((32, 32), "float32")
            for step in T.serial(2):
                T.clear(sums)
                if last[step] > 0:
                    break
                for k in T.serial(4):
                    T.gemm(A[0:32, k * 16 : k * 16 + 16], B[k * 16 : k * 16 + 16, 0:32], sums)
            T.copy(sums, C)

    assert not begins_with_a_product(main)
    A, B, C = torch.randn(32, 64), torch.randn(64, 32), torch.full((32, 32), 7.0)
    tvmtile.compile(main, target="llvm")(A, B, torch.tensor([0, 1], dtype=torch.int32), C)
    torch.testing.assert_close(C, torch.zeros(32, 32))
