"""T.set_max_nreg and its short names: registers move between the warpgroups of a block."""

from __future__ import annotations

import re

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import InvalidOperand

EMULATED = {"execution_backend": "emulator"}
TARGETS = {
    "hopper": {"target": {"kind": "cuda", "arch": "sm_90a"}, **EMULATED},
    "sm_80": {"target": {"kind": "cuda", "arch": "sm_80"}, **EMULATED},
    "sm_100": {"target": {"kind": "cuda", "arch": "sm_100a"}, **EMULATED},
    "metal": {"target": "metal", **EMULATED},
    "llvm": {"target": "llvm"},
}


def shared_out(form):
    """One warpgroup loads, with few registers, and the other two work on what it has loaded."""

    @T.prim_func
    def main(A: T.Tensor((256,), "float32"), C: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=384):
            tile = T.alloc_shared((256,), "float32")
            with T.ws(2):
                if form == "number":
                    T.set_max_nreg(24, 0)
                else:
                    T.dec_max_nreg(24)
                T.copy(A, tile)
            with T.ws(0, 1):
                if form == "number":
                    T.set_max_nreg(240, 1)
                else:
                    T.inc_max_nreg(240)
                for i in T.Parallel(256):
                    C[i] = tile[255 - i] + 1

    return main


@pytest.mark.full(but=1)
@pytest.mark.parametrize("form", ["number", "name"])
@pytest.mark.parametrize("target", TARGETS)
def test_registers_move_where_a_gpu_can(target, form):
    kernel = tvmtile.compile(shared_out(form), **TARGETS[target])
    a, c = torch.randn(256), torch.zeros(256)
    kernel(a, c)
    assert torch.equal(c, a.flip(0) + 1)
    body = kernel.get_kernel_source().rpartition("__global__")[2]
    moves = re.findall(
        r"setmaxnreg_(?:sync_aligned_u32_)?(dec|inc)\w*\(|setmaxnreg_(dec|inc)", body
    )
    assert len(moves) == (2 if target == "hopper" else 0)


def test_a_launch_says_how_many_registers_a_thread_begins_with():
    kernel = tvmtile.compile(shared_out("number"), **TARGETS["hopper"])
    assert "__launch_bounds__(384, 1)" in kernel.get_kernel_source()


@pytest.mark.parametrize("count", [0, 16, 25, 264, True, "24"])
def test_counts_that_there_are_not(count):
    with pytest.raises(InvalidOperand, match=r"T\.set_max_nreg: reg_count=") as caught:

        @T.prim_func
        def main(C: T.Tensor((1,), "float32")):
            with T.Kernel(1, threads=128):
                T.set_max_nreg(count, 1)

    assert caught.value.help == "give a multiple of 8 from 24 to 256"
    assert caught.value.location.text == "T.set_max_nreg(count, 1)"
