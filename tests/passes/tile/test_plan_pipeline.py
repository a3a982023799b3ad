"""PlanPipeline: where its warnings point, and how many stages there are."""

from __future__ import annotations

import linecache
from contextlib import nullcontext

import pytest
import torch
from tvm import ir

import tvmtile
import tvmtile.language as T
from tvmtile import errors
from tvmtile.errors import TileWarning
from tvmtile.passes import Legalize, LowerExits, PlanPipeline

SM80 = {"kind": "cuda", "arch": "sm_80"}


@pytest.fixture(autouse=True)
def _show_every_warning(monkeypatch):
    monkeypatch.setattr(errors, "_SHOWN_WARNINGS", {})


def scaled(order, stage):
    @T.prim_func
    def program(A: T.Tensor((6, 32), "float32"), C: T.Tensor((6, 32), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            for k in T.Pipelined(6, order=order, stage=stage):
                factor = k + 1
                T.copy(A[k, :], tile)
                for i in T.Parallel(32):
                    C[k, i] = tile[i] * factor

    return LowerExits(Legalize(ir.IRModule({"main": program})))


def test_the_warning_points_at_the_loop():
    with pytest.warns(TileWarning, match="the loop over k is not pipelined") as caught:
        PlanPipeline(scaled([0, 1], [1, 0]))
    assert caught[0].filename == __file__
    assert "T.copy(A[k, :], tile)" in linecache.getline(__file__, caught[0].lineno)


def moved(elements, **loop):
    @T.prim_func
    def main(A: T.Tensor((32 * elements,), "float32"), C: T.Tensor((32 * elements,), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((elements,), "float32")
            for k in T.Pipelined(32, **loop):
                T.copy(A[k * elements], tile)
                T.copy(tile, C[k * elements])

    return main


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        (4096, "has 2 stages in place of 4: a block of Metal has no room"),
        (8192, "has 1 stage in place of 4"),
    ],
)
def test_stages_are_as_many_as_a_block_has_memory_for(elements, message):
    program = moved(elements, num_stages=4)
    with pytest.warns(TileWarning, match=message):
        kernel = tvmtile.compile(program, target="metal", execution_backend="emulator")
    assert "threadgroup float4 tile[2048]" in kernel.get_kernel_source()


@pytest.mark.parametrize("loop", [{"num_stages": 256}, {"stage": [0, 12], "order": [0, 1]}])
def test_stages_are_as_many_as_copies_can_be_waited_for(loop):
    said = "has 9 stages in place of 256: a block of CUDA sm_80 can't wait for more copies"
    with pytest.warns(TileWarning, match=said) if "num_stages" in loop else nullcontext():
        kernel = tvmtile.compile(moved(32, **loop), target=SM80, execution_backend="emulator")
    assert "wait_group_7();" in kernel.get_kernel_source()
    A, C = torch.randn(32 * 32), torch.empty(32 * 32)
    kernel(A, C)
    assert torch.equal(A, C)
