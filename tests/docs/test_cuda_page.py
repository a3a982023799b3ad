"""The program of the page about CUDA runs, on a machine without a GPU."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cuda.md"


def test_the_program_does_what_the_page_says(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    block = "\n".join(blocks)
    file = tmp_path / "page.py"  # the source of a tile program is read from its file
    file.write_text(block)
    scope: dict[str, object] = {"__name__": "page", "__file__": str(file)}
    exec(compile(block, str(file), "exec"), scope)
    assert scope["used"].shared == 3 * 2 * 128 * 32 * 2
