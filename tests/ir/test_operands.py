"""Operands of tile operators."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.children import WITHOUT_TORCH


def test_bounds_of_a_region_may_be_names():
    @T.prim_func
    def main(
        A: T.Tensor((100, 8), "float32"),
        starts: T.Tensor((4,), "int32"),
        B: T.Tensor((4, 32, 8), "float32"),
        C: T.Tensor((4, 32, 8), "float32"),
    ):
        with T.Kernel(4) as bx:
            tile = T.alloc_shared((32, 8), "float32")
            begin = bx * 32
            end = (bx + 1) * 32
            T.copy(A[begin:end, :], tile)
            T.copy(tile, B[bx, :, :])
            first = starts[bx]
            last = first + 32
            T.copy(A[first:last, :], tile)
            T.copy(tile, C[bx, :, :])

    a, starts = torch.randn(100, 8), torch.tensor([5, 90, 0, 68], dtype=torch.int32)
    b, c = torch.empty(4, 32, 8), torch.empty(4, 32, 8)
    tvmtile.compile(main)(a, starts, b, c)
    padded = torch.cat([a, torch.zeros(32, 8)])
    assert torch.equal(b, padded[:128].reshape(4, 32, 8))
    assert torch.equal(c, torch.stack([padded[s : s + 32] for s in starts.tolist()]))


SEVERAL_THREADS = """
from concurrent.futures import ThreadPoolExecutor
from tvm import tirx
from tvmtile.ir.operands import constant

n = tirx.Var("n", "int32")
five = tirx.const(5, "int32")
value = tirx.Select(tirx.all(n >= 2, n < 8), tirx.Select(n < 9, five, n), five)
with ThreadPoolExecutor(8) as workers:
    print(set(workers.map(lambda _: constant(value), range(20000))))
"""


@pytest.mark.full
def test_several_threads_simplify_at_the_same_time():
    # In a process of its own: TVM aborts where threads share an analyzer.
    command = [sys.executable, "-c", WITHOUT_TORCH + SEVERAL_THREADS]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (0, "{5}\n"), run.stderr
