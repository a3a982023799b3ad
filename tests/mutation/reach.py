"""Tests that execute the lines of a mutant."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from tests.mutation.mutants import Mutant


def reach(data: Path, tree: Path, mutants: Iterable[Mutant]) -> dict[str, set[str]]:
    """The tests that do, of each mutant for which that is known.

    It is not known of what runs when a module is imported, and of what is not Python.

    Parameters
    ----------
    data : Path
        What `pytest --cov=tvmtile --cov-context=test` has written in `tree`.
    """
    from coverage import CoverageData

    covered = CoverageData(str(data))
    covered.read()
    found: dict[str, set[str]] = {}
    for mutant in mutants:
        file = tree / mutant.file
        by_line = covered.contexts_by_lineno(str(file))
        tests: set[str] = set()
        for line in _lines(file.read_text(encoding="utf-8"), mutant):
            tests.update(context.partition("|")[0] for context in by_line[line])
        if tests and "" not in tests:
            found[mutant.name] = tests
    return found


def _lines(text: str, mutant: Mutant) -> set[int]:
    """The lines of the statements that a mutant replaces, or stand around its text."""
    before, _, _ = text.partition(mutant.find)
    first = before.count("\n") + 1
    last = first + mutant.find.count("\n")
    if not mutant.file.endswith(".py"):
        return set()
    starts = {node.lineno for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)}
    return {max(start for start in starts if start <= first)} | {
        start for start in starts if first <= start <= last
    }
