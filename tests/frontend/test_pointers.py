"""`T.ptr` and `T.make_tensor`."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
import tvm

import tvmtile
import tvmtile.language as T


@T.prim_func
def increment(pointer: T.ptr, rows: T.int32):
    A = T.make_tensor(pointer, (rows, 3), T.float32)
    with T.Kernel(T.ceildiv(rows, 4)) as block:
        for i, j in T.Parallel(4, 3):
            A[block * 4 + i, j] += 1.0


def test_a_tensor_is_passed_by_its_address():
    kernel = tvmtile.compile(increment)
    a = torch.zeros(7, 3)
    kernel(a[:6], 6)  # the kernel is told of six rows: the last tile must not write the seventh
    assert a[:6].eq(1).all()
    assert a[6].eq(0).all()


def test_numpy_arrays_and_plain_addresses():
    kernel = tvmtile.compile(increment)
    a = np.zeros((5, 3), np.float32)
    kernel(a, 5)
    kernel(a.ctypes.data, 5)
    kernel(ctypes.c_void_p(a.ctypes.data), 5)
    np.testing.assert_array_equal(a, 3)


def test_a_table_of_addresses():
    @T.prim_func
    def gather(table: T.Tensor((3,), T.ptr), sizes: T.Tensor((3,), "int32"), out: T.Tensor((3,))):
        with T.Kernel(3) as group:
            values = T.make_tensor(table[group], (sizes[group],), T.float16)
            total = T.alloc_var("float32")
            for i in range(8):
                total += values[i]  # zero beyond the end
            out[group] = total

    tensors = [torch.randn(n).half() for n in (2, 5, 8)]
    table = torch.tensor([t.data_ptr() for t in tensors])
    out = torch.empty(3)
    tvmtile.compile(gather)(table, torch.tensor([2, 5, 8], dtype=torch.int32), out)
    torch.testing.assert_close(out, torch.stack([t.float().sum() for t in tensors]))


def test_strides():
    @T.prim_func
    def fill(pointer: T.ptr, stride: T.int32):
        A = T.make_tensor(pointer, (4, 2), T.int32, strides=(stride, 1))
        with T.Kernel(1):
            for i, j in T.grid(4, 2):
                A[i, j] = i

    a = torch.full((4, 5), -1, dtype=torch.int32)
    tvmtile.compile(fill)(a, 5)
    assert a[:, :2].tolist() == [[i, i] for i in range(4)]
    assert a[:, 2:].eq(-1).all()


def test_an_eager_kernel_with_a_pointer():
    @tvmtile.jit
    def scale(A: T.ptr, n: int, dtype):
        tensor = T.make_tensor(A, (n,), dtype)
        with T.Kernel(1):
            for i in T.Parallel(n):
                tensor[i] = tensor[i] * 2

    a = torch.arange(6)
    scale(a, 6, T.int64)
    assert a.tolist() == [0, 2, 4, 6, 8, 10]


def test_a_printed_program_reads_back():
    again = tvm.script.from_source(increment.script())
    tvm.ir.assert_structural_equal(again, increment)


def test_a_kernel_without_tensors_has_large_tiles():
    @T.prim_func
    def reverse(source: T.ptr, target: T.ptr):
        A = T.make_tensor(source, (64, 64), "float32")
        B = T.make_tensor(target, (64, 64), "float32")
        with T.Kernel(1):
            tile = T.alloc_shared((64, 64), "float32")
            T.copy(A, tile)
            for i, j in T.Parallel(64, 64):
                B[i, j] = tile[63 - i, j]

    a, b = torch.randn(64, 64), torch.zeros(64, 64)
    tvmtile.compile(reverse)(a, b)
    assert torch.equal(b, a.flip(0))
