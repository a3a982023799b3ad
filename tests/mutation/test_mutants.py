from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.mutants import all_mutants
from tests.mutation.table import table

_ROOT = Path(__file__).resolve().parents[2]
_FOUND = Path(__file__).with_name("found.json")
"""A report: the mutants that the tests are known to find."""


def test_mutants_replace_text_that_is_in_their_file_once() -> None:
    for mutant in all_mutants().values():
        changed = mutant.applied((_ROOT / mutant.file).read_text(encoding="utf-8"))
        if mutant.file.endswith(".py"):
            ast.parse(changed, mutant.name)


def test_what_is_found_is_what_the_readme_says() -> None:
    readme = (_ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    assert [row for row in table([_FOUND]).splitlines()[2:] if row not in readme] == []


@pytest.mark.nightly
def test_mutants_that_were_found_still_are(tmp_path: Path) -> None:
    verdicts = json.loads(_FOUND.read_text(encoding="utf-8"))
    known = {item["name"] for item in verdicts if item["result"] == "found"} & all_mutants().keys()
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "tests.mutation", "--tier", "full", "--known-only"]
    command += ["--only", ",".join(sorted(known))]
    command += ["--jobs", str(os.cpu_count()), "--json", str(report)]
    subprocess.run(command, cwd=_ROOT, check=False)
    verdicts = json.loads(report.read_text(encoding="utf-8"))
    assert [item["name"] for item in verdicts if item["result"] != "found"] == []
