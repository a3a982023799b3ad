"""`python -m tests.mutation`: plant mistakes in copies of the tree, and say which the tests find.

    python -m tests.mutation --known-only --tier full      # what once found each: minutes
    python -m tests.mutation --tier fast --jobs 8
    python -m tests.mutation --only tma_box_of_whole_row --tests "-k copy"
    python -m tests.mutation --tree ../old --jobs 64 --seconds 540 --json found.json
    python -m tests.mutation --tree ../old --jobs 64 --resume found.json --json found.json
    python -m tests.mutation --paths tests/fuzz --tier full --json fuzz.json
    python -m tests.mutation --table found.json fast.json  # of reports: the table in tests/README.md

After `pytest --cov=tvmtile --cov-context=test`, `--coverage .coverage` leaves out the tests that do not
execute a mutant's lines.

A test that fails without a mutant shows nothing and is left out. The exit status is 1 if a mutant was
not found.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from tests.mutation.hunt import Baseline, Hunt, Settings, Verdict
from tests.mutation.mutants import Mutant, all_mutants
from tests.mutation.reach import reach
from tests.mutation.table import table
from tests.mutation.trees import Trees

_ROOT = Path(__file__).resolve().parents[2]
_FOUND = Path(__file__).with_name("found.json")
"""The tests that find each mutant: it must stay so."""


def main() -> int:
    """Run what the command line asks for."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if options.table:
        print(table([Path(path) for path in options.table]))
        return 0
    end = time.monotonic() + options.seconds
    known = {verdict.name: verdict for verdict in _decided(options.resume)}
    wanted = _wanted(options, known)
    directory = options.directory or Path(tempfile.mkdtemp(prefix="mutation-"))
    try:
        return _run(options, directory, wanted, known, end)
    finally:
        if options.directory is None:
            shutil.rmtree(directory, ignore_errors=True)


def _run(
    options: argparse.Namespace,
    directory: Path,
    wanted: dict[str, Mutant],
    known: dict[str, Verdict],
    end: float,
) -> int:
    trees = Trees(options.tree.resolve(), directory.resolve())
    settings = Settings(
        arguments=[*_tier(options), *shlex.split(options.tests)],
        paths=options.paths,
        jobs=options.jobs,
        timeout=options.timeout,
        end=end,
        known_only=options.known_only,
        known={verdict.name: verdict.by for verdict in _decided(options.known)},
    )
    baseline = Baseline()
    if options.baseline and options.baseline.exists():
        kept = json.loads(options.baseline.read_text(encoding="utf-8"))
        baseline = Baseline(set(kept["broken"]), kept["durations"])
    if options.coverage:
        baseline.reach = reach(options.coverage, options.tree.resolve(), wanted.values())
    hunt = Hunt(trees, settings, baseline)
    if not options.known_only and not baseline.durations:
        hunt.measure()
        seconds = sum(baseline.durations.values())
        print(
            f"without a mutant: {len(baseline.durations)} tests, {seconds:.0f} s, "
            f"{len(baseline.broken)} tests fail",
            flush=True,
        )
        if options.baseline:
            facts = {"broken": sorted(baseline.broken), "durations": baseline.durations}
            options.baseline.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    for verdict in hunt.verdicts(wanted.values()):
        known[verdict.name] = verdict
        if verdict.result == "open":
            continue
        print(
            f"{verdict.result:>12}  {verdict.name}  {verdict.seconds:.0f} s  {verdict.by}"
            f"  {verdict.message.splitlines()[0][:100] if verdict.message else ''}",
            flush=True,
        )
        _write(options.json, known)
    for name in wanted:
        known.setdefault(name, Verdict(name))
    _write(options.json, known)
    counts = Counter(verdict.result for verdict in known.values())
    print(", ".join(f"{number} {result}" for result, number in counts.most_common()))
    still_open = [name for name, verdict in known.items() if verdict.result == "open"]
    if still_open:
        print("open: --only " + ",".join(still_open))
    return int(counts["found"] != len(known))


def _write(path: Path | None, verdicts: dict[str, Verdict]) -> None:
    if path is not None:
        ordered = [asdict(verdicts[name]) for name in sorted(verdicts)]
        path.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")


def _decided(path: Path | None) -> list[Verdict]:
    """Verdicts of an earlier run, where it came to one."""
    if path is None or not path.exists():
        return []
    verdicts = [Verdict(**facts) for facts in json.loads(path.read_text(encoding="utf-8"))]
    return [verdict for verdict in verdicts if verdict.result in ("found", "not found")]


def _wanted(options: argparse.Namespace, known: dict[str, Verdict]) -> dict[str, Mutant]:
    mutants = all_mutants()
    names = (
        options.only.split(",") if options.only else [name for name in mutants if name not in known]
    )
    if unknown := [name for name in names if name not in mutants]:
        raise SystemExit(f"no mutants are called {', '.join(unknown)}")
    return {name: mutants[name] for name in names}


def _tier(options: argparse.Namespace) -> list[str]:
    """The arguments that run a tier; the tests of old had parameters for it."""
    conftest = (options.tree / "tests" / "conftest.py").read_text(encoding="utf-8")
    if '"--tier"' in conftest:
        return [f"--tier={options.tier}"]
    return [] if options.tier == "fast" else ["--all-parameters", "--all-architectures"]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--only", default="", help="names of mutants, with commas")
    add("--tier", default="fast", choices=("fast", "full", "nightly"))
    add("--paths", nargs="+", default=["tests"], help="where the tests are that take part")
    add("--tests", default="", metavar="ARGUMENTS", help="more arguments of pytest")
    add(
        "--tree", type=Path, default=_ROOT, help="whose tests and compiler; this one's where absent"
    )
    add("--jobs", type=int, default=1, help="processes at once")
    add("--timeout", type=float, default=120.0, help="seconds after which a test hangs")
    add("--seconds", type=float, default=float("inf"), help="stop after them; the rest is open")
    add("--json", type=Path, help="where to write the report")
    add("--resume", type=Path, help="a report: what it decides is not run again")
    add("--known", type=Path, default=_FOUND, help="a report: what found a mutant there runs first")
    add("--known-only", action="store_true", help="nothing else runs")
    add("--coverage", type=Path, help="which lines each test executes")
    add("--baseline", type=Path, help="what the tests do without a mutant: read, or written")
    add("--directory", type=Path, help="for the copies, to keep what the emulators compiled")
    add("--table", nargs="+", help="reports, whose names are the columns of a table")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
