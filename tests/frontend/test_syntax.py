"""Each form of Python's syntax is traced, or refused with a text: there is a row that has it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.messages.table import rows

HERE = Path(__file__).parent
FILES = [HERE / "traced.txt", HERE.parent / "messages" / "python.txt"]
KINDS = (ast.stmt, ast.expr, ast.pattern, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
ELSEWHERE = {
    **dict.fromkeys(["AsyncFor", "AsyncWith", "AsyncFunctionDef", "Await"], "of `async def`"),
    **dict.fromkeys(["TypeAlias", "TryStar", "TemplateStr", "Interpolation"], "newer than 3.10"),
    "Slice": "an index, which is `ast.Subscript`",
}
"""Forms that no row has: `test_source.py` refuses `async def`."""


def forms(kind):
    """The classes of a kind that Python's own parser makes."""
    for each in kind.__subclasses__():
        if each.__module__ in ("ast", "_ast") and not each.__doc__.startswith("Deprecated"):
            yield each.__name__


def used(function):
    return {type(node).__name__ for node in ast.walk(function)}


@pytest.fixture(scope="module")
def shown():
    """The forms in kernels and macros of the rows."""
    programs = [ast.parse(row.program("none")) for file in FILES for row in rows(file)]
    return set().union(
        *(
            used(node)
            for program in programs
            for node in ast.walk(program)
            if isinstance(node, ast.FunctionDef) and node.decorator_list
        )
    )


def test_each_form_has_a_row(shown):
    named = {name for kind in KINDS for name in forms(kind)}
    assert named - shown - ELSEWHERE.keys() == set()
    assert len(named) > 70
