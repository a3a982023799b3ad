"""KernelBench's problems, solved by TileLang kernels that others wrote: are they right, and how fast?

    git clone https://github.com/nathanjpaek/kb-pilot    # the solutions, and KernelBench's problems
    python benchmarks/kernelbench.py kb-pilot/KernelBench/KernelBench \
        kb-pilot/KernelBench/src/prompts/correct_tilelang --page kernelbench.md --json kernelbench.json

Only the imports of a solution are changed. Its first lines have the time that TileLang's kernel took
when it was recorded, the mean of events around one call of the model, and torch's beside it, on an H200
or an H100 of other people: the machine's processor counts as much as its GPU where a call is short, so
each solution is looked at three ways.

- call: the median of events around one call, as it was recorded.
- device: the same for calls that were enqueued while the GPU was busy, without what the host takes.
- beside torch: the ratio of calls, divided by that of torch's model, recorded and here.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

TOLERANCE = 1e-2
"""KernelBench's own, absolute and relative."""
GOAL = 0.9
Row = dict[str, Any]


# A solution and its problem -----------------------------------------------------------------------


def solutions_in(folder: Path, levels: list[str]) -> dict[str, Path]:
    """The solutions by name, `1_58` for problem 58 of level 1; `1_98_slow` is another one of 1_98."""
    paths = [path for level in levels for path in (folder / f"level{level}").glob("*_*.py")]
    return {path.stem: path for path in sorted(paths, key=lambda path: path.stem.split("_")[:2])}


def problem_of(name: str, folder: Path) -> Path:
    level, number = name.split("_")[:2]
    (path,) = (folder / f"level{level}").glob(f"{number}_*.py")
    return path


def with_our_imports(text: str) -> str:
    text = re.sub(
        r"^(\s*)import tilelang\.language as", r"\1import tvmtile.language as", text, flags=re.M
    )
    text = re.sub(
        r"^(\s*)import tilelang\b(?! as)", r"\1import tvmtile as tilelang", text, flags=re.M
    )
    return re.sub(r"^(\s*)from tilelang\b", r"\1from tvmtile", text, flags=re.M)


def recorded(path: Path) -> Row:
    """The lines at the head of a solution about TileLang's time, torch's, and the machine."""
    text = path.read_text()
    times = re.findall(r"'mean': ([\d.]+)", text)
    hardware = re.search(r"NVIDIA (H\d00)", text)
    return {
        "recorded": float(times[0]),
        "torch_recorded": float(times[1]) if len(times) > 1 else None,
        "recorded_on": hardware.group(1) if hardware else None,
    }


def models_of(name: str, path: Path, problems: Path, scratch: Path) -> tuple[Any, Any, Any]:
    """The solution's model, torch's, and what makes their inputs: parameters and inputs of one seed."""
    import torch

    problem: Row = {"__name__": "problem"}
    exec(compile(problem_of(name, problems).read_text(), "problem.py", "exec"), problem)
    source = scratch / f"{name}.py"  # errors show a kernel's lines
    source.write_text(with_our_imports(path.read_text()))
    solution: Row = {**problem, "__name__": "solution", "__file__": str(source)}
    exec(compile(source.read_text(), str(source), "exec"), solution)
    arguments, named = problem.get("get_init_inputs", list)(), {}
    if len(arguments) == 2 and isinstance(arguments[1], dict):
        arguments, named = arguments

    def made(model: Any) -> Any:
        torch.manual_seed(0)
        return model(*arguments, **named).to("cuda", torch.float16)

    def inputs() -> list[Any]:
        torch.manual_seed(1)
        with torch.device("cuda"):
            return [half(each) for each in problem["get_inputs"]()]

    def half(each: Any) -> Any:
        is_float = isinstance(each, torch.Tensor) and each.is_floating_point()
        return each.half().cuda() if is_float else each.cuda() if hasattr(each, "cuda") else each

    return made(solution["ModelNew"]), made(problem["Model"]), inputs


# What a worker does -------------------------------------------------------------------------------


def verdict_of(model: Any, reference: Any, inputs: Any) -> str:
    import torch

    pairs = [model(*inputs()), reference(*inputs())]
    got, want = ([one] if isinstance(one, torch.Tensor) else list(one) for one in pairs)
    worst = 0.0
    is_right = True
    for a, b in zip(got, want, strict=True):
        if not isinstance(b, torch.Tensor):
            continue
        a, b = a.float(), b.float()
        if a.shape != b.shape:
            return f"shape {list(a.shape)}, not {list(b.shape)}"
        is_right &= torch.allclose(a, b, atol=TOLERANCE, rtol=TOLERANCE, equal_nan=True)
        largest = float(b.nan_to_num(0, 0, 0).abs().max()) or 1.0
        worst = max(worst, float((a - b).nan_to_num(0, math.inf, math.inf).abs().max()) / largest)
    return "right" if is_right else f"differs by {worst:.2g}"


