"""What people see when they make a mistake: in Python, and in a terminal."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import pytest

from tvmtile.errors import TileError, TileWarning

CATALOGUE = Path(__file__).with_name("mistakes.py")


def _load():
    spec = importlib.util.spec_from_file_location("mistakes", CATALOGUE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MISTAKES


MISTAKES = _load()
WARNINGS = {name for name, make in MISTAKES.items() if "TileWarning" in make.__doc__}
ERRORS = [name for name in MISTAKES if name not in WARNINGS]


def documented(name):
    """The lines of a mistake's docstring: the kind and the message, operands, a remedy."""
    lines = []
    for line in inspect.cleandoc(MISTAKES[name].__doc__).splitlines():
        if line.startswith("    "):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return lines


def marked_line(name):
    """The number and the text of the line that the message points at."""
    source, first = inspect.getsourcelines(MISTAKES[name])
    (offset,) = [i for i, line in enumerate(source) if line.rstrip().endswith("# <--")]
    return first + offset, source[offset].strip()


def expected(name):
    """The whole message, as a pattern."""
    lines = documented(name)
    if is_ours(name):
        number, text = marked_line(name)
        where = [f"  --> {CATALOGUE}:{number}", f"   |  {text}"]
        split = next((i for i, line in enumerate(lines) if line.startswith("  help: ")), len(lines))
        lines[split:split] = where
    return re.escape("\n".join(lines)).replace(re.escape("..."), ".*")


def is_ours(name):
    """Tell whether the error is tvmtile's own, not Python's."""
    return not documented(name)[0].startswith("TypeError")


@pytest.mark.parametrize("name", ERRORS)
def test_message(name):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the type is part of the text
        MISTAKES[name]()
    shown = f"{type(caught.value).__name__}: {caught.value}"
    assert re.fullmatch(expected(name), shown), shown
    assert isinstance(caught.value, TileError) == is_ours(name)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("name", sorted(WARNINGS))
def test_warning(name):
    number, _ = marked_line(name)
    with pytest.warns(TileWarning) as caught:
        MISTAKES[name]()
    (warning,) = caught
    assert f"TileWarning: {warning.message}" == documented(name)[0]
    assert (warning.filename, warning.lineno) == (str(CATALOGUE), number)


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(CATALOGUE), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )


@cache
def shown_by_script():
    """What a terminal shows of each mistake."""
    names, texts = [], []
    for line in run().stderr.splitlines():
        if line.startswith("=== "):
            names.append(line.removeprefix("=== "))
            texts.append([])
        else:
            texts[-1].append(line)
    return {name: "\n".join(lines) for name, lines in zip(names, texts, strict=True)}


FRAME = re.compile(r'^  File "([^"]*)", line (\d+), in (.*)$', re.MULTILINE)


def foreign_frames(traceback):
    """The functions that a traceback names and that are not in the user's file."""
    return [name for file, _, name in FRAME.findall(traceback) if file != str(CATALOGUE)]


@pytest.mark.parametrize("name", ERRORS)
def test_message_of_a_script(name):
    shown = shown_by_script()[name]
    ending = re.compile(rf"^(tvmtile\.errors\.)?{expected(name)}\Z", re.MULTILINE)
    assert ending.search(shown.rstrip("\n")), shown
    assert shown.count("Traceback (most recent call last):") == 1, shown
    entry_points = ("prim_func", "decorate", "_prim_func", "compile", "check", "__call__")
    frames = foreign_frames(shown)
    assert len(frames) <= 1, shown
    assert all(frame in entry_points for frame in frames), shown


@pytest.mark.parametrize("name", sorted(WARNINGS))
def test_warning_of_a_script(name):
    number, text = marked_line(name)
    assert shown_by_script()[name] == f"{CATALOGUE}:{number}: {documented(name)[0]}\n  {text}"


def test_script_of_every_mistake_makes_them_all():
    assert list(shown_by_script()) == list(MISTAKES)


def test_uncaught():
    """A script that ends with a mistake, found by a pass and carried through TVM."""
    done = run("serial_fragment")
    assert done.returncode == 1
    assert done.stdout == ""
    pattern = rf"^tvmtile\.errors\.{expected('serial_fragment')}\n\Z"
    assert re.search(pattern, done.stderr, re.MULTILINE)
    assert foreign_frames(done.stderr) == ["compile"]


def test_all_frames_on_request(monkeypatch):
    monkeypatch.setenv("TVM_BACKTRACE", "1")
    with pytest.raises(TileError) as caught:
        MISTAKES["undefined_name"]()
    assert "trace_prim_func" in [entry.name for entry in caught.traceback]


@pytest.mark.parametrize("name", sorted(WARNINGS))
def test_a_warning_that_is_an_error_keeps_its_type_and_loses_our_frames(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TileWarning) as caught:
            MISTAKES[name]()
    assert f"TileWarning: {caught.value}" == documented(name)[0]
    frames = [entry for entry in caught.traceback if entry.path not in (CATALOGUE, Path(__file__))]
    assert [entry.name for entry in frames] in (["compile"], ["prim_func"])
