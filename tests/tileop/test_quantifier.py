"""T.any_of and T.all_of on the CPU and on Metal."""

from __future__ import annotations

import pytest
import torch

import tvmtile.language as T
from tvmtile.tileop.quantifier import reference


@pytest.mark.parametrize("kind", ["any", "all"])
@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32"])
def test_rows(dtype, kind, compiled):
    """One answer a row: rows without, with some and with only true elements."""
    function = {"any": T.any_of, "all": T.all_of}[kind]

    @T.prim_func
    def main(A: T.Tensor((5, 37), dtype), C: T.Tensor((5, 2), "int32")):
        with T.Kernel(5, threads=64) as bx:
            tile = T.alloc_shared((37,), dtype)
            T.copy(A[bx, 0], tile)
            if function(tile):
                C[bx, 0] = 1
            C[bx, 1] = T.if_then_else(function(A[bx, 3:20]), 1, 2)

    src = torch.zeros(5, 37)
    src[1, 36] = src[2, 19] = src[3, :] = src[4, :] = 1
    src[4, 0] = 0
    out = torch.zeros(5, 2, dtype=torch.int32)
    compiled(main)(src.to(getattr(torch, dtype)), out)
    whole = [int(reference(row.numpy(), kind)) for row in src]
    part = [1 if reference(row[3:20].numpy(), kind) else 2 for row in src]
    assert out.T.tolist() == [whole, part]


def test_answer_is_that_of_its_place(compiled):
    @T.prim_func
    def main(C: T.Tensor((2,), "int32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((8,), "int32")
            T.clear(tile)
            before = T.any_of(tile)
            tile[3] = 1
            after = T.any_of(tile)
            C[0] = T.Cast("int32", before)
            C[1] = T.Cast("int32", after)

    out = torch.full((2,), 9, dtype=torch.int32)
    compiled(main)(out)
    assert out.tolist() == [0, 1]
