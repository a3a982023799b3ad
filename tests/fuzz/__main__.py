"""`python -m tests.fuzz`: run many random programs, and print a table of what came of them.

    python -m tests.fuzz --seeds 0:2000 --target llvm --target metal --jobs 2
    python -m tests.fuzz --seeds 0:2000 --gpu
    python -m tests.fuzz --seeds 0:1000 --pipelines   # pipelined loops, with two roles and with one
    python -m tests.fuzz --seeds 0:1000 --chains   # attention and its like: products of products
    python -m tests.fuzz --seeds 0:1000 --exits   # pipelined loops in loops that are left early
    python -m tests.fuzz --seeds 0:1000 --views   # tiles and tensors that have several names
    python -m tests.fuzz --seeds 0:1000 --indices   # indices that count down, are divided, looked up
    python -m tests.fuzz --seeds 0:1000 --shapes   # tiles of many axes, loops that are left early
    python -m tests.fuzz --seeds 0:1000 --extremes   # NaN, ends of ranges, conversions
    python -m tests.fuzz --seeds 0:1000 --degenerate   # extents of 0, no axes, what is never reached
    python -m tests.fuzz --seeds 0:1000 --threads   # code by thread index
    python -m tests.fuzz --seeds 0:1000 --reducers   # reducers, sums behind loops
    python -m tests.fuzz failures/llvm_17_wrong.py --target llvm      # a program that failed, again

Programs that fail are saved, as they were and shrunk. The exit status is 1 if one failed.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.generate import SPECIAL, generate
from tests.fuzz.program import Program
from tests.fuzz.run import TARGETS, Outcome
from tests.fuzz.shrink import shrink
from tests.fuzz.workers import Job, outcomes

_KINDS = ("passed", "refused", "race", "wrong", "internal", "hung", "slow", "invalid")
_PIPELINED = ("pipelines", "chains", "exits")
"""The special programs that are compiled with two roles and with one."""


def main() -> int:
    """Run what the command line asks for."""
    options = _options()
    targets = _targets(options)
    all_jobs = (Job((program, target)) for program in _programs(options) for target in targets)
    end = time.monotonic() + options.seconds
    jobs = itertools.takewhile(lambda _: time.monotonic() < end, all_jobs)
    counts: Counter[tuple[str, str]] = Counter()
    reasons: Counter[tuple[str, str, str]] = Counter()
    failures: list[tuple[Job, Outcome]] = []
    try:
        for job, outcome in outcomes(jobs, options.jobs, options.timeout):
            counts[job[1], outcome.kind] += 1
            counts[job[1], "split"] += outcome.is_split
            if outcome.kind == "refused":
                reasons[job[1], outcome.kind, outcome.reason] += 1
            if outcome.is_failure:
                failures.append((job, outcome))
                _save(job, outcome, options.failures)
                print(f"{job[1]} {job[0].seed}: {outcome.kind}: {outcome.reason}", flush=True)
    except KeyboardInterrupt:
        options.shrink = False  # what is there by now is printed
    _print_table(targets, counts, reasons)
    if options.shrink:
        for job, outcome in failures:
            _save(_shrunk(job, outcome, options.timeout), outcome, options.failures / "shrunk")
    return int(bool(failures))


def _targets(options: argparse.Namespace) -> list[str]:
    named = list(options.target or [])
    pipelined = options.special in _PIPELINED
    if options.gpu:
        named += ["gpu", "gpu-one-role"] if pipelined else ["gpu"]
    return named or (["llvm", "hopper", "hopper-one-role"] if pipelined else ["llvm"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("programs", nargs="*", type=Path, help="files of programs, not seeds")
    parser.add_argument("--seeds", default="0:200", help="FIRST:END, 0:200 where absent")
    parser.add_argument("--size", type=int, help="the most statements of a kernel")
    special = parser.add_mutually_exclusive_group()
    for name, make in SPECIAL.items():
        summary = (make.__doc__ or "").partition("\n")[0]
        special.add_argument(
            f"--{name}", dest="special", action="store_const", const=name, help=summary
        )
    parser.add_argument("--target", action="append", choices=TARGETS, help="llvm where absent")
    parser.add_argument("--gpu", action="store_true", help="the CUDA GPU of this machine")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument(
        "--timeout",
        type=float,
        default=10.0,
        help="seconds of processor time that are slow, at full speed",
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="after which none is begun"
    )
    parser.add_argument("--failures", type=Path, default=Path("failures"), help="a directory")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false")
    return parser.parse_args()


def _programs(options: argparse.Namespace) -> Iterator[Program]:
    if options.programs:
        for path in options.programs:
            source = path.read_text()
            yield Program(source, seed_of(source))
        return
    first, end = map(int, options.seeds.split(":"))
    make = SPECIAL.get(options.special, generate)
    for seed in range(first, end):
        yield make(seed, *filter(None, [options.size]))


def seed_of(source: str) -> int:
    """The seed that a saved program's docstring ends with."""
    docstring = ast.get_docstring(ast.parse(source)) or "0"
    return int(docstring.split()[-1].rstrip("."))


def _save(job: Job, outcome: Outcome, directory: Path) -> None:
    program, target = job
    directory.mkdir(parents=True, exist_ok=True)
    notes = [f"# {line}" for line in f"{target}: {outcome.kind}\n{outcome.detail}".splitlines()]
    path = directory / f"{target}_{program.seed}_{outcome.kind}.py"
    path.write_text(program.source + "\n" + "\n".join(notes) + "\n")


def _shrunk(job: Job, outcome: Outcome, limit: float) -> Job:
    """The job with a smaller program; each try has a process of its own kind of patience."""

    def fails(program: Program) -> bool:
        ((_, found),) = outcomes([(program, job[1])], 1, limit)
        return found.kind == outcome.kind and _alike(found, outcome)

    return shrink(job[0], fails), job[1]


def _alike(a: Outcome, b: Outcome) -> bool:
    return a.kind != "internal" or a.reason.split(":")[0] == b.reason.split(":")[0]


def _print_table(targets: list[str], counts: Counter, reasons: Counter) -> None:
    columns = (*_KINDS, "split")
    print(f"\n{'':16}" + "".join(f"{kind:>9}" for kind in columns))
    for target in targets:
        print(f"{target:16}" + "".join(f"{counts[target, kind]:>9}" for kind in columns))
    for (target, _, reason), count in reasons.most_common():
        print(f"{count:6} {target}: {reason}")


def _run() -> int:
    """`main`, which ends where nobody reads on."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes it
        code = 1
    return code


if __name__ == "__main__":
    sys.exit(_run())
