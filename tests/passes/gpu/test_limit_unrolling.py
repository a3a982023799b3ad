"""LimitUnrolling: how much of a kernel's source its unrolled loops are."""

import pytest
import tvm

import tvmtile.language as T
from tvmtile.ir.kernels import written_out
from tvmtile.passes import LimitUnrolling
from tvmtile.pipeline import lowering_passes
from tvmtile.target import parse


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


def test_loops_over_more_elements_than_registers_are_not_written_out():
    before, after = (written_out(mod["main"].body) for mod in limited(scaling(32, 256, threads=1)))
    assert before > 3 * 32 * 256
    assert after < 3 * 1024


@pytest.mark.parametrize(
    ("rows", "columns", "threads"), [(128, 128, 128), (128, 256, 128), (64, 512, 128), (8, 64, 1)]
)
def test_loops_over_registers_are_written_out(rows, columns, threads):
    before, after = limited(scaling(rows, columns, threads))
    tvm.ir.assert_structural_equal(before, after)


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


@pytest.mark.parametrize(("threads", "most"), [(1, 100), (32, 1024)])
def test_a_thread_with_whole_tiles_has_loops(threads, most):
    """Its source would be as long as its tiles are large, each time that one is used."""
    _, after = limited(moving(threads))
    assert written_out(after["main"].body) <= most
