"""Numbers that run-time loops and branches change: variables of the kernel."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T

TARGETS = {
    "llvm": {"target": "llvm"},
    "metal": {"target": "metal", "execution_backend": "emulator"},
}


def computed(kernel, *inputs, n=2, dtype=torch.float32, target="llvm"):
    """What a kernel writes into its last parameter."""
    out = torch.full((n,), -1, dtype=dtype)
    tvmtile.compile(kernel, **TARGETS[target])(*inputs, out)
    return out


A = torch.randn(16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("target", TARGETS)
def test_a_sum_and_a_maximum(target):
    @T.prim_func
    def kernel(A: T.Tensor((16,), "float32"), B: T.Tensor((2,), "float32")):
        with T.Kernel(1):
            total = T.Cast("float32", 0)
            largest = A[0]
            for i in T.serial(16):
                total += A[i]
                if A[i] > largest:
                    largest = A[i]
            B[0] = total
            B[1] = largest

    expected = torch.stack([A.sum(), A.max()])
    torch.testing.assert_close(computed(kernel, A, target=target), expected)


@pytest.mark.parametrize("target", TARGETS)
def test_in_every_iteration_of_a_parallel_loop(target):
    @T.prim_func
    def kernel(X: T.Tensor((16, 8), "float32"), B: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(16):
                total = 0.0
                for k in T.serial(8):
                    if k % 2 == 0:
                        total += X[i, k]
                    else:
                        total -= X[i, k]
                if total < 0:
                    total = -total
                B[i] = total

    x = torch.randn(16, 8)
    expected = (x[:, ::2].sum(1) - x[:, 1::2].sum(1)).abs()
    torch.testing.assert_close(computed(kernel, x, n=16, target=target), expected)


def test_a_while_loop_over_numbers():
    @T.prim_func
    def kernel(N: T.Tensor((1,), "int32"), B: T.Tensor((2,), "int32")):
        with T.Kernel(1):
            a, b = 0, 1
            n = 0
            while n < N[0]:
                a, b = b, a + b
                n += 1
            B[0] = a
            B[1] = n

    limit = torch.tensor([10], dtype=torch.int32)
    assert computed(kernel, limit, dtype=torch.int32).tolist() == [55, 10]


def test_a_while_loop_that_only_python_numbers_count():
    @T.prim_func
    def kernel(B: T.Tensor((2,), "int32")):
        with T.Kernel(1):
            n = 1
            while n < 1000:
                n *= 3
            B[0] = n

    assert computed(kernel, dtype=torch.int32)[0] == 2187


def test_the_last_value_of_a_loop_and_of_nested_branches():
    @T.prim_func
    def kernel(A: T.Tensor((16,), "float32"), B: T.Tensor((2,), "float32")):
        with T.Kernel(1):
            last = 0.0
            state = 0
            for i in range(16):
                last = A[i]
                if i > 3:
                    if i > 7:
                        state = 2
                    elif i > 5:
                        state = 1
            B[0] = last
            B[1] = state

    assert computed(kernel, A).tolist() == [A[15].item(), 2.0]


def test_a_branch_that_may_not_be_taken():
    @T.prim_func
    def kernel(n: T.int32, B: T.Tensor((2,), "float32")):
        with T.Kernel(1):
            found = False
            x = 1
            if n > 0:
                x = 5
                found = n > 3
            B[0] = x
            B[1] = T.if_then_else(found, 1.0, 0.0)

    assert computed(kernel, 0).tolist() == [1, 0]
    assert computed(kernel, 4).tolist() == [5, 1]


def test_a_name_for_a_while_is_no_variable():
    """What no later statement reads stays a value, which index arithmetic can see through."""

    @T.prim_func
    def kernel(A: T.Tensor((16,), "float32"), B: T.Tensor((16,), "float32")):
        with T.Kernel(1):
            place = 3
            for i in range(8):
                place = i * 2
                B[place] = A[place]
            for i in range(8):
                place = i * 2 + 1
                B[place] = A[place]

    assert "local" not in kernel.script()
    assert torch.equal(computed(kernel, A, n=16), A)


def test_a_number_that_nothing_changes_stays_a_python_number():
    @T.prim_func
    def kernel(A: T.Tensor((16,), "float32"), B: T.Tensor((4,), "float32")):
        with T.Kernel(1):
            n = 4
            for i in range(2):
                if A is B:
                    n = n + 1
                B[i] = n
            tile = T.alloc_shared((n,), "float32")
            T.fill(tile, 7)
            T.copy(tile, B)

    assert computed(kernel, A, n=4).tolist() == [7] * 4


def test_python_loops_leave_python_numbers():
    @T.prim_func
    def kernel(B: T.Tensor((2,), "float32")):
        with T.Kernel(1):
            count = 0
            for step in [1, 2, 3]:
                count += step
            assert isinstance(count, int)
            B[0] = count

    assert computed(kernel)[0] == 6


def test_in_a_macro():
    @T.macro
    def summed(X, n):
        total = 0.0
        for i in T.serial(n):
            total += X[i]
        return total

    @T.prim_func
    def kernel(A: T.Tensor((16,), "float32"), B: T.Tensor((2,), "float32")):
        with T.Kernel(1):
            first = summed(A, 4)
            B[0] = first
            B[1] = summed(A, 16)

    expected = torch.stack([A[:4].sum(), A.sum()])
    torch.testing.assert_close(computed(kernel, A), expected)


def test_a_narrower_float_takes_a_wider_one_and_an_integer():
    @T.prim_func
    def kernel(A: T.Tensor((16,), "float32"), B: T.Tensor((2,), "float32")):
        with T.Kernel(1):
            x = T.float16(0)
            for i in T.serial(16):
                x = A[i]
            B[0] = x
            for i in T.serial(3):
                x = i
            B[1] = x

    assert computed(kernel, A).tolist() == [A[15].half().item(), 2.0]


@pytest.mark.parametrize("target", TARGETS)
def test_a_number_of_a_loop_hides_a_tensor_of_its_name(target):
    @T.prim_func
    def kernel(S: T.Tensor((4,), "float32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            for k in T.serial(4):
                first = S[k]
                for i in T.Parallel(2):
                    S = first + T.cast(i, "float32")
                    B[k * 2 + i] = S

    given = torch.arange(4.0)
    expected = torch.stack([given, given + 1], 1).flatten()
    torch.testing.assert_close(computed(kernel, given, n=8, target=target), expected)
