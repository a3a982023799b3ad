"""CUDA's emulator held against a GPU: the same kernels in both, and what their results differ by.

    python -m tests.gpu.agreement [--jobs N] [--shard I/N] [--only TEXT]

Kernels of all kinds, of code for sm_80 and sm_90a: the first is what Hopper's compiler makes of
Ampere's source. Small integers have exact sums, so their results are the same bit for bit; those of
others differ in the last bits, as docs/emulator.md explains. Whatever differs by more is printed, and
ends the command with 1.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tvmtile
import tvmtile.jit.cuda.compilation as compilation
from tests import pipelines
from tests.fuzz.generate import generate
from tests.fuzz.program import mismatch
from tests.fuzz.run import called, loaded
from tests.gpu.sanitized import SAMPLES
from tests.metal.programs import flash_attention, gemm, operands
from tests.passes.tile.test_persistent_blocks import matmul
from tvmtile.errors import TileError
from tvmtile.jit.cuda.nvrtc import Binary, compile_source
from tvmtile.language import GemmWarpPolicy

AMPERE, HOPPER = "sm_80", "sm_90a"
FUZZED = 90
# Of the largest element of a result: what sums in another order, and approximations, differ by.
TOLERANCE = {torch.float32: 4e-6, torch.float64: 1e-13, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}

Results = list[torch.Tensor]
Run = Callable[[str, str], Results]  # by architecture and backend, "emulator" or "auto"


@dataclass(frozen=True)
class Case:
    """A kernel for an architecture.

    `exact`: its sums are, so both compute the same bits. `precision`: the narrowest dtype that its
    results went through; their own where empty. `judged`: each run compares itself with what the
    program means, by bounds of its own, so results may differ from each other.
    """

    name: str
    arch: str
    run: Run
    exact: bool = False
    precision: str = ""
    judged: bool = False


def _called(
    make: Callable[[], tuple[Any, Sequence[torch.Tensor]]], arch: str, backend: str
) -> Results:
    torch.manual_seed(0)
    program, tensors = make()
    kernel = tvmtile.compile(
        program, target={"kind": "cuda", "arch": arch}, execution_backend=backend
    )
    there = [tensor.to("cpu" if backend == "emulator" else "cuda") for tensor in tensors]
    if backend == "emulator":
        kernel.adapter.short_sums = True  # of products of float8, as the GPU
    kernel(*there)
    return [tensor.cpu() for tensor in there]


def _fuzzed(seed: int, arch: str, backend: str) -> Results:
    program = generate(seed)
    with tempfile.TemporaryDirectory() as directory:
        function = loaded(program, Path(directory)).main
        kernel = tvmtile.compile(
            function, target={"kind": "cuda", "arch": arch}, execution_backend=backend
        )
        device = "cpu" if backend == "emulator" else "cuda"
        results = called(kernel, program, 0, device)
    meant = program.meaning(0)
    for name, array in results.items():
        if wrong := mismatch(meant[name], array):
            raise AssertionError(f"{backend}: {wrong}")
    return [_tensor(array) for array in results.values()]


def _tensor(array: np.ndarray) -> torch.Tensor:
    """Of dtypes that numpy does not have, too."""
    bits = np.ascontiguousarray(array).view(f"u{array.itemsize}")
    return torch.from_numpy(bits.copy()).view(getattr(torch, str(array.dtype)))


def _of_pipeline(name: str, stages: int) -> tuple[Any, Sequence[torch.Tensor]]:
    run = pipelines.CASES[name](stages)
    return run.program, (*run.arguments, torch.zeros_like(run.expected).contiguous())


def _of_sample(name: str) -> tuple[Any, Sequence[torch.Tensor]]:
    sample = SAMPLES[name]()
    return sample.program, sample.arguments


def _of_product(
    dtypes: tuple[str, str, str], transposed: bool, stages: int, roles: bool | None
) -> tuple[Any, Sequence[torch.Tensor]]:
    transposes = (False, transposed)
    program = gemm(
        192, 128, 256, block=(64, 64, 64), dtypes=dtypes, transposes=transposes, stages=stages,
        roles=roles,
    )  # fmt: skip
    a, b, _ = operands(192, 128, 256, dtypes[0], transposes)
    return program, (a, b, torch.zeros(192, 128, dtype=getattr(torch, dtypes[2])))


def _of_attention(causal: bool, stages: int) -> tuple[Any, Sequence[torch.Tensor]]:
    rows = GemmWarpPolicy.FullRow
    options = {"block_M": 64, "block_N": 64, "threads": 128, "dtype": "float16"}
    program = flash_attention(1, 2, 256, 64, causal, stages=stages, policy=rows, **options)
    return program, [torch.randn(1, 256, 2, 64).half() for _ in range(4)]


def _of_persistent(dtype: str) -> tuple[Any, Sequence[torch.Tensor]]:
    a, b, _ = operands(256, 320, 96, dtype)
    return matmul(256, 320, 96, dtype=dtype), (
        a,
        b,
        torch.zeros(256, 320, dtype=getattr(torch, dtype)),
    )


def cases() -> Iterator[Case]:
    """All of them, in one order."""
    for name in pipelines.CASES:
        for stages in range(5):
            arch = HOPPER if stages % 2 else AMPERE
            make = partial(_of_pipeline, name, stages)
            yield Case(f"{name} {stages}", arch, partial(_called, make), exact=True)
    for name in SAMPLES:
        for arch in (AMPERE, HOPPER):
            run = partial(_called, partial(_of_sample, name))
            yield Case(name, arch, run, precision=SAMPLES[name]().precision)
    for dtype, sums in _PRODUCTS:
        for stages, roles in ((0, False), (2, None)):
            transposed = dtype not in {"float16", "bfloat16"} or stages == 0
            make = partial(_of_product, (dtype, sums, sums), transposed, stages, roles)
            name = f"product of {dtype}, {stages} stages"
            yield Case(name, HOPPER, partial(_called, make), exact=sums == "int32")
    for causal in (False, True):
        make = partial(_of_attention, causal, 2)
        yield Case(f"attention {causal}", HOPPER, partial(_called, make))
    for dtype in ("float16", "bfloat16"):
        make = partial(_of_persistent, dtype)
        yield Case(f"persistent {dtype}", HOPPER, partial(_called, make))
    for seed in range(FUZZED):
        arch = HOPPER if seed % 2 else AMPERE
        yield Case(f"fuzz {seed}", arch, partial(_fuzzed, seed), judged=True)


_PRODUCTS = [
    *((dtype, "float32") for dtype in ("float16", "bfloat16", "float32")),
    *((dtype, "float32") for dtype in ("float8_e4m3fn", "float8_e5m2")),
    *((dtype, "int32") for dtype in ("int8", "uint8")),
]


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
    allowed = [0.0 if case.exact else TOLERANCE.get(narrowest or a.dtype, 0.0) for a in here]
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
