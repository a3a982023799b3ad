"""The programs of the page about Metal run."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metal.md"


@pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler"
)
def test_the_programs_run_and_print_what_is_shown(tmp_path, capsys):
    page = PAGE.read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    (shown,) = re.findall(r"^```text\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) == 4
    file = tmp_path / "page.py"
    file.write_text("\n\n".join(blocks))
    runpy.run_path(str(file))
    assert capsys.readouterr().out.startswith(shown)
