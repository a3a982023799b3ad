"""KeepRemainders: elements whose indices divide one variable with different offsets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm
from tvm import ir
from tvm.script import tirx as S

import tvmtile
import tvmtile.language as T
from tvmtile.passes import KeepRemainders


@pytest.mark.parametrize("target", ["llvm", "metal", "cuda"])
def test_remainders_of_a_variable_and_of_one_beside_it(target):
    @T.prim_func
    def program(A: T.Tensor((16, 16), "int32"), B: T.Tensor((4, 64), "int32"), n: T.int32):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((16, 16), "int32")
            T.copy(A, tile)
            for i in T.Parallel(64):
                B[0, i] = tile[i % 16, (i + 2) % 16]
                B[1, i] = tile[i // 4, (i + 2) // 8]
                B[2, i] = tile[(i % 4 + 1) % 4, i % 4]
                B[3, i] = A[i % 16, (i + n) % 16]

    if target == "cuda":
        source = tvmtile.compile(program, target={"kind": "cuda", "arch": "sm_80"})
        assert "& 15) * 17" not in source.get_kernel_source()
        return
    backend = {"execution_backend": "emulator"} if target == "metal" else {}
    kernel = tvmtile.compile(program, target=target, **backend)
    a, i = np.arange(256, dtype="int32").reshape(16, 16), np.arange(64)
    b = torch.zeros((4, 64), dtype=torch.int32)
    kernel(torch.from_numpy(a), b, 5)
    rows, columns = [i % 16, i // 4, (i % 4 + 1) % 4, i % 16], [(i + 2) % 16, (i + 2) // 8, i % 4]
    columns.append((i + 5) % 16)
    np.testing.assert_array_equal(b.numpy(), a[rows, columns])


def test_indices_with_one_offset_are_left_alone():
    @S.prim_func
    def program(A: S.Buffer((16, 16), "float32"), B: S.Buffer((64,), "float32")):
        for bx in S.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in range(64):
                B[i] = A[(i + 2) // 16, (i + 2) % 16]
                B[i] = A[i // 16, i % 16 // 4]
                B[i] = A[(i + 32) % 16, i // 8]
                B[i] = A[(bx + 2) % 16, i % 16]

    module = ir.IRModule({"main": program})
    tvm.ir.assert_structural_equal(KeepRemainders(module), module)
