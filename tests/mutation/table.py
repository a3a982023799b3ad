"""Reports side by side, as markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.mutation.mutants import Mutant, all_mutants

_KINDS = 4
"""How many kinds a row names, the most planted first."""


def table(reports: Sequence[Path]) -> str:
    """A row for each file of mutants; a column for each report, with how many of them it finds."""
    found = {report.stem: _found_by(report) for report in reports}
    mutants = list(all_mutants().values())
    lines = [
        f"| mistakes in | planted | {' | '.join(found)} |",
        "| --- |" + " --- |" * (1 + len(found)),
    ]
    for subject in dict.fromkeys(mutant.subject for mutant in mutants):
        planted = [mutant for mutant in mutants if mutant.subject == subject]
        kinds = Counter(mutant.kind for mutant in planted)
        named = ", ".join(kind for kind, _ in kinds.most_common(_KINDS))
        more = ", ..." if len(kinds) > _KINDS else ""
        lines.append(_row(f"{subject} ({named}{more})", planted, found.values()))
    return "\n".join([*lines, _row("all", mutants, found.values())])


def _row(title: str, planted: Sequence[Mutant], reports: Iterable[set[str]]) -> str:
    counts = [sum(mutant.name in report for mutant in planted) for report in reports]
    return f"| {title} | {' | '.join(map(str, [len(planted), *counts]))} |"


def _found_by(report: Path) -> set[str]:
    verdicts = json.loads(report.read_text(encoding="utf-8"))
    return {item["name"] for item in verdicts if item["result"] == "found"}
