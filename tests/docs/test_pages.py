"""The programs of a page, in their order, are a script that runs and prints what the page shows."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "docs" / "through_the_passes.md"
"""Its programs are put there when the site is built."""
FIGURES = ROOT / "docs" / "speed.md"
"""A page without programs."""
PAGES = [ROOT / "README.md", *sorted({*(ROOT / "docs").glob("*.md")} - {FIGURES})]


def without_lines(text: str) -> str:
    """A message without the file and the lines, which are those of the whole page here."""
    return re.sub(r"--> \S+|line \d+", "", text)


class Page:
    """Runs programs; what one prints, or the error that it ends with, may be in the next block."""

    def __init__(self, path, file, capsys):
        self._run = PythonEvaluator()
        self._capsys = capsys
        self._error = None
        parsers = [
            CodeBlockParser("python", evaluator=self.program),
            CodeBlockParser("text", evaluator=self.shown),
        ]
        self.examples = list(Sybil(parsers).parse(path).examples())
        # The page without its prose: the source of kernels is read from a file, at their lines.
        lines = [""] * len(path.read_text().splitlines())
        for example in self.examples:
            example.path = str(file)
            example.namespace["__name__"] = "page"
            if example.region.evaluator == self.program:
                first = example.line + example.parsed.line_offset
                program = example.parsed.splitlines()
                lines[first : first + len(program)] = program
        file.write_text("\n".join(lines))

    def program(self, example):
        self.nothing_is_wrong()
        self._capsys.readouterr()
        try:
            self._run(example)
        except Exception as error:  # noqa: BLE001 - it may be what the page shows
            self._error = error

    def shown(self, example):
        printed, error = self._capsys.readouterr().out, self._error
        if error is not None:
            printed, self._error = f"{type(error).__name__}: {error}\n", None
        assert without_lines(printed).startswith(without_lines(example.parsed))

    def nothing_is_wrong(self):
        if self._error is not None:
            raise self._error


@pytest.mark.full
@pytest.mark.usefixtures("own_operators")
@pytest.mark.parametrize("path", [x for x in PAGES if x != GENERATED], ids=lambda path: path.stem)
def test_the_programs_of_a_page_run(path, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TVMTILE_CACHE_DIR", str(tmp_path / "cache"))  # the autotuner measures
    module = types.ModuleType("page")
    module.__file__ = str(tmp_path / "page.py")
    monkeypatch.setitem(sys.modules, "page", module)  # where Python looks for the source of classes
    page = Page(path, tmp_path / "page.py", capsys)
    assert page.examples
    for example in page.examples:
        example.evaluate()
    page.nothing_is_wrong()
