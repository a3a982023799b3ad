"""KeepTruncations: conversions of integers wrap, and TVM knows it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import tvm

import tvmtile.language as T
from tests.metal.programs import runnable
from tvmtile.passes import KeepTruncations

DTYPES = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
TARGETS = ["llvm", "metal", {"kind": "cuda", "arch": "sm_80"}]


@pytest.mark.full(but=2)
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

    A, B, tx = torch.empty(3, 128, dtype=torch.int32), torch.empty(128), torch.arange(128)
    runnable(program, target)(A, B)
    assert torch.equal(B, (tx * 4 % 256).float())
    assert torch.equal(A[2], (tx * 3).to(torch.int8).int())
    assert A[0].eq(0).all()
    assert A[1].eq(400 % 256 - (400 % 256 - 256)).all()


PAIRS = [
    (source, target)
    for source in DTYPES
    for target in DTYPES
    if not np.can_cast(source, target, "safe")
]


@pytest.mark.full
@pytest.mark.parametrize(("source", "target"), PAIRS, ids="-".join)
def test_values_that_wrap_are_compared_divided_and_widened(source, target):
    """What is read from memory, and what an index makes: everywhere the same as numpy's."""
    half = np.iinfo(target).max // 2 if target.startswith("u") else 0

    @T.prim_func
    def program(
        A: T.Tensor((64,), source), B: T.Tensor((4, 64), "int32"), C: T.Tensor((4, 64), "int64")
    ):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                wrapped = T.cast(A[i], target)
                index = T.cast(T.cast(i * 7 - 200, source), target)
                B[0, i] = T.if_then_else(T.cast(A[i], target) < T.cast(half, target), 1, 0)
                if index < T.cast(half, target):
                    B[1, i] = 1
                B[2, i] = T.cast(T.cast(A[i], target) // T.cast(3, target), "int32")
                B[3, i] = T.cast(T.max(wrapped, T.cast(half, target)), "int32")
                C[0, i] = T.cast(T.cast(A[i], target), "int64")
                C[1, i] = T.cast(wrapped, "int64") - T.cast(T.cast(A[63 - i], target), "int64")
                C[2, i] = T.cast(T.cast(A[i], target) >> T.cast(3, target), "int64")
                C[3, i] = T.cast(index, "int64")

    random = np.random.default_rng(len(source) * 8 + len(target))
    a = random.integers(0, 256, (64, 8), dtype=np.uint8).view(source)[:, 0].copy()
    y = a.astype(target)
    index = (np.arange(64, dtype=np.int32) * 7 - 200).astype(source).astype(target)
    one = np.array(1, target)
    narrow = [y < half, index < half, y // (3 * one), np.maximum(y, half * one)]
    wide = [y, y.astype("int64") - y[::-1].astype("int64"), y >> (3 * one), index]
    for name in TARGETS:
        b, c = torch.zeros(4, 64, dtype=torch.int32), torch.zeros(4, 64, dtype=torch.int64)
        runnable(program, name)(torch.from_numpy(a), b, c)
        np.testing.assert_array_equal(b, [each.astype("int32") for each in narrow], str(name))
        np.testing.assert_array_equal(c, [each.astype("int64") for each in wide], str(name))


def test_conversions_that_keep_their_value_stay():
    """What fits by its range, and what has all values that there are."""

    @T.prim_func
    def program(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "uint32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                B[i] = T.cast(i, "uint32") + T.cast(A[i] & 255, "uint32")
                B[i] += T.cast(T.cast(A[i], "uint8"), "uint32")

    before = program.with_attr("target", tvm.target.Target("metal"))
    after = KeepTruncations(tvm.IRModule({"main": before}))["main"]
    tvm.ir.assert_structural_equal(after, before)