def time_of(model: Any, given: list[Any], seconds: float) -> float:
    """The median of events around one call, in milliseconds."""
    import torch

    times = []
    until = time.time() + seconds
    while len(times) < 3 or (time.time() < until and len(times) < 100):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        model(*given)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return median(times)


def time_on_device(model: Any, given: list[Any], call: float) -> float:
    """Of calls that are enqueued while the GPU sleeps."""
    import torch

    calls = 8
    if call > 30:
        return call
    begin = time.time()
    for _ in range(calls):
        model(*given)
    host = time.time() - begin
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(int(2e9 * max(0.001, 2 * host)))
    start.record()
    for _ in range(calls):
        model(*given)
    end.record()
    torch.cuda.synchronize()
    return min(call, start.elapsed_time(end) / calls)


def measured(model: Any, reference: Any, inputs: Any) -> Row:
    given = inputs()
    for each in (model, reference):
        for _ in range(2):
            each(*given)
    times: dict[str, list[float]] = {"call": [], "torch": []}
    contenders = [("call", model), ("torch", reference)]
    for _ in range(3):
        random.shuffle(contenders)
        for name, each in contenders:
            times[name].append(time_of(each, given, 0.03))
    row = {name: median(own) for name, own in times.items()}
    return {**row, "device": time_on_device(model, given, row["call"])}


def work(problems: Path, solutions: dict[str, Path], names: list[str]) -> None:
    """Check solutions; when told to, measure them. Every result is a line on stdout."""
    import torch

    def say(**row: Any) -> None:
        print(json.dumps(row), file=sys.__stdout__, flush=True)

    sys.stdout = sys.stderr
    torch.set_default_dtype(torch.float16)
    kept = {}
    with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
        for name in names:
            say(name=name, verdict="died")
            try:
                models = models_of(name, solutions[name], problems, Path(scratch))
                say(name=name, verdict=verdict_of(*models))
                kept[name] = models
            except Exception as error:  # noqa: BLE001 - a row of the table, whatever it is
                say(name=name, verdict=f"{type(error).__name__}: {str(error)[:200]}")
            torch.cuda.synchronize()  # an error of an earlier kernel ends this process
            torch.cuda.empty_cache()
        say(checked=True)
        until = time.time() + float(sys.stdin.readline())
        for name, models in kept.items():
            if time.time() < until:
                say(name=name, **measured(*models))
            torch.cuda.empty_cache()
    say(measured=True)


# What the parent does -----------------------------------------------------------------------------


class Worker:
    """A process that checks, and then measures, a share of the solutions."""

    def __init__(self, arguments: list[str], names: list[str]) -> None:
        command = [sys.executable, __file__, *arguments, "--worker", "--only", *names]
        pipe = subprocess.PIPE
        self.names = names
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )

    def rows_until(self, end: str, rows: dict[str, Row]) -> None:
        """Take in the results until the process says `end`, or ends."""
        for line in self.process.stdout or ():
            row = json.loads(line)
            if end in row:
                return
            rows[row["name"]].update(row)

    def go_on(self, seconds: float) -> None:
        """Let the process measure what it can in a time."""
        if self.process.stdin is not None and self.process.poll() is None:
            self.process.stdin.write(f"{seconds}\n")
            self.process.stdin.flush()


def run(arguments: list[str], names: list[str], jobs: int, seconds: float) -> dict[str, Row]:
    """Check all, some at once; then measure them one after the other, with nothing beside."""
    until = time.time() + seconds
    rows: dict[str, Row] = {name: {} for name in names}
    shuffled = random.Random(0).sample(names, len(names))
    workers = [Worker(arguments, shuffled[n::jobs]) for n in range(min(jobs, len(names)))]
    for worker in workers:  # grows by those that go on for one that has died
        worker.rows_until("checked", rows)
        rest = [name for name in worker.names if not rows[name]]
        if rest:
            workers.append(Worker(arguments, rest))
    for worker in workers:
        worker.go_on(until - time.time())
        worker.rows_until("measured", rows)
    for worker in workers:
        worker.process.kill()
    return rows


# The page -----------------------------------------------------------------------------------------


def with_ratios(row: Row) -> Row:
    """A row with how fast a solution is here, relative to what was recorded."""
    if "call" not in row:
        return row
    call, device = (row["recorded"] / max(row[key], 1e-6) for key in ("call", "device"))
    there = row["torch_recorded"]
    beside = call * row["torch"] / there if there else None
    return {**row, "call_ratio": call, "device_ratio": device, "beside_torch": beside}


_HEADING = "Geometric means of recorded / here, and how many are below 0.9:"


