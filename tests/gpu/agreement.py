"""CUDA's emulator held against a GPU: the same kernels in both, and what their results differ by.

    python -m tests.gpu.agreement [--jobs N] [--shard I/N] [--only TEXT]

The catalogue, samples of the benchmarks and random programs, of code for sm_80 and sm_90a: the first is
what Hopper's compiler makes of Ampere's source. Each result is held against what the program means,
whose exact sums are the same bit for bit; others differ in the last bits, as docs/emulator.md explains.
Whatever differs by more is printed, and ends the command with 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

import tvmtile
import tvmtile.jit.cuda as compilation
from tests.fuzz.generate import generate
from tests.fuzz.program import Program, mismatch
from tests.fuzz.run import called, loaded
from tests.gpu.sanitized import SAMPLES
from tests.programs import catalogue
from tvmtile.errors import TileError
from tvmtile.jit.cuda import Binary, compile_source

AMPERE, HOPPER = "sm_80", "sm_90a"
FUZZED = 90
# Of the largest element of a result: what sums in another order, and approximations, differ by.
TOLERANCE = {torch.float32: 4e-6, torch.float64: 1e-13, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

Results = list[torch.Tensor]
Run = Callable[[str, str], Results]  # by architecture and backend, "emulator" or "auto"


@dataclass(frozen=True)
class Case:
    """A kernel for an architecture.

    `precision`: the narrowest dtype that its results went through; their own where empty. `judged`:
    each run compares itself with what the program means, by bounds of its own, so results may differ.
    """

    name: str
    arch: str
    run: Run
    precision: str = ""
    judged: bool = False


def _judged(program: Program, arch: str, backend: str) -> Results:
    """The results of a call; an error where they are not what the program means."""
    with tempfile.TemporaryDirectory() as directory:
        function = loaded(program, Path(directory)).main
    kernel = tvmtile.compile(
        function, target={"kind": "cuda", "arch": arch}, execution_backend=backend
    )
    short = backend == "emulator" and "float8" in program.source
    if short:
        kernel.adapter.short_sums = True  # of products of float8, as the GPU
    results = called(kernel, program, 0, "cpu" if backend == "emulator" else "cuda")
    meant = {} if "float8" in program.source else program.meaning(0)
    for name, expected in meant.items():
        if wrong := mismatch(expected, results[name]):
            raise AssertionError(f"{backend}: {wrong}")
    return [_tensor(array) for array in results.values()]


def _fuzzed(seed: int, arch: str, backend: str) -> Results:
    return _judged(generate(seed), arch, backend)


def _listed(name: str, number: int, arch: str, backend: str) -> Results:
    return _judged(catalogue()[name].cases(arch, "full")[number], arch, backend)


def _of_sample(name: str, arch: str, backend: str) -> Results:
    torch.manual_seed(0)
    sample = SAMPLES[name]()
    kernel = tvmtile.compile(
        sample.program, target={"kind": "cuda", "arch": arch}, execution_backend=backend
    )
    there = [t.to("cpu" if backend == "emulator" else "cuda") for t in sample.arguments]
    kernel(*there)
    return [tensor.cpu() for tensor in there]


def _tensor(array: np.ndarray) -> torch.Tensor:
    """Of dtypes that numpy does not have, too."""
    bits = np.ascontiguousarray(array).view(f"u{array.itemsize}")
    return torch.from_numpy(bits.copy()).view(getattr(torch, str(array.dtype)))


def cases() -> Iterator[Case]:
    """All of them, in one order."""
    for entry in catalogue().values():
        for arch in (AMPERE, HOPPER):
            for number, case in enumerate(entry.cases(arch, "full")):
                run = partial(_listed, entry.name, number)
                yield Case(case.name, arch, run, judged="float8" not in case.source)
    for name in SAMPLES:
        for arch in (AMPERE, HOPPER):
            yield Case(name, arch, partial(_of_sample, name), precision="float16")
    for seed in range(FUZZED):
        arch = HOPPER if seed % 2 else AMPERE
        yield Case(f"fuzz {seed}", arch, partial(_fuzzed, seed), judged=True)


def difference(left: torch.Tensor, right: torch.Tensor) -> float:
    """0 where all bits are the same; else the largest difference, of the largest element."""
    if torch.equal(left.contiguous().view(torch.uint8), right.contiguous().view(torch.uint8)):
        return 0.0
    a, b = left.double(), right.double()
    same = (a == b) | (a.isnan() & b.isnan())
    if same.all():
        return 0.0  # of another sign of zero, or another NaN
    largest = float(a[a.isfinite()].abs().max()) if a.isfinite().any() else 1.0
    worst = float((a - b)[~same].abs().max())
    return worst / (largest or 1.0) if worst == worst else float("inf")


def agreement(case: Case) -> tuple[str, str]:
    """How a kernel went: "same", "close", "refused", "DIFFERENT" or "FAILED", and by how much."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            here = case.run(case.arch, "emulator")
            there = case.run(case.arch, "auto")
        except TileError as error:
            return "refused", str(error).partition("\n")[0][:200]
        except Exception as error:  # noqa: BLE001 - the others go on
            return "FAILED", f"{type(error).__name__}: {error}"[:200]
    worst = [difference(a, b) for a, b in zip(here, there, strict=True)]
    if max(worst) == 0:
        return "same", ""
    narrowest = getattr(torch, case.precision, None)
    allowed = [TOLERANCE.get(narrowest or a.dtype, 0.0) for a in here]
    close = case.judged or all(w <= t for w, t in zip(worst, allowed, strict=True))
    return "close" if close else "DIFFERENT", f"{max(worst):.1e} of {[str(a.dtype) for a in here]}"


def _prepare() -> None:
    """A process of its own for each core; the GPU that is here is Hopper's."""
    torch.set_num_threads(1)

    def for_hopper(source: str, arch: str) -> Binary:
        return compile_source(source, HOPPER if arch == AMPERE else arch)

    compilation.compile_source = for_hopper


def _numbered(number: int) -> tuple[int, tuple[str, str]]:
    return number, agreement(list(cases())[number])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=16)
    parser.add_argument("--shard", default="0/1", metavar="I/N")
    parser.add_argument("--only", default="", metavar="TEXT")
    args = parser.parse_args()
    shard, shards = map(int, args.shard.split("/"))
    chosen = [i for i, case in enumerate(cases()) if args.only in case.name][shard::shards]
    every = list(cases())
    counts: Counter[str] = Counter()
    context = multiprocessing.get_context("spawn")
    with context.Pool(args.jobs, _prepare) as pool:
        for number, (outcome, text) in pool.imap_unordered(_numbered, chosen):
            counts[outcome] += 1
            if sum(counts.values()) % 50 == 0:
                print(dict(counts), flush=True)
            if outcome != "same":
                print(
                    f"{outcome:9} {every[number].arch:6} {every[number].name}: {text}", flush=True
                )
    print(dict(counts))
    return int(bool(counts["DIFFERENT"] + counts["FAILED"]))


if __name__ == "__main__":
    raise SystemExit(main())
