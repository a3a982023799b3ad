"""DoScalarsOnce: scalar statements of kernels that name no thread mean the same on every target."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T

TARGETS = [{"target": "llvm"}, {"target": "metal", "execution_backend": "emulator"}]


def after(program, options):
    values = torch.tensor([0, 1, 2, 5], dtype=torch.int32)
    tvmtile.compile(program, **options)(values)
    return values.tolist()


@pytest.mark.parametrize("options", TARGETS)
def test_a_branch_on_an_element_that_it_changes(options):
    @T.prim_func
    def main(Y: T.Tensor((4,), "int32")):
        with T.Kernel(4, threads=128) as bx:
            if Y[bx] < 3:
                Y[bx] += 1
            else:
                Y[bx] = Y[bx] - 4

    assert after(main, options) == [1, 2, 3, 1]


@pytest.mark.parametrize("options", TARGETS)
def test_loops_as_long_as_an_element_that_they_change(options):
    @T.prim_func
    def main(Y: T.Tensor((4,), "int32")):
        with T.Kernel(4, threads=128) as bx:
            while Y[bx] < 8:
                Y[bx] = Y[bx] + 3
            for j in T.serial(Y[bx] % 4, Y[bx]):
                Y[bx] += j

    def expected(y):
        while y < 8:
            y += 3
        return y + sum(range(y % 4, y))

    assert after(main, options) == [expected(y) for y in (0, 1, 2, 5)]


@pytest.mark.parametrize("options", TARGETS)
def test_names_and_variables_of_elements_that_change(options):
    @T.prim_func
    def main(Y: T.Tensor((4,), "int32")):
        with T.Kernel(4, threads=128) as bx:
            flat = T.view(Y, (2, 2))
            total = T.alloc_var("int32", 0)
            for _ in T.serial(3):
                n = flat[bx // 2, bx % 2]
                Y[bx] = n + 1
                total += Y[bx]
                if total > 8:
                    tile = T.alloc_fragment((32,), "int32")
                    T.fill(tile, total)
                    T.reduce_max(tile, Y[bx : bx + 1])
                Y[bx] = Y[bx] + n

    def expected(y):
        total = 0
        for _ in range(3):
            n, y = y, y + 1
            total += y
            y = (total if total > 8 else y) + n
        return y

    assert after(main, options) == [expected(y) for y in (0, 1, 2, 5)]


def test_one_thread_reads_on_cuda():
    @T.prim_func
    def main(Y: T.Tensor((4,), "int32")):
        with T.Kernel(4, threads=128) as bx:
            if Y[bx] < 3:
                Y[bx] += 1

    source = tvmtile.compile(main, target={"kind": "cuda", "arch": "sm_80"}).get_kernel_source()
    kernel = source[source.rindex("__global__") :]
    reading, deciding = kernel.split("__syncthreads();")
    assert "if (((int)threadIdx.x) == 0)" in reading
    assert "Y_ptr" not in deciding.partition("{")[0]
