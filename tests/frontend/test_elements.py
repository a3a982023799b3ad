"""Elements and slices of buffers in a kernel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.metal.programs import runnable


def run(kernel, *tensors):
    tvmtile.compile(kernel)(*tensors)


def test_a_slice_of_the_last_axis_is_a_vector():
    @T.prim_func
    def kernel(A: T.Tensor((8, 4), "float32"), B: T.Tensor((8,), "float16")):
        with T.Kernel(1):
            B[0:4] = A[0, 0:4]
            B[4:8] = A[7, :]

    a, b = torch.randn(8, 4), torch.zeros(8).half()
    run(kernel, a, b)
    torch.testing.assert_close(b, torch.cat([a[0], a[7]]).half())


def test_negative_indices_count_from_the_end():
    n = T.dynamic("n")

    @T.prim_func
    def kernel(A: T.Tensor((n,), "int32"), B: T.Tensor((3,), "int32")):
        with T.Kernel(1):
            B[-1] = A[-2]
            B[-3] = A[-1]

    b = torch.zeros(3, dtype=torch.int32)
    run(kernel, torch.arange(7, dtype=torch.int32), b)
    assert b.tolist() == [6, 0, 5]


def test_several_targets_and_swaps():
    @T.prim_func
    def kernel(A: T.Tensor((4,), "int32")):
        with T.Kernel(1):
            A[0], A[1] = A[1], A[0]
            A[2] = A[3] = A[0] + A[1]

    a = torch.tensor([3, 4, 0, 0], dtype=torch.int32)
    run(kernel, a)
    assert a.tolist() == [4, 3, 7, 7]


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("+", 13),
        ("-", 7),
        ("*", 30),
        ("//", 3),
        ("%", 1),
        ("<<", 80),
        (">>", 1),
        ("&", 2),
        ("|", 11),
        ("^", 9),
    ],
)
def test_augmented_elements(operator, expected, tmp_path):
    source = f"""
import tvmtile.language as T

@T.prim_func
def kernel(A: T.Tensor((1,), "int32")):
    with T.Kernel(1):
        A[0] {operator}= 3
"""
    path = tmp_path / "kernel.py"
    path.write_text(source)
    names = {}
    exec(compile(source, str(path), "exec"), names)
    a = torch.tensor([10], dtype=torch.int32)
    run(names["kernel"], a)
    assert a.item() == expected


@pytest.mark.parametrize("target", ["llvm", "metal"])
@pytest.mark.parametrize("dtype", ["uint32", "uint64"])
def test_unsigned_integers_wrap(dtype, target):
    @T.prim_func
    def main(A: T.Tensor((64,), dtype), B: T.Tensor((64,), dtype), C: T.Tensor((3, 64), dtype)):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                C[0, i] = T.max(A[i] + B[i], B[i])
                C[1, i] = T.min(A[i] - B[i], A[i])
                C[2, i] = T.max(A[i] * B[i], B[i]) >> T.cast(1, dtype)

    a, b = np.random.default_rng(0).integers(0, 2 ** int(dtype[4:]), (2, 64), dtype=dtype)
    c = np.empty((3, 64), dtype)
    runnable(main, target)(a, b, c)
    expected = [np.maximum(a + b, b), np.minimum(a - b, a), np.maximum(a * b, b) >> 1]
    np.testing.assert_array_equal(c, np.stack(expected).astype(dtype))
