"""GuardLaunches: what has no blocks is not launched."""

from __future__ import annotations

import pytest
import tvm
from tvm import ir
from tvm.script import tirx as S

import tvmtile
import tvmtile.language as T
from tvmtile.passes.gpu.guard_launches import GuardLaunches

CUDA = {"kind": "cuda", "arch": "sm_80"}


def after(func):
    return GuardLaunches(ir.IRModule({"main": func}))["main"]


def test_an_extent_that_a_call_gives():
    @S.prim_func(private=True)
    def before(n: S.int32, m: S.int32):
        bx = S.launch_thread("blockIdx.x", n)
        by = S.launch_thread("blockIdx.y", m)
        tx = S.launch_thread("threadIdx.x", 32)
        S.evaluate(bx + by + tx)

    @S.prim_func(private=True)
    def expected(n: S.int32, m: S.int32):
        if n > 0 and m > 0:
            bx = S.launch_thread("blockIdx.x", n)
            by = S.launch_thread("blockIdx.y", m)
            tx = S.launch_thread("threadIdx.x", 32)
            S.evaluate(bx + by + tx)

    tvm.ir.assert_structural_equal(after(before), expected)


def test_known_extents_stay():
    @S.prim_func(private=True)
    def before():
        bx = S.launch_thread("blockIdx.x", 4)
        tx = S.launch_thread("threadIdx.x", 32)
        S.evaluate(bx + tx)

    tvm.ir.assert_structural_equal(after(before), before)


@pytest.mark.parametrize("extents", [lambda n: (n,), lambda n: (4, n), lambda n: (n, n)])
def test_the_host_asks_before_it_launches(extents):
    n = T.dynamic("n")

    @T.prim_func
    def main(N: T.Tensor((n,), "float32"), A: T.Tensor((4,), "float32")):
        with T.Kernel(*extents(n), threads=32):
            A[0] = 1

    seen = []

    @tvm.instrument.pass_instrument
    class Watch:
        def run_after_pass(self, mod, info):
            if info.name == "tvmtile.GuardLaunches":
                seen.append(mod.script())

    with tvm.transform.PassContext(instruments=[Watch()]):
        tvmtile.compile(main, target=CUDA)
    (script,) = seen
    assert script.index("if n > 0") < script.index("launch_thread")
