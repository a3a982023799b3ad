"""Speed on an NVIDIA GPU, beside cuBLAS, torch, Triton and TileLang, and what compiling costs.

    python benchmarks/gpu.py                           # prints the tables
    python benchmarks/gpu.py --write benchmarks/h200/gpu   # puts them into gpu.md and gpu.json too
    python benchmarks/gpu.py --only attention "gemm float16"   # cases whose names have one of these
    python benchmarks/gpu.py --tilelang ~/tl/bin/python    # beside TileLang, in a process of its own
    python benchmarks/gpu.py --dry                     # compiles all kernels; needs no GPU
    python benchmarks/gpu.py --compile                 # compile time, pass by pass; needs no GPU

Every result is compared with a float64 reference before it is measured. tvmtile and Triton have
several configurations of each kernel; the fastest of a first measurement is shown, and measured again
together with the others' (see gpu_timing.py for how). A ratio above 1 means faster than that contender.
The files of `--write` keep what they have until it is measured again; a row names its run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import tvm
from gpu_case import in_processes
from gpu_cases import Case, cases
from gpu_programs import PROGRAMS
from gpu_timing import measure, relative_error

import tvmtile
import tvmtile.language as T
from tvmtile.errors import TileError

ELSEWHERE = {"kind": "cuda", "arch": "sm_90a"}
CUDA = "cuda"


def program_of(case: Case, configuration: dict[str, Any]) -> Any:
    return PROGRAMS[case.program](**case.arguments, **configuration)


def shown(configuration: dict[str, Any]) -> str:
    return " ".join(f"{key} {value}" for key, value in configuration.items())


def compiled(case: Case, target: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """The configurations with their kernels, or with the error that stands in the way."""

    def kernel(configuration: dict[str, Any]) -> Any:
        try:
            return tvmtile.compile(program_of(case, configuration), target=target)
        except TileError as error:
            return error

    with ThreadPoolExecutor(8) as workers:
        yield from zip(case.configurations, workers.map(kernel, case.configurations), strict=True)


def fill_cache(chosen: list[Case], target: Any) -> None:
    """Compile all kernels in as many processes as there are processors, for who compiles them again."""
    if not tvmtile.cache.is_cache_enabled():
        return
    jobs = [
        (case.program, case.arguments | configuration, target)
        for case in chosen
        for configuration in case.configurations
    ]
    in_processes(compile_one, jobs)


def compile_one(job: tuple[str, dict[str, Any], Any]) -> None:
    """Compile a kernel in a process of the pool; what goes wrong is said where it is used."""
    program, arguments, target = job
    with contextlib.suppress(TileError):
        tvmtile.compile(PROGRAMS[program](**arguments), target=target)


# Speed ------------------------------------------------------------------------------------------


def run(case: Case) -> dict[str, Any]:
    """Check and measure all contenders of a case."""
    inputs = case.inputs()
    out = case.out(*inputs)
    results = case.results(out)
    expected = case.reference(*inputs)
    notes: list[str] = []

    def checked(name: str, function: Callable[..., object]) -> Callable[[], object] | None:
        out.zero_()
        result = function(*inputs, *results)
        result = result if isinstance(result, torch.Tensor) else out
        if name in case.others:
            return partial(function, *inputs, *results)
        error = relative_error(result, expected)
        if error <= case.tolerance:
            return partial(function, *inputs, *results)
        notes.append(f"{name}: wrong, relative error {error:.1e}")
        return None

    ours = {}
    for configuration, kernel in compiled(case, CUDA):
        name = shown(configuration)
        if isinstance(kernel, TileError):
            notes.append(f"{name}: {kernel.message.splitlines()[0]}")
        elif contender := attempted(partial(checked, name, kernel), name, notes):
            ours[name] = contender
    theirs = {}
    for configuration in case.triton[1] if case.triton else ():
        name = shown(configuration)
        function = triton_function(case, configuration)
        if function and (contender := attempted(partial(checked, name, function), name, notes)):
            theirs[name] = contender
    final = {}
    for name, function in case.rivals.items():
        if contender := attempted(partial(checked, name, function), name, notes):
            final[name] = contender
    tuning: dict[str, dict[str, float]] = {}
    best: dict[str, str] = {}
    for side, candidates in (("tvmtile", ours), ("Triton", theirs)):
        if candidates:
            tuning[side] = measure(candidates, rounds=3)
            best[side] = min(tuning[side], key=tuning[side].__getitem__)
            final[side] = candidates[best[side]]
    times = measure(final)
    times = {name: value / case.others.get(name, 1.0) for name, value in times.items()}
    return {
        "case": case.name,
        "unit": case.unit,
        "milliseconds": times,
        "rates": {name: case.rate(value) for name, value in times.items()},
        "configurations": best,
        "tuning": tuning,
        "goals": case.goals,
        "notes": notes,
    }


def attempted(check: Callable[[], Any], name: str, notes: list[str]) -> Any:
    """A contender, or None with a note if it can't run: a launch that asks for too much, say."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - Triton and TVM raise many kinds
        notes.append(f"{name}: {str(error).strip().splitlines()[0][:200]}")
        return None


