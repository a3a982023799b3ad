"""TileLang's names that have no place of their own here: module paths, settings, options, helpers.

`absent`, `ignored` and `transform` are tables that the compiler reads: names that are not here, options
that change nothing, keys of `pass_configs`. All else stands on top of it.
"""

from __future__ import annotations

import importlib
import sys
import types

PATHS = {
    "carver.arch": "tvmtile.carver.devices",
    "carver.arch.driver": "tvmtile.carver.devices",
    "carver.roller": "tvmtile.carver.templates",
    "carver.roller.hint": "tvmtile.carver.templates",
    "carver.roller.rasterization": "tvmtile.carver.templates",
    "carver.template": "tvmtile.carver.templates",
    "contrib": None,
    "contrib.cc": "tvm.support.cc",
    "contrib.nvcc": "tvmtile.compat.nvcc",
    "cuda": None,
    "cuda.language": "tvmtile.language",
    "engine": "tvmtile.compat.engine",
    "engine.callback": "tvmtile.compat.engine",
    "engine.lower": "tvmtile.compat.engine",
    "engine.param": "tvmtile.compat.engine",
    "env": "tvmtile.compat.env",
    "language.dtypes": "tvmtile.language",
    "tileop.base": "tvmtile.tileop.gemm",
    "tools": "tvmtile.compat.tools",
    "tools.analyzer": "tvmtile.compat.tools",
    "transform": "tvmtile.compat.transform",
    "utils": "tvmtile.compat.utils",
    "utils.device": "tvmtile.compat.utils",
    "utils.target": "tvmtile.compat.utils",
    "utils.tensor": "tvmtile.compat.utils",
}
"""Modules of TileLang, and the module whose names each has under `tvmtile`; None of a mere package."""


class _Module(types.ModuleType):
    """A module of TileLang, which looks up its names where they are when it is asked for one."""

    def __getattr__(self, name: str) -> object:
        path = self.__name__.removeprefix("tvmtile.")
        source = PATHS[path]
        if source is not None and (name == "__all__" or not name.startswith("__")):
            module = importlib.import_module(source)
            if hasattr(module, name):
                return getattr(module, name)
        child = f"{path}.{name}"
        if child in PATHS:
            return importlib.import_module(PATHS[child] or f"tvmtile.{child}")
        from tvmtile.compat.absent import no_attribute

        raise no_attribute(path if path == "env" else "tvmtile", self, name)

    def __dir__(self) -> list[str]:
        source = PATHS[self.__name__.removeprefix("tvmtile.")]
        return [] if source is None else dir(importlib.import_module(source))


def install() -> None:
    """Let TileLang's module paths be imported; what they name is loaded when it is asked for."""
    for path, source in PATHS.items():
        name = f"tvmtile.{path}"
        module = _Module(name, f"`{source or 'submodules'}`, under TileLang's name.")
        module.__path__ = []  # a package: of another submodule Python says that there is none
        sys.modules[name] = module
