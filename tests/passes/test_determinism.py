"""A program is compiled to the same code in every process, whatever strings and addresses hash to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tvmtile
import tvmtile.language as T
from tests.metal.programs import flash_attention

ROOT = Path(__file__).resolve().parents[2]
ADDRESSES = re.compile(r'(?<=!\{!")0x[0-9a-f]+(?=")')
"""TVM names the nodes of LLVM's alias analysis by the addresses of its variables."""
TARGETS = (
    {"target": "llvm"},
    {"target": "metal", "execution_backend": "emulator"},
    {"target": {"kind": "cuda", "arch": "sm_90a"}},
)


def with_names_and_totals():
    @T.prim_func
    def program(
        A: T.Tensor((128, 64), "float16"),
        starts: T.Tensor((4,), "int32"),
        C: T.Tensor((4, 64), "float32"),
        D: T.Tensor((4, 64), "float32"),
    ):
        with T.Kernel(4, threads=64) as bx:
            x = T.alloc_shared((16, 64), "float16")
            y = T.alloc_shared((16, 64), "float16")
            largest = T.alloc_reducer((64,), "float32", "max")
            total = T.alloc_fragment((64,), "float32")
            first = T.alloc_var("int32")
            first = starts[bx]
            T.reducer_init(largest)
            T.clear(total)
            for k in T.Pipelined(4, num_stages=2):
                row = (first + k) * 16
                T.copy(A[row, 0], x)
                T.copy(A[k * 16, 0], y)
                for i, j in T.Parallel(16, 64):
                    T.reducer_update(largest[j], x[i, j] - y[i, j])
                for i, j in T.Parallel(16, 64):
                    total[j] += T.cast(x[i, j] * y[i, j], "float32")
            T.finalize_reducer(largest)
            T.copy(largest, C[bx, :])
            T.copy(total, D[bx, :])

    return program


def print_sources():
    programs = (
        flash_attention(
            1,
            1,
            64,
            32,
            True,
            block_M=32,
            block_N=32,
            threads=64,
            stages=2,
            policy=T.GemmWarpPolicy.FullRow,
            dtype="float16",
        ),
        with_names_and_totals(),
    )
    for program in programs:
        for options in TARGETS:
            print(tvmtile.compile(program, **options).get_kernel_source())


def sources(seed):
    command = [sys.executable, "-W", "ignore", "-m", "tests.passes.test_determinism"]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(paths)}
    ran = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ADDRESSES.sub("", ran.stdout)


@pytest.mark.full
def test_the_same_code_in_every_process():
    first, second = sources(1), sources(2)
    assert len(first) > 10_000
    assert first == second


if __name__ == "__main__":
    print_sources()
