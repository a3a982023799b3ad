"""What dynamic extents cost when a kernel is compiled: at most twice the work, three times the source.

Work is counted, not timed: the statements that each pass leaves, all passes together, and how long the
text is that NVRTC, Metal's compiler or LLVM gets at the end. The slow test times the same programs.
"""

from __future__ import annotations

import time

import pytest
import tvm
from tvm import tirx
from tvm.ir.instrument import pass_instrument

import tvmtile
import tvmtile.language as T
from tvmtile._tvm import walk

M, N = T.dynamic("M, N")
STATIC = (4096, 4096)
DYNAMIC = [(M, 4096), (M, N)]
ORDERS = ["plain", "swizzle", "persistent"]
TARGETS = {
    "llvm": {"target": "llvm"},
    "sm_80": {"target": {"kind": "cuda", "arch": "sm_80"}},
    "sm_90a": {"target": {"kind": "cuda", "arch": "sm_90a"}},
    "metal": {"target": "metal", "execution_backend": "emulator"},
}

STATEMENTS = (
    tirx.BufferStore,
    tirx.Evaluate,
    tirx.IfThenElse,
    tirx.For,
    tirx.Bind,
    tirx.AllocBuffer,
)


def gemm(rows, columns, order, stages):
    @T.prim_func
    def main(
        A: T.Tensor((rows, 1024), "float16"),
        B: T.Tensor((1024, columns), "float16"),
        C: T.Tensor((rows, columns), "float16"),
    ):
        grid = [T.ceildiv(rows, 128), T.ceildiv(columns, 128)]

        def tile(by, bx):
            a = T.alloc_shared((128, 32), "float16")
            b = T.alloc_shared((32, 128), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            T.clear(c)
            for k in T.Pipelined(32, num_stages=stages):
                T.copy(A[by * 128, k * 32], a)
                T.copy(B[k * 32, bx * 128], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * 128, bx * 128])

        if order == "persistent":
            with T.Kernel(132, threads=128) as pid:
                for by, bx in T.Persistent(grid, 132, pid):
                    tile(by, bx)
        else:
            with T.Kernel(grid[1], grid[0], threads=128) as (bx, by):
                T.use_swizzle(8, enable=order == "swizzle")
                tile(by, bx)

    return main


def compiled(shape, order, target):
    stages = 2 if target == "metal" else 3  # as many as a block has room for
    return tvmtile.compile(gemm(*shape, order, stages), **TARGETS[target])


@pass_instrument
class _Statements:
    """The statements of a program after each pass, all together."""

    def __init__(self):
        self.total = 0

    def run_after_pass(self, mod, info):
        del info
        for func in mod.functions.values():
            walk(func.body, (STATEMENTS, self._count))

    def _count(self, _):
        self.total += 1


def cost(shape, order, target):
    """The work of all passes, and how long the source is that comes of them."""
    counted = _Statements()
    with tvm.transform.PassContext(instruments=[counted]):
        kernel = compiled(shape, order, target)
    return counted.total, len(kernel.get_kernel_source())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("target", TARGETS)
def test_a_dynamic_kernel_costs_at_most_twice_as_much(target, order):
    work, source = cost(STATIC, order, target)
    for shape in DYNAMIC:
        its_work, its_source = cost(shape, order, target)
        assert its_work <= 2 * work, shape
        assert its_source <= 2 * source, shape


def seconds(shape, order, target):
    """Processor time from the program to machine code, or to source for Metal."""
    start = time.process_time()
    kernel = compiled(shape, order, target)
    if target.startswith("sm_"):
        _ = kernel.cubin
    return time.process_time() - start


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("target", TARGETS)
def test_a_dynamic_kernel_takes_at_most_twice_as_long(target, order, monkeypatch):
    monkeypatch.setenv("TVMTILE_DISABLE_CACHE", "1")
    tries = [[seconds(s, order, target) for s in (STATIC, *DYNAMIC)] for _ in range(4)]
    static, *dynamic = map(min, zip(*tries, strict=True))
    assert max(dynamic) <= 2 * static
