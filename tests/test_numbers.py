"""Every program of the catalogue, on every target, computes what the fuzzer's interpreter says."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import pytest
import torch

import tvmtile.language as T
from tests.fuzz.run import run
from tests.gpu.machine import HAS_GPU
from tests.programs import METAL4, TARGETS, Case, Entry, catalogue
from tests.programs.text import stand_alone

_HAS_COMPILER = shutil.which("g++") is not None or shutil.which("clang++") is not None


@dataclass(frozen=True)
class Job:
    """A program on a target."""

    program: Entry
    target: str

    def __str__(self) -> str:
        return f"{self.program.name}-{self.target}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The cases of the tier: in `fast` the CPU, and the emulators that a program names."""
    tier = metafunc.config.getoption("tier")
    pairs = [Job(entry, target) for entry in catalogue().values() for target in (*TARGETS, METAL4)]
    if "job" in metafunc.fixturenames:
        jobs = [
            job
            for job in pairs
            if tier != "fast" or job.target in ("llvm", *job.program.fast)
            if job.program.selected(job.target, tier)
        ]
        metafunc.parametrize("job", jobs, ids=str)
    elif "refusal" in metafunc.fixturenames:
        jobs = [job for job in pairs if job.program.refusals(job.target)]
        metafunc.parametrize("refusal", jobs, ids=str)


def _on(target: str) -> str:
    """The target as `tests.fuzz.run` names it."""
    if target not in ("llvm", "gpu") and not _HAS_COMPILER:
        pytest.skip("the emulator needs a C++ compiler")
    return "nvrtc" if target == "gpu" and not HAS_GPU else target


def _is_too_new(case: Case) -> bool:
    """The GPU of this machine has not the instructions that a program asks for."""
    if not HAS_GPU or not case.architectures:
        return False
    first = min(int(arch.strip("sm_a")) for arch in case.architectures)
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor < first


def test_numbers(job, tier, tmp_path):
    """A failure shows the program as a file, which `python -m tests.fuzz FILE` runs again."""
    target = _on(job.target)
    for case in job.program.cases(job.target, tier):
        if job.target == "gpu" and _is_too_new(case):
            continue
        outcome = run(case, target, tmp_path, limit=60)
        found = f"{case.name} on {target}: {outcome.kind}: {outcome.detail}"
        assert outcome.kind == "passed", f"{found}\n\n{case.source}"


@T.macro
def _twice(tile, count):
    for i in T.Parallel(count * SCALE):
        tile[i] = tile[i] * 2


SCALE = 4


def _sample(
    A: T.Tensor((n, k) if turned else (k, n), dtypes[0]), B: float16[n, 2 * k], C: dtypes[1][k]
):
    """Every kind of text that is folded."""
    rows, columns = (n, k) if turned else (k, n)
    with T.Kernel(T.ceildiv(n, rows // 2), threads=-n) as bx:
        a = getattr(T, "alloc_" + scope)((rows + 1,), dtypes[1])
        for start in (0, 8):
            T.copy(A[start, 0], a, *options, policy=policy)
        if turned and n > 4:
            T.clear(a)
        elif bx > 0 and not turned:
            _twice(a, k)
        x = bx if turned else columns
        y = 1.0 if turned and bx > 0 else limit


def test_text_has_values_in_the_place_of_parameters():
    given = {
        "n": 4, "k": 8, "turned": False, "dtypes": ("int8", "int32"), "scope": "shared",
        "policy": None, "limit": -float("inf"), "options": (True, 2), "tile": 9,
    }  # fmt: skip
    assert (
        stand_alone(_sample, given, "HEAD")
        == """HEAD

@T.macro
def _twice(tile, count):
    for i in T.Parallel(count * 4):
        tile[i] = tile[i] * 2

@T.prim_func
def main(A: T.Tensor((8, 4), 'int8'), B: T.Tensor((4, 16), 'float16'), C: T.Tensor((8,), 'int32')):
    with T.Kernel(T.ceildiv(4, 4), threads=-4) as bx:
        a = T.alloc_shared((9,), 'int32')
        T.copy(A[0, 0], a, True, 2, policy=None)
        T.copy(A[8, 0], a, True, 2, policy=None)
        if bx > 0:
            _twice(a, 8)
        x = 4
        y = -1e309
"""
    )


def test_refused(refusal, tmp_path):
    """A program asks for what its target does not have: an error of tvmtile, with its message."""
    target = _on(refusal.target)
    for case, message in refusal.program.refusals(refusal.target):
        outcome = run(case, target, tmp_path)
        found = f"{case.name} on {target}: {outcome.kind}: {outcome.detail}"
        assert outcome.kind == "refused", f"{found}\n\n{case.source}"
        assert outcome.detail.partition(": ")[2].startswith(message), found
