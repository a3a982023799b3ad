"""Operands of tile operators are simplified by several threads at the same time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.children import WITHOUT_TORCH

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
