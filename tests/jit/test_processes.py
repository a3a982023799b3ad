"""Kernels in other processes: forked ones, and those that they are pickled for."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
import multiprocessing
import os
import threading

import torch

import tvmtile
import tvmtile.language as T


@T.prim_func
def double(X: T.Tensor((4096,), "float32"), Y: T.Tensor((4096,), "float32")):
    with T.Kernel(128, threads=32) as bx:
        for i in T.Parallel(32):
            Y[bx * 32 + i] = X[bx * 32 + i] * 2


kernel = tvmtile.compile(double, out_idx=-1, target="llvm")
x = torch.randn(4096)


def is_right(_index=0):
    return all(torch.equal(kernel(x), 2 * x) for _ in range(3))


def in_child(function):
    child = os.fork()
    if child == 0:
        os._exit(0 if function() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return kernel(x * index)


assert is_right()
"""

WAYS = {
    "os.fork": "assert in_child(is_right)",
    "a fork of a fork": "assert in_child(lambda: is_right() and in_child(is_right))",
    "a kernel compiled in the child": """
        def compiled_there():
            again = tvmtile.compile(double, out_idx=-1, target="llvm")
            return torch.equal(again(x), 2 * x)

        assert in_child(compiled_there)
        """,
    "a thread of the child": """
        def in_thread():
            results = []
            thread = threading.Thread(target=lambda: results.append(is_right()))
            thread.start()
            thread.join()
            return results == [True] and is_right()

        assert in_child(in_thread)
        """,
    "a pool": """
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(is_right, range(4)) == [True] * 4
        """,
    "the workers of a data loader": """
        loader = torch.utils.data.DataLoader(
            Data(), num_workers=2, batch_size=None, multiprocessing_context="fork"
        )
        for index, item in enumerate(loader):
            assert torch.equal(item, 2 * x * index)
        """,
}


def run(path, program):
    """Run a program in a process of its own, so that one that hangs or dies fails a test."""
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_kernel_that_has_run_runs_in_forked_processes(tmp_path):
    ways = [f"# {name}\n{textwrap.dedent(way)}\nassert is_right()\n" for name, way in WAYS.items()]
    run(tmp_path / "forks.py", PROGRAM + "\n".join(ways))
