"""Reports side by side, as markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from tests.mutation.mutants import all_mutants


def table(reports: Sequence[Path]) -> str:
    """A row for each mutant and a column for each report, which says what finds it."""
    columns = {report.stem: _found_by(report) for report in reports}
    mutants = all_mutants()
    counts = [f"**{sum(name in column for name in mutants)}**" for column in columns.values()]
    lines = [
        f"| mutant | what it breaks | {' | '.join(columns)} |",
        "| --- | --- |" + " --- |" * len(columns),
        f"| **{len(mutants)}** | found by | {' | '.join(counts)} |",
    ]
    for name, mutant in mutants.items():
        cells = [column.get(name, "no") for column in columns.values()]
        lines.append(f"| `{name}` | {mutant.breaks} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _found_by(report: Path) -> dict[str, str]:
    verdicts = json.loads(report.read_text(encoding="utf-8"))
    return {item["name"]: _short(item["by"]) for item in verdicts if item["result"] == "found"}


def _short(test: str) -> str:
    """`test_file::test_function` of a test's name."""
    file, _, name = test.partition("[")[0].partition("::")
    stem = PurePosixPath(file).stem
    return f"`{stem}::{name}`" if name else f"`{stem}`"