def page(rows: dict[str, Row], about: Row) -> str:
    timed = {name: row for name, row in rows.items() if "call" in row}
    verdicts = [row.get("verdict", "not checked") for row in rows.values()]
    right = verdicts.count("right")
    differ = sum(verdict.startswith("differs") for verdict in verdicts)
    lines = [
        "# KernelBench's problems, solved in TileLang by others",
        "",
        f"{about['date']}, {about['machine']}; " + ", ".join(about["versions"]) + ".",
        f"`{about['command']}`",
        "",
        "The script says what is measured, and where the problems and the solutions are.",
        "",
        f"Of {len(rows)} solutions {right} agree with torch within KernelBench's tolerance, {differ} "
        f"differ, {len(rows) - right - differ} fail; {len(timed)} were timed. " + _HEADING,
        "",
        "| | solutions | call | device | beside torch | below 0.9 | and by device | and beside torch |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for title, some in groups(timed).items():
        lines.append(f"| {title} | {len(some)} | " + " | ".join(summary(some)) + " |")
    slow = sorted(
        (row["call_ratio"], name) for name, row in timed.items() if row["call_ratio"] < GOAL
    )
    lines += [
        "",
        "Those below 0.9 of the recorded time by the call, in milliseconds:",
        "",
        "| | call | device | recorded | on | call | device | beside torch | |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for _, name in slow:
        row = timed[name]
        figures = [f"{row[key]:.4f}" for key in ("call", "device", "recorded")]
        ratios = [row["call_ratio"], row["device_ratio"], row["beside_torch"]]
        shown = [f"{ratio:.2f}" if ratio is not None else "" for ratio in ratios]
        cells = [name, *figures, row["recorded_on"] or "", *shown, row["verdict"]]
        lines.append("| " + " | ".join(cells) + " |")
    failed = {
        n: v
        for n, r in rows.items()
        if not (v := r.get("verdict", "")).startswith(("right", "diff"))
    }
    if failed:
        lines += [
            "",
            "Those that fail:",
            "",
            *(f"- {n}: {v or 'not checked'}" for n, v in failed.items()),
        ]
    return "\n".join(lines) + "\n"


def groups(timed: dict[str, Row]) -> dict[str, list[Row]]:
    found = {"all": list(timed.values())}
    for name, row in timed.items():
        found.setdefault(f"level {name[0]}", []).append(row)
    for hardware in ("H200", "H100"):
        of_it = [row for row in timed.values() if row["recorded_on"] == hardware]
        found[f"recorded on an {hardware}"] = of_it
    return {title: some for title, some in found.items() if some}


def summary(some: list[Row]) -> list[str]:
    beside = [row["beside_torch"] for row in some if row["beside_torch"]]
    slow = [row for row in some if row["call_ratio"] < GOAL]
    by_device = [row for row in slow if row["device_ratio"] < GOAL]
    by_all = [row for row in by_device if (row["beside_torch"] or 0) < GOAL]
    return [
        f"{geometric_mean(row['call_ratio'] for row in some):.2f}",
        f"{geometric_mean(row['device_ratio'] for row in some):.2f}",
        f"{geometric_mean(beside):.2f}" if beside else "",
        *(str(len(those)) for those in (slow, by_device, by_all)),
    ]


def about(arguments: list[str]) -> Row:
    import torch

    import tvmtile

    theirs = [f"{name} {version(name)}" for name in ("apache-tvm", "torch") if _is_installed(name)]
    return {
        "date": str(dt.datetime.now(dt.timezone.utc).date()),
        "machine": torch.cuda.get_device_name(),
        "versions": [f"tvmtile {tvmtile.__version__}", *theirs],
        "command": " ".join(["python benchmarks/kernelbench.py", *arguments]),
    }


def _is_installed(name: str) -> bool:
    try:
        version(name)
    except ModuleNotFoundError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "problems", type=Path, help="the folder of KernelBench's level1, level2, ..."
    )
    parser.add_argument("solutions", type=Path, help="the folder of the solutions' level1, ...")
    parser.add_argument("--levels", nargs="+", default=["1", "2", "3", "6"])
    parser.add_argument("--only", nargs="+", help="solutions, as 1_58")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="after which none is measured"
    )
    parser.add_argument("--page", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    solutions = solutions_in(options.solutions, options.levels)
    names = options.only or list(solutions)
    if options.worker:
        work(options.problems, solutions, names)
        return
    here = [str(options.problems), str(options.solutions), "--levels", *options.levels]
    rows = run(here, names, options.jobs, options.seconds)
    rows = {name: with_ratios({**recorded(solutions[name]), **row}) for name, row in rows.items()}
    known = about(sys.argv[1:])
    text = page(rows, known)
    if options.json:
        options.json.write_text(json.dumps({**known, "rows": rows}, indent=1) + "\n")
    if options.page:
        options.page.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
