"""How good the model's 20 proposals are on this CPU, beside all configurations of a grid.

    python benchmarks/proposals.py                      # prints the table
    python benchmarks/proposals.py --write benchmarks/results/proposals

All configurations take turns on one thread, and the least processor time of each counts, so that what
else the machine does counts little. Beside the proposals, every combination of the grid is measured.
"""

from __future__ import annotations

import os

os.environ["TVM_NUM_THREADS"] = "1"  # before TVM is imported: its pool is made once

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from cpu import machine, table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from gemm import gemm
from softmax import softmax

import tvmtile
from tvmtile import carver
from tvmtile.errors import TileError

TOPK = 20
GOAL = 1.05


@dataclass(frozen=True)
class Case:
    """A program of some configuration's values, what it is called with, and the grid."""

    name: str
    program: Callable[..., Any]
    inputs: Callable[[], list[torch.Tensor]]
    grid: dict[str, list[int]]


CASES = [
    Case(
        f"gemm float32 {m} x {n} x {k}",
        lambda m=m, n=n, k=k, **config: gemm(m, n, k, stages=0, **config),
        lambda m=m, n=n, k=k: [torch.randn(m, k), torch.randn(k, n)],
        {name: [16, 32, 64, 128, 256] for name in ("block_M", "block_N", "block_K")},
    )
    for m, n, k in ((512, 512, 512), (256, 1024, 768))
] + [
    Case(
        f"softmax float32 {m} x {n}",
        lambda m=m, n=n, **config: softmax(m, n, **config),
        lambda m=m, n=n: [torch.randn(m, n)],
        {"block_M": [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]},
    )
    for m, n in ((1024, 1024), (256, 8192))
]


def measured(case: Case, rounds: int) -> dict[str, Any]:
    """The quickest of the proposals, and of all."""
    proposed = carver.proposals(lambda c: case.program(**c), case.grid, carver.CPU(), TOPK)
    grid = [
        dict(zip(case.grid, values, strict=True))
        for values in itertools.product(*case.grid.values())
    ]
    configs = [*proposed, *(config for config in grid if config not in proposed)]
    inputs = case.inputs()
    kernels = dict(compiled(case, configs))
    least = dict.fromkeys(kernels, float("inf"))
    for _ in range(rounds):
        for index, kernel in kernels.items():
            start = time.process_time()
            kernel(*inputs)
            least[index] = min(least[index], time.process_time() - start)
    best = min(least, key=least.__getitem__)
    ours = min((index for index in least if index < len(proposed)), key=least.__getitem__)
    return {
        "case": case.name,
        "configurations": len(kernels),
        "proposals": len(proposed),
        "best ms": least[best] * 1e3,
        "best": configs[best],
        "proposed ms": least[ours] * 1e3,
        "proposed": configs[ours],
        "ratio": least[ours] / least[best],
    }


def compiled(case: Case, configs: list[dict[str, int]]) -> Iterator[tuple[int, Any]]:
    """The kernels of the configurations that can be compiled, by their place."""
    for index, config in enumerate(configs):
        try:
            yield index, tvmtile.compile(case.program(**config), out_idx=-1, target="llvm")
        except TileError as error:
            print(f"{case.name} {config}: {error}".splitlines()[0], file=sys.stderr)


def row(result: dict[str, Any]) -> dict[str, Any]:
    def shown(which: str) -> str:
        blocks = " x ".join(map(str, result[which].values()))
        return f"{result[f'{which} ms']:.3f} ({blocks})"

    return {
        "case": result["case"],
        "proposals": f"{result['proposals']} of {result['configurations']}",
        "best proposal, ms": shown("proposed"),
        "best of all, ms": shown("best"),
        "ratio": result["ratio"],
        "goal": GOAL,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, help="also write PATH.md and PATH.json")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--case", default="", help="only cases with this in their name")
    args = parser.parse_args()
    results = [measured(case, args.rounds) for case in CASES if args.case in case.name]
    about = machine() | {"command": "python benchmarks/proposals.py", "threads": 1}
    facts = ", ".join(f"{name} {value}" for name, value in about.items())
    text = f"{facts}\n\n{table([row(result) for result in results])}\n"
    print(text)
    if args.write:
        args.write.with_suffix(".md").write_text(text)
        data = json.dumps({"machine": about, "cases": results}, indent=2)
        args.write.with_suffix(".json").write_text(data + "\n")


if __name__ == "__main__":
    main()
