"""Options that change nothing: each that a function takes has a reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import tvmtile
from tvmtile.compat.ignored import IGNORED, warn_ignored
from tvmtile.errors import TileWarning

SOURCES = [path.read_text() for path in Path(tvmtile.__file__).parent.rglob("*.py")]
CALLS = [
    (node.args[0].value, keyword.arg)
    for source in SOURCES
    if "warn_ignored(" in source
    for node in ast.walk(ast.parse(source))
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "warn_ignored"
    for keyword in node.keywords
    if keyword.arg and isinstance(node.args[0], ast.Constant)
]


def test_each_option_that_is_warned_of_has_a_reason():
    assert len(CALLS) > 20
    for function, option in CALLS:
        with pytest.warns(TileWarning, match=f"{re.escape(function)}: {option} has no effect: "):
            warn_ignored(function, **{option: 1})


@pytest.mark.parametrize("row", IGNORED, ids=str)
def test_each_row_is_of_a_function_that_there_is(row):
    functions, _, _ = row
    names = {name for name, _ in CALLS} | {f"T.{name}" for name in dir(tvmtile.language)}
    assert [name for name in names if re.fullmatch(functions, name)]
