"""KeepTruncations: conversions of indices to narrow integers wrap."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T

TARGETS = ["llvm", "metal", {"kind": "cuda", "arch": "sm_80"}]


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_indices_wrap_whether_known_or_not(target):
    @T.prim_func
    def program(A: T.Tensor((3, 128), "int32"), B: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((512,), "float32")
            tx = T.get_thread_binding()
            for i in T.serial(4):
                tile[tx * 4 + i] = tx * 4 + i
            for i in T.unroll(2):
                A[i, tx] = T.int32(T.uint8(i * 400)) - T.int32(T.int8(i * 400))
            A[2, tx] = T.int32(T.int8(tx * 3))
            B[tx] = tile[T.int32(T.uint8(tx * 4))]

    backend = {} if target == "llvm" else {"execution_backend": "emulator"}
    A, B, tx = torch.empty(3, 128, dtype=torch.int32), torch.empty(128), torch.arange(128)
    tvmtile.compile(program, target=target, **backend)(A, B)
    assert torch.equal(B, (tx * 4 % 256).float())
    assert torch.equal(A[2], (tx * 3).to(torch.int8).int())
    assert A[0].eq(0).all()
    assert A[1].eq(400 % 256 - (400 % 256 - 256)).all()
