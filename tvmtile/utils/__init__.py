"""Names of TileLang's package `utils` that kernels import."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    # All of tvmtile imports `utils.locks`, before there is a tvm that these could import.
    if name in ("device", "target", "tensor"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
