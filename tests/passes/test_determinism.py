"""A program is compiled to the same code in every process, whatever strings and addresses hash to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.fuzz.run import compiled
from tests.programs import catalogue

ROOT = Path(__file__).resolve().parents[2]
ADDRESSES = re.compile(r'(?<=!\{!")0x[0-9a-f]+(?=")')
"""TVM names the nodes of LLVM's alias analysis by the addresses of its variables."""


def print_sources():
    """Of attention: pipelined loops, names, and totals of rows."""
    with TemporaryDirectory() as directory:
        for entry in catalogue().values():
            for target in ("llvm", "metal", "sm_90a") if "attention" in entry.tags else ():
                for case in entry.cases(target, "fast")[:1]:
                    print(compiled(case, target, Path(directory)).get_kernel_source())


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
