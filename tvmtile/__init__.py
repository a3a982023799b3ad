"""tvmtile: tile-level GPU kernels as a plugin for Apache TVM.

`import tvmtile.language as T` is the language; `tvmtile.jit` and `tvmtile.compile` make kernels that
torch tensors can be given to; `tvmtile.passes.LowerTilePrograms` lowers tile programs in any TVM flow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvmtile._version import __version__

if TYPE_CHECKING:
    from tvmtile.jit import Kernel, compile, jit

__all__ = ["Kernel", "__version__", "compile", "jit"]

_LAZY = ("Kernel", "compile")
_SUBMODULES = ("errors", "jit", "language", "passes", "target")


def __getattr__(name: str) -> Any:
    # TVM loads this package while it is being imported itself (see _plugin), so that nothing of it
    # can be imported here.
    import importlib

    if name in _LAZY:
        return getattr(importlib.import_module("tvmtile.jit"), name)
    if name in _SUBMODULES:
        return importlib.import_module(f"tvmtile.{name}")
    raise AttributeError(f"module 'tvmtile' has no attribute {name!r}")
