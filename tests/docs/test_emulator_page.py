"""The programs of the page about the emulator run."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "emulator.md"


def test_the_programs_run(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    file = tmp_path / "page.py"  # the source of a tile program is read from its file
    file.write_text("\n\n".join(blocks))
    runpy.run_path(str(file))
