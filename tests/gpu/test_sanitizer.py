"""compute-sanitizer on an NVIDIA GPU: no kernel has a race or a bad access, and no barrier is idle.

Each barrier of a kernel is taken out in turn, and racecheck must find what it was there for. Every run
is a process of its own, so these tests are nightly:
`make test-gpu PYTEST_ARGS="--tier nightly -k sanitizer"`. Without a GPU they only count the barriers
that the kernels have; tests/emulator/test_missing_barriers.py
takes out those of the same programs on Metal's emulator.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.gpu.sanitized import BARRIER, BARRIERS, SAMPLES, compiled, without_barrier

STORED_BY_STMATRIX = [("product_through_shared_memory", 1)]
"""Barriers that racecheck does not miss from compute capability 9.0 on, where there is `stmatrix`.

It does not see what that instruction writes, which other warps read behind the barrier. The last one of
`parts_of_a_product` is the same barrier behind stores of float32, and is missed everywhere.
"""

ROOT = Path(__file__).resolve().parents[2]
RACES = re.compile(r"RACECHECK SUMMARY: (\d+) hazards? displayed")
FOUND = 9  # an exit status that neither Python nor the sanitizer has of its own


def _sanitizer() -> str | None:
    """The path of compute-sanitizer, which is part of CUDA's toolkit."""
    homes = [os.environ.get(name) for name in ("CUDA_PATH", "CUDA_HOME")]
    directories = [f"{home}/bin" for home in (*homes, "/usr/local/cuda") if home]
    return shutil.which(
        "compute-sanitizer", path=os.pathsep.join([os.environ["PATH"], *directories])
    )


def _run(tool: str, name: str, missing: int | None = None) -> tuple[int, str]:
    """Run a sample under a tool of compute-sanitizer: the exit status and what was printed."""
    sanitizer = _sanitizer()
    if sanitizer is None:
        pytest.skip("compute-sanitizer, of CUDA's toolkit, is not installed")
    options = ["--racecheck-report", "all"] if tool == "racecheck" else []
    mutation = [] if missing is None else ["--without-barrier", str(missing)]
    # Where nvcc compiles the kernel, that is a process too, and not looked at.
    finished = subprocess.run(
        [
            *(sanitizer, "--tool", tool, "--error-exitcode", str(FOUND), "--print-limit", "10"),
            *("--show-backtrace", "no", "--target-processes", "application-only", *options),
            *(sys.executable, "-m", "tests.gpu.sanitized", name, *mutation),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=300,
        check=False,
    )
    if "Device not supported" in finished.stdout:
        pytest.skip("compute-sanitizer does not support this machine's GPU or its virtualisation")
    return finished.returncode, finished.stdout


def _mutations() -> Iterator[tuple[str, int]]:
    for name, count in BARRIERS.items():
        yield from ((name, number) for number in range(count))


def _source(name: str) -> str:
    kernel = compiled(SAMPLES[name]().program, {"kind": "cuda", "arch": "sm_90a"})
    return str(kernel.get_kernel_source(kernel_only=True))


@pytest.mark.full
@pytest.mark.parametrize("name", SAMPLES)
def test_the_barriers_of_the_samples_are_those_of_the_table(name: str) -> None:
    source = _source(name)
    assert len(BARRIER.findall(source)) == source.count("__sync") == BARRIERS[name]
    assert len(BARRIER.findall(without_barrier(source, 0))) == BARRIERS[name] - 1


@pytest.mark.gpu
@pytest.mark.nightly
@pytest.mark.parametrize("name", SAMPLES)
def test_no_access_is_bad(name: str) -> None:
    status, output = _run("memcheck", name)
    assert (status, "ERROR SUMMARY: 0 errors" in output) == (0, True), output


@pytest.mark.gpu
@pytest.mark.nightly
@pytest.mark.parametrize("name", SAMPLES)
def test_no_race_is_left(name: str) -> None:
    status, output = _run("racecheck", name)
    assert (status, RACES.findall(output)) == (0, ["0"]), output


@pytest.mark.gpu
@pytest.mark.nightly
@pytest.mark.parametrize(("name", "number"), list(_mutations()))
def test_every_barrier_is_missed(name: str, number: int) -> None:
    status, output = _run("racecheck", name, number)
    assert f"ran {name}" in output, output
    is_seen = (name, number) not in STORED_BY_STMATRIX or torch.cuda.get_device_capability() < (
        9,
        0,
    )
    assert (int(RACES.findall(output)[0]) > 0) == is_seen, output
