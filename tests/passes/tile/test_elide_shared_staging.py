"""ElideSharedStaging: which tiles a CPU stages, and that a loop without copies needs no stages."""

from __future__ import annotations

import re

import pytest
import tvm
from tvm import ir

import tvmtile
import tvmtile.language as T
from tests.fuzz.run import loaded
from tests.programs import catalogue
from tvmtile.passes import LowerTilePrograms

CPU = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "znver4"}


def product_of_bytes(m=64, k=64, direct=None, aliased=False):
    @T.prim_func
    def main(
        A: T.Tensor((m, k), "int8"), B: T.Tensor((k, 64), "int8"), C: T.Tensor((m, 64), "int32")
    ):
        if aliased:
            T.func_attr({"tvmtile.may_alias": ["A", "B", "C"]})
        with T.Kernel(T.ceildiv(m, 32), 2) as (by, bx):
            A_shared, B_shared = (T.alloc_shared((32, 32), "int8") for _ in range(2))
            C_local = T.alloc_fragment((32, 32), "int32")
            T.clear(C_local)
            for step in T.Pipelined(T.ceildiv(k, 32), num_stages=2):
                T.copy(A[by * 32, step * 32], A_shared, annotations={"direct": direct})
                T.copy(B[step * 32, bx * 32], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * 32, bx * 32])

    return main


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (product_of_bytes(), set()),
        (product_of_bytes(m=60), {"A_shared"}),
        (product_of_bytes(k=60), {"A_shared", "B_shared"}),
        (product_of_bytes(direct=False), {"A_shared"}),
        (product_of_bytes(aliased=True), {"A_shared", "B_shared"}),
    ],
)
def test_a_micro_kernel_that_packs_reads_whole_tiles_in_place(program, expected):
    with tvm.target.Target(CPU) as target:
        lowered = LowerTilePrograms()(ir.IRModule({"main": program.with_attr("target", target)}))
    assert set(re.findall(r"(\w+_shared) = T.alloc_buffer", lowered.script())) == expected


def test_a_loop_without_copies_is_pipelined_without_a_warning(recwarn, tmp_path):
    program = catalogue()["gemm_whose_tiles_simdgroups_share"]
    case = program.case(extents=(32, 32, 64), threads=32, stages=2)
    tvmtile.compile(loaded(case, tmp_path).main, target="metal", execution_backend="emulator")
    assert not recwarn.list
