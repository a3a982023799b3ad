"""TileLang's side of `gpu.py`, run by an interpreter that has TileLang and torch:

    PYTHON gpu_tilelang.py NAMES.json RESULTS.json

The programs, checks and measurements are those of tvmtile; configurations are too, and a case may have
more of them. A contender of the case, cuBLAS or cuDNN, is measured among them: what it takes here and
what it takes beside tvmtile say whether the two processes found the same GPU.
"""

from __future__ import annotations

import contextlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import tilelang
import torch
from gpu_case import in_processes
from gpu_cases import Case, cases
from gpu_programs import PROGRAMS
from gpu_timing import measure, relative_error


def configurations(case: Case) -> list[dict[str, Any]]:
    return case.configurations + case.tilelang


def kernel_of(job: tuple[str, dict[str, Any]]) -> Any:
    program, arguments = job
    return tilelang.compile(PROGRAMS[program](**arguments), target="cuda")


def compile_one(job: tuple[str, dict[str, Any]]) -> None:
    """Fill TileLang's cache in a process of the pool; what goes wrong is said where it is used."""
    with contextlib.suppress(Exception):
        kernel_of(job)


def times_of(case: Case, notes: list[str]) -> dict[str, Any]:
    """The times of TileLang in a result of `gpu.py`; empty where no configuration runs and is right."""
    inputs = case.inputs()
    out = case.out(*inputs)
    results = case.results(out)
    expected = case.reference(*inputs)
    contenders = {}
    for configuration in configurations(case):
        name = " ".join(f"{key} {value}" for key, value in configuration.items())
        try:
            kernel = kernel_of((case.program, case.arguments | configuration))
            out.zero_()
            kernel(*inputs, *results)
            error = relative_error(out, expected)
        except Exception as problem:  # noqa: BLE001 - TVM raises many kinds
            notes.append(f"{name}: {str(problem).strip().splitlines()[-1][:200]}")
            continue
        if error > case.tolerance:
            notes.append(f"{name}: wrong, relative error {error:.1e}")
            continue
        contenders[name] = partial(kernel, *inputs, *results)
    if not contenders:
        return {}
    tuning = measure(contenders, rounds=3)
    best = min(tuning, key=tuning.__getitem__)
    rivals = {name: case.rivals[name] for name in case.goals if name in case.rivals}
    final = {best: contenders[best]} | {n: partial(f, *inputs, *results) for n, f in rivals.items()}
    times = measure(final)
    notes += [f"{name} beside it: {times.pop(name):.4f} ms" for name in rivals]
    return {"configuration": best, "milliseconds": times[best], "tuning": tuning}


def main(asked: Path, answer: Path) -> None:
    names = json.loads(asked.read_text())
    chosen = [case for case in cases() if case.name in names]
    jobs = [(case.program, case.arguments | c) for case in chosen for c in configurations(case)]
    in_processes(compile_one, jobs)
    results: dict[str, Any] = {"version": tilelang.__version__, "times": {}, "notes": {}}
    for case in chosen:
        notes: list[str] = []
        results["times"][case.name] = times_of(case, notes)
        results["notes"][case.name] = notes
        torch.cuda.empty_cache()
    answer.write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
