"""LimitUnrolling: how much of a kernel's source its unrolled loops are."""

from __future__ import annotations

import pytest
import tvm

import tvmtile.language as T
from tvmtile.passes.unrolling import LimitUnrolling, written_out
from tvmtile.pipeline import lowering_passes
from tvmtile.target import parse

pytestmark = pytest.mark.filterwarnings("ignore:.* registers of each thread")


def limited(program):
    """A tile program before LimitUnrolling, and after it."""
    mod = tvm.ir.IRModule({"main": program.with_attr("global_symbol", "main")})
    for step in lowering_passes(parse({"kind": "cuda", "arch": "sm_80"})):
        before, mod = mod, step(mod)
        if step.info.name == LimitUnrolling.info.name:
            return before, mod
    raise AssertionError("LimitUnrolling is not a pass for CUDA")


def scaling(rows, columns, threads):
    """A tile is scaled by its rows' sums."""

    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), C: T.Tensor((rows, columns), "float32")):
        with T.Kernel(1, threads=threads):
            x = T.alloc_fragment((rows, columns), "float32")
            total = T.alloc_fragment((rows,), "float32")
            T.copy(A, x)
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(rows, columns):
                x[i, j] = x[i, j] / total[i]
            T.copy(x, C)

    return main


def moving(threads):
    """A tile is copied to and from shared memory: no register is named by its number."""

    @T.prim_func
    def main(A: T.Tensor((16, 30), "float32"), C: T.Tensor((16, 30), "int8")):
        with T.Kernel(1, threads=threads):
            s = T.alloc_shared((16, 8), "float32")
            for k in T.serial(4):
                T.copy(A[0, k * 8], s)
                T.copy(s, C[0, k * 8])

    return main


@pytest.mark.parametrize(
    ("program", "least", "most"),
    [
        (scaling(32, 256, threads=1), 3 * 32 * 256, 3 * 1024),  # more elements than registers
        (moving(1), 0, 100),  # a thread with whole tiles
        (moving(32), 0, 1024),
    ],
)
def test_a_long_source_has_loops(program, least, most):
    before, after = (written_out(mod["main"].body) for mod in limited(program))
    assert before > least
    assert after <= most


@pytest.mark.parametrize("shape", [(128, 128, 128), (128, 256, 128), (64, 512, 128), (8, 64, 1)])
def test_loops_over_registers_are_written_out(shape):
    before, after = limited(scaling(*shape))
    tvm.ir.assert_structural_equal(before, after)
