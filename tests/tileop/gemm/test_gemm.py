"""T.gemm: its warnings, its text, mistakes; the numbers are the catalogue's."""

from __future__ import annotations

import pytest
import torch
from tvm import ir

import tvmtile
import tvmtile.language as T
from tvmtile.errors import (
    TileWarning,
)
from tvmtile.passes import LowerTilePrograms


@pytest.mark.full(but=1)
@pytest.mark.parametrize("dtypes", [("float16", "float32"), ("bfloat16", "float16")])
def test_operands_of_different_dtypes_warn_alike_on_every_target(dtypes):
    with pytest.warns(TileWarning, match="gemm: a.* and b.* differ in dtype: .*T.copy one"):

        @T.prim_func
        def mixed(A: T.Tensor((16, 32), dtypes[0]), B: T.Tensor((32, 32), dtypes[1])):
            with T.Kernel(1, threads=128):
                a, b = T.alloc_shared((16, 32), dtypes[0]), T.alloc_shared((32, 32), dtypes[1])
                c = T.alloc_fragment((16, 32), "float32")
                T.copy(A, a)
                T.copy(B, b)
                T.gemm(a, b, c, clear_accum=True)

    for target in ({"kind": "cuda", "arch": "sm_90a"}, "metal", "llvm"):  # which say no more of it
        LowerTilePrograms(target)(ir.IRModule({"main": mixed}))


@pytest.mark.parametrize("impl", [None, "loops"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_accumulator_is_rounded_once_a_call(dtype, impl):
    """The sum of 4096 ones is 4096; taken in float16 it would stop at 2048, in bfloat16 at 256."""

    @T.prim_func
    def main(
        A: T.Tensor((1, 4096), dtype),
        B: T.Tensor((4096, 16), dtype),
        C: T.Tensor((1, 16), dtype),
    ):
        with T.Kernel(1):
            T.gemm(A, B, C, impl=impl)

    kind = getattr(torch, dtype)
    a, b, c = (
        torch.ones(1, 4096).to(kind),
        torch.ones(4096, 16).to(kind),
        torch.zeros(1, 16).to(kind),
    )
    tvmtile.compile(main)(a, b, c)
    assert c.tolist() == [[4096] * 16]


def test_program_parses_back():
    from tvm.ir import assert_structural_equal
    from tvm.script import from_source

    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32"), C: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            T.gemm(A, A, C, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
            T.gemm(A[0:4, 0:8], A, C[4:8, 0:8], clear_accum=True)

    assert_structural_equal(from_source(main.script()), main)