def triton_function(case: Case, configuration: dict[str, Any]) -> Callable[..., object] | None:
    try:
        import gpu_triton
    except ImportError:
        return None
    function = getattr(gpu_triton, case.triton[0])

    def call(*tensors: torch.Tensor) -> None:
        function(*case.triton_views(*tensors), *case.triton_arguments, **configuration)

    return call


def with_tilelang(python: str, chosen: list[Case]) -> dict[str, Any]:
    """TileLang's times, by case, from a process of its own on the same GPU."""
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder, "names.json"), Path(folder, "results.json")
        asked.write_text(json.dumps([case.name for case in chosen if "TileLang" in case.goals]))
        subprocess.run(
            [python, Path(__file__).with_name("gpu_tilelang.py"), asked, answer], check=True
        )
        return json.loads(answer.read_text())


# Costs ------------------------------------------------------------------------------------------


def add_three() -> Any:
    @T.prim_func
    def main(
        A: T.Tensor((1024,), "float32"), B: T.Tensor((1024,), "float32"),
        C: T.Tensor((1024,), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128) as _:
            for i in T.Parallel(1024):
                C[i] = A[i] + B[i]

    return main


def launch_rows() -> list[dict[str, Any]]:
    """Microseconds that Python is busy with a launch of a kernel of three tensors."""
    kernel = tvmtile.compile(add_three(), target="cuda")
    a, b, c = (torch.ones(1024, device="cuda") for _ in range(3))
    contenders = {
        "TVM's bare call": partial(kernel.module["main"], a, b, c),
        "tvmtile": partial(kernel, a, b, c),
        "torch.add(out=)": partial(torch.add, a, b, out=c),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(30):
        for name, call in contenders.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(200):
                call()
            times[name].append((time.perf_counter() - start) / 200 * 1e6)
    torch.cuda.synchronize()
    medians = {name: median(own) for name, own in times.items()}
    over = medians["tvmtile"] - medians["TVM's bare call"]
    values = [
        *((f"a launch: {name}", t, "") for name, t in medians.items()),
        ("a launch by tvmtile, over TVM's bare call", over, "at most 1 us"),
    ]
    return [{"cost": what, "value": f"{t:.2f} us", "goal": goal} for what, t, goal in values]


@tvm.instrument.pass_instrument
class Stopwatch:
    """Seconds in each pass, without those in the passes that it runs."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._running: list[list[float]] = []

    def run_before_pass(self, mod: Any, info: Any) -> None:
        self._running.append([time.perf_counter(), 0.0])

    def run_after_pass(self, mod: Any, info: Any) -> None:
        start, within = self._running.pop()
        elapsed = time.perf_counter() - start
        name = str(info.name)
        self.seconds[name] = self.seconds.get(name, 0.0) + elapsed - within
        if self._running:
            self._running[-1][1] += elapsed


COMPILED = "gemm float16 4096 x 4096 x 4096 nn"


def compile_rows(repeats: int = 5) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The time from a tile program to a cubin for a GEMM, and that of each pass."""
    case = next(case for case in cases() if case.name == COMPILED)
    configuration = case.configurations[3]
    runs = []
    was_enabled = tvmtile.cache.is_cache_enabled()
    tvmtile.disable_cache()
    for _ in range(repeats):
        stopwatch = Stopwatch()
        start = time.perf_counter()
        program = program_of(case, configuration)
        traced = time.perf_counter()
        with tvm.transform.PassContext(instruments=[stopwatch]):
            kernel = tvmtile.compile(program, target=ELSEWHERE)
        lowered = time.perf_counter()
        assert kernel.cubin
        done = time.perf_counter()
        runs.append(
            (done - start, traced - start, lowered - traced, done - lowered, stopwatch.seconds)
        )
    if was_enabled:
        tvmtile.enable_cache()
    total, trace, lower, binary, passes = sorted(runs, key=lambda r: r[0])[len(runs) // 2]
    ours = trace + sum(t for name, t in passes.items() if name.startswith("tvmtile."))
    values = [
        ("tile program to cubin", total, "at most 1.0 s"),
        ("of that tvmtile's Python", ours, "at most 0.25 s"),
        ("tracing", trace, ""),
        ("lowering and TVM's code generation", lower, ""),
        ("machine code, if that is not there yet", binary, ""),
    ]
    rows = [
        {"cost": f"{case.name}: {what}", "value": f"{seconds:.3f} s", "goal": goal}
        for what, seconds, goal in values
    ]
    return rows, dict(sorted(passes.items(), key=lambda item: -item[1]))


# Without a GPU ----------------------------------------------------------------------------------


def dry(chosen: list[Case]) -> bool:
    """Compile every configuration for an architecture; tell whether each case has one that compiles."""
    rows, failed = [], []
    for case in chosen:
        own = [dry_row(case, *pair) for pair in compiled(case, ELSEWHERE)]
        if all(row["problem"] for row in own):
            failed.append(case.name)
        rows += own
    print(table(rows))
    for name in failed:
        print(f"no configuration compiles: {name}", file=sys.stderr)
    return not failed


def dry_row(case: Case, configuration: dict[str, Any], kernel: Any) -> dict[str, Any]:
    """The share of a multiprocessor that a kernel takes, or why there is none."""
    row = dict.fromkeys(("registers", "spills", "shared", "problem"), "")
    try:
        if isinstance(kernel, TileError):
            raise kernel
        used = kernel.resources()
    except TileError as error:
        row["problem"] = error.message.splitlines()[0]
    else:
        for what in ("registers", "spills", "shared"):
            row[what] = max(getattr(each, what) for each in used)  # of a program's kernels
    return {"case": case.name, "configuration": shown(configuration), **row}


# Reports ----------------------------------------------------------------------------------------


def machine(command: str) -> dict[str, Any]:
    """The machine and the versions that the numbers were measured with."""
    about = {
        "date": date.today().isoformat(),
        "gpu": "none",
        "python": platform.python_version(),
        "tvmtile": tvmtile.__version__,
        "apache-tvm": tvm.__version__,
        "torch": torch.__version__,
        "command": command,
    }
    if torch.cuda.is_available():
        about["gpu"] = torch.cuda.get_device_name()
        about["cuda of torch"] = torch.version.cuda
        about["driver"] = driver_version()
        try:
            import triton

            about["triton"] = triton.__version__
        except ImportError:
            pass
    return about


def driver_version() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def speed_table(results: list[dict[str, Any]]) -> str:
    """One row a case: each contender's rate, and tvmtile's relative to it."""
    rows = []
    for result in results:
        times, rates = result["milliseconds"], result["rates"]
        ours = times.get("tvmtile")
        others = [
            f"{name} {rates[name]:.0f}" + (f" ({times[name] / ours:.2f})" if ours else "")
            for name in sorted(times)
            if name != "tvmtile"
        ]
        rows.append(
            {
                "case": result["case"],
                "unit": result["unit"],
                "tvmtile": f"{rates['tvmtile']:.0f}" if ours else "-",
                "others (tvmtile's ratio to them)": ", ".join(others),
                "goal": ", ".join(f"{goal} of {name}" for name, goal in result["goals"].items()),
                "configuration": result["configurations"].get("tvmtile", ""),
                "run": result["run"],
            }
        )
    return table(rows)


def table(rows: list[dict[str, Any]]) -> str:
    columns = list(rows[0])
    lines = [" | ".join(columns), " | ".join("---" for _ in columns)]
    lines += [" | ".join(str(row[column]) for column in columns) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", default=[""], help="cases whose names have one of these"
    )
    parser.add_argument("--seconds", type=float, help="begin no case after so many seconds")
    parser.add_argument("--without-triton", action="store_true", help="do not compile its kernels")
    parser.add_argument("--commit", default="", help="what to call the version of tvmtile")
    parser.add_argument("--write", type=Path, help="also write PATH.md and PATH.json")
    parser.add_argument("--tilelang", metavar="PYTHON", help="an interpreter that has TileLang")
    parser.add_argument("--dry", action="store_true", help="compile everything, measure nothing")
    parser.add_argument("--compile", action="store_true", help="measure the compile time alone")
    args = parser.parse_args()
    start = time.monotonic()
    chosen = [case for case in cases() if any(word in case.name for word in args.only)]
    if args.without_triton:
        chosen = [replace(case, triton=None) for case in chosen]
    if args.dry:
        sys.exit(0 if dry(chosen) else 1)
    costs, passes = compile_rows() if args.compile or args.only == [""] else ([], {})
    if args.compile:
        slowest = [{"pass": name, "ms": f"{t * 1e3:.1f}"} for name, t in list(passes.items())[:20]]
        print(table(costs), table(slowest), sep="\n\n")
        return
    fill_cache(chosen, CUDA)
    results = []
    for case in chosen:
        if args.seconds and time.monotonic() - start > args.seconds:
            print(f"no time for {case.name}", file=sys.stderr)
            continue
        results.append(run(case))
        print(json.dumps(results[-1]), flush=True)
        torch.cuda.empty_cache()
    about = machine(f"python benchmarks/gpu.py {shlex.join(sys.argv[1:])}".strip())
    about |= {"tvmtile": args.commit} if args.commit else {}
    if args.tilelang:
        theirs = with_tilelang(args.tilelang, chosen)
        add_tilelang(results, theirs, {case.name: case for case in chosen})
        about |= {"TileLang": theirs["version"]}
    report(args.write, about, results, costs and costs + launch_rows())


def add_tilelang(
    results: list[dict[str, Any]], theirs: dict[str, Any], chosen: dict[str, Case]
) -> None:
    """Put TileLang's fastest configurations beside the other contenders."""
    for result in results:
        case = chosen[result["case"]]
        times = theirs["times"].get(case.name)
        result["notes"] += [f"TileLang {note}" for note in theirs["notes"].get(case.name, ())]
        if not times:
            continue
        result["milliseconds"]["TileLang"] = times["milliseconds"]
        result["rates"]["TileLang"] = case.rate(times["milliseconds"])
        result["configurations"]["TileLang"] = times["configuration"]
        result["tuning"]["TileLang"] = times["tuning"]


def report(
    write: Path | None,
    about: dict[str, str],
    results: list[dict[str, Any]],
    costs: list[dict[str, Any]],
) -> None:
    for result in results:
        for note in result["notes"]:
            print(f"{result['case']}: {note}", file=sys.stderr)
    new = {"runs": [about], "speed": [{**r, "run": 0} for r in results], "costs": costs}
    print(page(new))
    if write is None:
        return
    path = write.with_suffix(".json")
    everything = merged(json.loads(path.read_text()), new) if path.exists() else new
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(everything, indent=1) + "\n")
    write.with_suffix(".md").write_text(page(everything))


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """All that was measured, of each case the last time, in the order of the cases; runs that count."""
    rows = {row["case"]: row | {"about": old["runs"][row["run"]]} for row in old["speed"]}
    rows |= {row["case"]: row | {"about": new["runs"][row["run"]]} for row in new["speed"]}
    ordered = [rows[case.name] for case in cases() if case.name in rows]
    runs: list[dict[str, Any]] = []
    for row in ordered:
        about = row.pop("about")
        if about not in runs:
            runs.append(about)
        row["run"] = runs.index(about)
    return {"runs": runs, "speed": ordered, "costs": new["costs"] or old["costs"]}


def page(everything: dict[str, Any]) -> str:
    """The runs, numbered from 0, and the tables."""
    about = [
        f"{number}. " * (len(everything["runs"]) > 1)
        + ", ".join(f"{key} {value}" for key, value in run.items())
        for number, run in enumerate(everything["runs"])
    ]
    tables = [speed_table(everything["speed"])] if everything["speed"] else []
    tables += [table(everything["costs"])] if everything["costs"] else []
    return "\n\n".join(["\n".join(about), *tables]) + "\n"


if __name__ == "__main__":
    main()
