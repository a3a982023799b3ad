"""`while` in a kernel: its condition is looked at before every iteration, whatever it takes."""

from __future__ import annotations

import torch

import tvmtile
import tvmtile.language as T


def test_condition_on_a_variable() -> None:
    @T.prim_func
    def halvings(N: T.Tensor((1,), "int32"), C: T.Tensor((1,), "int32")):
        with T.Kernel(1) as _:
            n = T.alloc_var("int32", init=N[0])
            count = T.alloc_var("int32")
            while n > 1 and count < 30:
                n = n // 2
                count += 1
            C[0] = count

    kernel = tvmtile.compile(halvings, out_idx=-1)
    for n in (1, 2, 1000, 2**20):
        assert kernel(torch.tensor([n], dtype=torch.int32)).item() == n.bit_length() - 1


def test_condition_that_takes_statements() -> None:
    @T.prim_func
    def count_down(A: T.Tensor((8,), "int32"), C: T.Tensor((1,), "int32")):
        with T.Kernel(1) as _:
            left = T.alloc_fragment((8,), "int32")
            positive = T.alloc_fragment((8,), "bool")
            rounds = T.alloc_var("int32")
            T.copy(A, left)
            for i in T.Parallel(8):
                positive[i] = left[i] > 0
            while T.any_of(positive):
                for i in T.Parallel(8):
                    left[i] = T.max(left[i] - 1, 0)
                    positive[i] = left[i] > 0
                rounds += 1
            C[0] = rounds

    kernel = tvmtile.compile(count_down, out_idx=-1)
    for values in ([3, 1, 0, 7, 2, 0, 1, 1], [0] * 8, [-5] * 7 + [1]):
        result = kernel(torch.tensor(values, dtype=torch.int32))
        assert result.item() == max(0, *values)


def test_condition_known_while_tracing() -> None:
    def kernel(flag: bool):
        @T.prim_func
        def maybe_forever(C: T.Tensor((1,), "float32")):
            with T.Kernel(1) as _:
                C[0] = 1.0
                while flag:
                    C[0] += 1.0

        return maybe_forever

    out = torch.zeros(1)
    tvmtile.compile(kernel(False))(out)
    assert out.item() == 1
