"""TileLang's side of `gpu.py`, run by an interpreter that has TileLang and torch:

    PYTHON gpu_tilelang.py NAMES.json RESULTS.json

The programs, configurations, checks and measurements are those of tvmtile.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import tilelang
import torch
from gpu_cases import Case, cases
from gpu_programs import PROGRAMS
from gpu_timing import measure, relative_error


def times_of(case: Case, notes: list[str]) -> dict[str, float]:
    """Milliseconds of each configuration that runs and is right."""
    inputs = case.inputs()
    out = case.out(*inputs)
    expected = case.reference(*inputs)
    contenders = {}
    for configuration in case.configurations:
        name = " ".join(f"{key} {value}" for key, value in configuration.items())
        try:
            program = PROGRAMS[case.program](**case.arguments, **configuration)
            kernel = tilelang.compile(program, target="cuda")
            out.zero_()
            kernel(*inputs, out)
            error = relative_error(out, expected)
        except Exception as problem:  # noqa: BLE001 - TVM raises many kinds
            notes.append(f"{name}: {str(problem).strip().splitlines()[-1][:200]}")
            continue
        if error > case.tolerance:
            notes.append(f"{name}: wrong, relative error {error:.1e}")
            continue
        contenders[name] = partial(kernel, *inputs, out)
    return measure(contenders) if contenders else {}


def main(asked: Path, answer: Path) -> None:
    names = json.loads(asked.read_text())
    results: dict[str, Any] = {"version": tilelang.__version__, "milliseconds": {}, "notes": {}}
    for case in cases():
        if case.name in names:
            notes: list[str] = []
            results["milliseconds"][case.name] = times_of(case, notes)
            results["notes"][case.name] = notes
            torch.cuda.empty_cache()
    answer.write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
