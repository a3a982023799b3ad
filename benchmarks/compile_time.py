"""The cost of compiling, by pass and target, on any machine: no GPU is needed.

    python benchmarks/compile_time.py                      # prints the tables
    python benchmarks/compile_time.py --write benchmarks/results/compile_time

The first table says where the time of a compile goes, and how long its output is. `tvmtile` is what
runs in Python: tracing, tvmtile's own passes, checks and adapters. The second one has tvmtile's passes.
All are milliseconds of processor time, so that what else the machine does counts little, and the least
of several compiles in one process, the first of which is left out. On a machine that others use, it is
still more than on an idle one: `a million additions` says how fast Python was meanwhile.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm
from cpu import machine, table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

from flash_attention import flash_attention
from gpu_programs import gemm

import tvmtile
import tvmtile.language as T

TARGETS: dict[str, dict[str, Any]] = {
    "CPU": {"target": "llvm"},
    "CUDA sm_90a": {"target": {"kind": "cuda", "arch": "sm_90a"}},
    "Metal": {"target": "metal", "execution_backend": "emulator"},
}
SHOWN = 15  # passes


def dynamic_gemm() -> Any:
    m, n = T.dynamic("m, n")
    return gemm(m, n, 1024, "float16", "nn", 128, 128, 32, 3, 128, 8)


PROGRAMS: dict[str, Callable[[], Any]] = {
    "gemm": lambda: gemm(4096, 4096, 4096, "float16", "nn", 128, 128, 32, 3, 128, 8),
    "gemm, dynamic M and N": dynamic_gemm,
    # As in gpu.py: as many blocks as the device holds go through the tiles, and stage their results.
    "gemm, persistent": lambda: gemm(8192, 8192, 8192, "float16", "nn", 256, 128, 64, 4, 256, 8),
    "attention": lambda: flash_attention(1, 8, 1024, 64, True, dtype=T.float16),
}
ONLY = {"gemm, persistent": ["CUDA sm_90a"]}  # the targets of a program that is not for all


@tvm.ir.instrument.pass_instrument
class Clock:
    """The processor time of each pass, without the passes in it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._running: list[list[float]] = []

    def run_before_pass(self, mod: Any, info: Any) -> None:
        self._running.append([time.process_time(), 0.0])

    def run_after_pass(self, mod: Any, info: Any) -> None:
        start, inside = self._running.pop()
        took = time.process_time() - start
        self.seconds[info.name] += took - inside
        if self._running:
            self._running[-1][1] += took


@dataclass
class Compile:
    """The cost of one compile."""

    total: float
    nvrtc: float
    passes: Counter[str]
    source: str

    def of_passes(self, *, ours: bool) -> float:
        return sum(t for name, t in self.passes.items() if name.startswith("tvmtile.") == ours)


def compiled(program: Callable[[], Any], options: dict[str, Any]) -> Compile:
    clock = Clock()
    start = time.process_time()
    with tvm.transform.PassContext(instruments=[clock]):
        kernel = tvmtile.compile(program(), **options)
    total, start = time.process_time() - start, time.process_time()
    nvrtc = 0.0
    if kernel.target.kind.name == "cuda":
        _ = kernel.cubin
        nvrtc = time.process_time() - start
    return Compile(total, nvrtc, clock.seconds, kernel.get_kernel_source())


def least(program: Callable[[], Any], options: dict[str, Any], rounds: int) -> Compile:
    runs = [compiled(program, options) for _ in range(rounds + 1)]
    return min(runs[1:], key=lambda run: run.total)


def a_million_additions() -> float:
    start, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number
    return time.process_time() - start


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f}" if seconds >= 0.01 else f"{seconds * 1e3:.1f}"


def summary(name: str, target: str, run: Compile) -> dict[str, Any]:
    theirs = run.of_passes(ours=False)
    return {
        "program": name,
        "target": target,
        "tvmtile's passes": milliseconds(run.of_passes(ours=True)),
        "TVM's passes": milliseconds(theirs),
        "tracing, code generation, adapters": milliseconds(run.total - sum(run.passes.values())),
        "NVRTC": milliseconds(run.nvrtc) if run.nvrtc else "",
        "source, kB": f"{len(run.source) / 1e3:.0f}",
    }


def by_pass(runs: dict[tuple[str, str], Compile]) -> list[dict[str, Any]]:
    """The passes that cost most, a column a program and target."""
    most: Counter[str] = Counter()
    for run in runs.values():
        most.update({n: t for n, t in run.passes.items() if n.startswith("tvmtile.")})
    return [
        {"pass": name.removeprefix("tvmtile.")}
        | {f"{p}, {t}": milliseconds(run.passes[name]) for (p, t), run in runs.items()}
        for name, _ in most.most_common(SHOWN)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="compiles of each, after the first")
    parser.add_argument("--write", type=Path, help="also write PATH.md and PATH.json")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    tvmtile.disable_cache()
    runs, additions = {}, []
    for name, program in PROGRAMS.items():
        for target in ONLY.get(name, TARGETS):
            runs[name, target] = least(program, TARGETS[target], args.rounds)
            additions.append(a_million_additions())
    about = machine() | {
        "command": "python benchmarks/compile_time.py",
        "a million additions": f"{milliseconds(min(additions))} to {milliseconds(max(additions))} ms",
    }
    where = [summary(*key, run) for key, run in runs.items()]
    passes = by_pass(runs)
    about_text = ", ".join(f"{key} {value}" for key, value in about.items())
    text = f"{about_text}\n\n{table(where)}\n\n{table(passes)}\n"
    print(text)
    if args.write is not None:
        args.write.with_suffix(".md").write_text(text)
        results = {"machine": about, "compiles": where, "passes": passes}
        args.write.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
