"""A plugin of pytest: TVM as another release may have it, and `tvmtile._tvm` as it would be for it.

Fields of TVM's nodes have other names. TVM itself and the tests still read the old ones; tvmtile is
refused them, and the run fails even where it would have gone on without.
"""

from __future__ import annotations

import sys
from importlib.abc import SourceLoader
from importlib.util import spec_from_loader
from pathlib import Path
from typing import Any

import pytest

RENAMED = {
    "source": ("tensor", "TensorLoad", "TensorRegion"),
    "indices": ("subscripts", "TensorLoad", "BufferStore"),
    "region": ("ranges", "TensorRegion"),
    "buffer": ("memory", "BufferStore", "AllocBuffer", "DeclBuffer"),
}
"""The fields, each with its new name, and the nodes that have it."""

_REFUSED: set[str] = set()


class _Adapted(SourceLoader):
    """Finds `tvmtile._tvm`, and loads it with the new names."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "tvmtile._tvm":
            return None
        self._path = f"{path[0]}/_tvm.py"
        return spec_from_loader(name, self)

    def get_filename(self, fullname: str) -> str:
        return self._path

    def get_data(self, path: Any) -> bytes:
        text = Path(path).read_text()
        for old, (new, *_) in RENAMED.items():
            assert f'attrgetter("{old}")' in text
            text = text.replace(f'attrgetter("{old}")', f'attrgetter("{new}")')
        return text.encode()


def _rename(node: type, old: str, new: str) -> None:
    field = node.__dict__[old]

    def read(value: Any) -> Any:
        reader = sys._getframe(1)
        if reader.f_globals["__name__"].startswith("tvmtile"):
            _REFUSED.add(f"{reader.f_globals['__name__']}:{reader.f_lineno}: {old}")
            raise AttributeError(f"{node.__name__} has no {old!r}")
        return field.__get__(value)

    setattr(node, new, field)
    setattr(node, old, property(read))


sys.meta_path.insert(0, _Adapted())
from tvm import ir, tirx  # noqa: E402

for _old, (_new, *_nodes) in RENAMED.items():
    for _node in _nodes:
        _rename(getattr(ir, _node, None) or getattr(tirx, _node), _old, _new)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _REFUSED:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for place in sorted(_REFUSED):
        terminalreporter.write_line(f"refused: {place}")
