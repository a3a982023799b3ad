"""Programs for Metal that the catalogue can't hold: functions by name, kernels of one name."""

from __future__ import annotations

import torch

import tvmtile
import tvmtile.language as T


def test_functions_of_metal_by_name(compiled):
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                C[i] = T.call_extern("float32", "fma", A[i], 2.0, 1.0)

    a, c = torch.randn(64), torch.zeros(64)
    compiled(main)(a, c)
    torch.testing.assert_close(c, 2 * a + 1)


def test_a_view_of_vectors_has_an_element_for_each_lane():
    @T.prim_func
    def main(A: T.Tensor((8,), "float16"), C: T.Tensor((8,), "float16")):
        with T.Kernel(1, threads=32):
            pairs = T.alloc_local((4,), "float16x2")
            single = T.view(pairs, (8,), "float16")
            for i in T.serial(8):
                single[i] = A[i] * 2
            for i in T.serial(8):
                C[i] = single[i]

    a, c = torch.randn(8).half(), torch.empty(8).half()
    tvmtile.compile(main)(a, c)
    assert torch.equal(c, a * 2)


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
