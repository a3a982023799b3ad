"""The programs of the page about tuning run."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tuning.md"


def test_the_programs_do_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TVMTILE_CACHE_DIR", str(tmp_path / "cache"))
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    block = "\n".join(blocks)
    file = tmp_path / "page.py"  # the source of a tile program is read from its file
    file.write_text(block)
    scope: dict[str, object] = {"__name__": "page", "__file__": str(file)}
    exec(compile(block, str(file), "exec"), scope)
    assert "; torch" in capsys.readouterr().out
    assert scope["kernel"].config is not None
