"""The README shows what happens; its programs are run as those of all pages are."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


def test_the_first_program_is_short():
    kernel = blocks("python")[0].partition("@tvmtile.jit")[2].partition("return C")[0]
    assert len(kernel.splitlines()) <= 25


@pytest.mark.full
def test_the_error_is_what_a_terminal_shows(tmp_path):
    right, wrong = "B_shared = T.alloc_shared((block_K, block_N)", "(block_N, block_K)"
    program = blocks("python")[0]
    assert right in program
    file = tmp_path / "matmul.py"
    file.write_text(program.replace(right, right.replace("(block_K, block_N)", wrong)))
    run = subprocess.run(
        [sys.executable, file.name], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode != 0
    (shown,) = blocks("console")
    assert run.stderr.replace(f"{tmp_path}/", "").endswith(shown)


@pytest.mark.parametrize("command", ["demo", "test", "docs", "help"])
def test_the_commands_exist(command):
    makefile = (Path(__file__).resolve().parents[2] / "Makefile").read_text()
    assert f"make {command}" in README
    assert re.search(rf"^{command}:", makefile, flags=re.MULTILINE)
