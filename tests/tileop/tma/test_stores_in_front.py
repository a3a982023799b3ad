"""Stores that begin in front of a tensor: threads do them, since an H200 takes them for illegal."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import CudaEmulationError

HOPPER = {"target": {"kind": "cuda", "arch": "sm_90a"}, "execution_backend": "emulator"}


def test_the_choice_says_why_and_what_to_do():
    @T.prim_func
    def main(O: T.Tensor((64, 64), "float32"), row: T.int32):
        with T.Kernel(1, threads=128):
            ones = T.alloc_fragment((16, 64), "float32")
            T.fill(ones, 1)
            T.atomic_add(O[row, 0], ones)

    kernel = tvmtile.compile(main, **HOPPER)
    (choice,) = [each for each in kernel.choices if each.operator == "atomic_tile"]
    reason = dict(choice.declined)["tma_add"]
    assert "may begin at a negative index, for all that is known of row; T.assume" in reason


def test_the_emulator_refuses_what_the_gpu_does():
    @T.prim_func
    def main(O: T.Tensor((64, 64), "float32"), row: T.int32):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((16, 64), "float32")
            T.fill(tile, 1)
            T.tma_copy(tile, O[row, 0])
            T.tma_store_wait()

    kernel = tvmtile.compile(main, **HOPPER)
    out = torch.zeros(64, 64)
    kernel(out, 56)
    assert torch.equal(out, (torch.arange(64) >= 56).float()[:, None].expand(64, 64))
    with pytest.raises(CudaEmulationError, match="a bulk tensor store that begins at a negative"):
        kernel(out, -1)
