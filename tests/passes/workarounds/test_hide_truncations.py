"""HideTruncationsOnCpu: what stores integers of few bits writes them and nothing behind them."""

from __future__ import annotations

import pytest
import torch
from tvm import ir
from tvm.script import tirx as S

import tvmtile
import tvmtile.language as T
from tvmtile.passes import HideTruncationsOnCpu

BAND = 64
PATTERN = 0x7B


def written_behind(program, shape, given, stored):
    """How many bytes a program changes behind its second tensor, of ones in the first one."""
    dtype = getattr(torch, stored)
    size = shape[0] * shape[1] * dtype.itemsize
    memory = torch.full((size + BAND,), PATTERN, dtype=torch.uint8)
    result = memory[:size].view(dtype).view(shape)
    tvmtile.compile(program)(torch.ones(given[1]).to(getattr(torch, given[0])), result)
    return int((memory[size:] != PATTERN).sum()), result.float()


@pytest.mark.parametrize(
    ("source", "stored"),
    [("int8", "float8_e5m2"), ("float32", "bfloat16"), ("int64", "int8"), ("int64", "int32")],
)
def test_the_edge_of_a_tile(source, stored):
    @T.prim_func
    def main(A: T.Tensor((32, 24), source), C: T.Tensor((10, 17), stored)):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((32, 24), source)
            T.copy(A, tile)
            T.copy(tile, C[0, 0])

    behind, result = written_behind(main, (10, 17), (source, (32, 24)), stored)
    assert behind == 0
    assert torch.all(result == 1)


@pytest.mark.full(but=2)
@pytest.mark.parametrize(
    ("source", "stored"),
    [
        ("int32", "int8"),
        ("int16", "int8"),
        ("int32", "int16"),
        ("int64", "int32"),
        ("int64", "int8"),
    ],
)
def test_a_condition_that_holds_for_one_element(source, stored):
    """It is the last one of a row, for j = 23."""

    @T.prim_func
    def main(A: T.Tensor((10, 24), source), C: T.Tensor((10, 24), stored)):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((10, 24), source)
            T.copy(A, tile)
            for i, j in T.Parallel(10, 24):
                if j * 5 % 24 == 19:
                    C[i, j] = tile[i, j]

    behind, _ = written_behind(main, (10, 24), (source, (10, 24)), stored)
    assert behind == 0


@pytest.mark.parametrize("stored", ["int8", "int16", "int32"])
def test_a_loop_that_does_not_fill_its_last_vector(stored):
    """LLVM masks the last of nine iterations where they are too long to be repeated."""

    @T.prim_func
    def main(A: T.Tensor((5, 9), "int64"), C: T.Tensor((5, 9), stored)):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((5, 9), "int64")
            T.copy(A, tile)
            for i, j in T.Parallel(5, 9):
                x = tile[i, j]
                for _ in range(20):
                    x = x * x + tile[i, j]
                C[i, j] = x

    behind, _ = written_behind(main, (5, 9), ("int64", (5, 9)), stored)
    assert behind == 0


def program(mcpu, value, dtype):
    @S.prim_func
    def main(A: S.Buffer((9,), "int64"), B: S.Buffer((9,), dtype)):
        S.func_attr({"target": S.target({"kind": "llvm", "mcpu": mcpu})})
        for bx in S.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in range(9):
                B[i] = value(A, B, i)

    return ir.IRModule({"main": main})


@pytest.mark.parametrize(
    ("mcpu", "dtype", "value"),
    [
        ("haswell", "int8", lambda a, b, i: S.Cast("int8", a[i])),  # has no such instruction
        ("znver4", "int8", lambda a, b, i: b[8 - i]),
        ("znver4", "int8", lambda a, b, i: S.int8(3)),
        ("znver4", "int32", lambda a, b, i: b[i] + 1),
        ("znver4", "int64", lambda a, b, i: a[i] + S.int64(1)),
        ("znver4", "float32", lambda a, b, i: S.Cast("float32", a[i])),
    ],
)
def test_what_no_machine_truncates_is_left_alone(mcpu, dtype, value):
    before = program(mcpu, value, dtype)
    assert "tvmtile_zero" not in HideTruncationsOnCpu(before).script()
