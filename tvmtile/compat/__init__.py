"""TileLang's names that have no place of their own here: module paths, settings, options, helpers.

`absent`, `ignored` and `transform` are tables that the compiler reads: names that are not here, options
that change nothing, keys of `pass_configs`. All else stands on top of the compiler.
"""

from __future__ import annotations

import importlib
import sys
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

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

    def __setattr__(self, name: str, value: object) -> None:
        # Python says so of a submodule: `engine.lower` stays the function, though there is a module.
        if not isinstance(value, _Module):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        source = PATHS[self.__name__.removeprefix("tvmtile.")]
        return [] if source is None else dir(importlib.import_module(source))


class _Finder(MetaPathFinder, Loader):
    """Makes these modules, which are packages: of another submodule Python says that there is none."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        is_ours = name.startswith("tvmtile.") and name.removeprefix("tvmtile.") in PATHS
        return ModuleSpec(name, self, is_package=True) if is_ours else None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        source = PATHS[spec.name.removeprefix("tvmtile.")]
        return _Module(spec.name, f"`{source or 'submodules'}`, under TileLang's name.")

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    """Let TileLang's module paths be imported.

    In front of Python's own finders, to which a folder without a module, as an older version of this
    package leaves behind where it is a checkout, is a package too.
    """
    sys.meta_path.insert(0, _Finder())
