"""Blocks against the limits of GPUs, on any machine."""

from __future__ import annotations

import pytest
import torch

import tvmtile.language as T
from tests.running import runnable
from tvmtile.errors import OutOfSharedMemory
from tvmtile.pipeline import check

SM80 = {"kind": "cuda", "arch": "sm_80"}
SM90 = {"kind": "cuda", "arch": "sm_90a"}
KB = 1024


def shared_bytes(count):
    @T.prim_func
    def kernel(A: T.Tensor((count,), "int8")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((count,), "int8")
            T.copy(A, tile)

    return kernel


@pytest.mark.full
def test_all_lanes_shuffle_for_some():
    """The error's advice instead of `mask=` works, and `mask=` elsewhere."""

    @T.prim_func
    def before(A: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            other = T.shfl_xor(tx * 3, 1)
            if tx < 16:
                A[tx] = other

    @T.prim_func
    def inside(A: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            if tx < 16:
                A[tx] = T.shfl_xor(tx * 3, 1, mask=0xFFFF)

    expected = [(i ^ 1) * 3 if i < 16 else 0 for i in range(32)]
    for kernel, target in ((before, "metal"), (before, SM90), (inside, "llvm"), (inside, SM90)):
        a = torch.zeros(32, dtype=torch.int32)
        runnable(kernel, target)(a)
        assert a.tolist() == expected


@pytest.mark.parametrize(
    ("target", "limit"),
    [
        ({"kind": "cuda", "arch": "sm_75"}, 64),
        (SM80, 163),
        ({"kind": "cuda", "arch": "sm_86"}, 99),
        ({"kind": "cuda", "arch": "sm_89"}, 99),
        ({"kind": "cuda", "arch": "sm_90"}, 227),
        (SM90, 227),
        ({"kind": "cuda", "arch": "sm_100a"}, 227),
        ({"kind": "cuda", "arch": "sm_120"}, 99),
        ("metal", 32),
    ],
    ids=str,
)
def test_limit_of_shared_memory(target, limit):
    check(shared_bytes(limit * KB), target)
    with pytest.raises(OutOfSharedMemory, match=f"a block of .* has {limit} KB"):
        check(shared_bytes(limit * KB + 1), target)
