"""Settings of this process, under the names of TileLang's module: `from tvmtile.env import env`.

They are tvmtile's own: the cache, and what is compiled for. Variables that steer TileLang's compiler
change nothing here, which is said when one is set.
"""

from __future__ import annotations

import os

from tvmtile.cache import cache_directory, disable_cache, enable_cache, is_cache_enabled
from tvmtile.compat.absent import no_attribute
from tvmtile.errors import warn

__all__ = ["disable_cache", "enable_cache", "env", "is_cache_enabled"]

_VARIABLES = {
    "TILELANG_CACHE_DIR": "TVMTILE_CACHE_DIR",
    "TILELANG_DEFAULT_TARGET": "TVMTILE_TARGET",
}
"""TileLang's name of a setting, and the variable that decides it here."""


class Environment:
    """Settings that are read, and set, as attributes."""

    enable_cache = staticmethod(enable_cache)
    disable_cache = staticmethod(disable_cache)
    is_cache_enabled = staticmethod(is_cache_enabled)

    def get_default_target(self) -> str:
        """The target of a kernel without one: "auto" is where its tensors are."""
        return os.environ.get("TVMTILE_TARGET", "auto")

    def __getattr__(self, name: str) -> object:
        if name == "TILELANG_CACHE_DIR":
            return str(cache_directory())
        if name == "TILELANG_DEFAULT_TARGET":
            return self.get_default_target()
        raise no_attribute("env", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in _VARIABLES:
            os.environ[_VARIABLES[name]] = str(value)
        else:
            warn(f"env.{name} has no effect: it steers TileLang's compiler")


env = Environment()


def __getattr__(name: str) -> object:
    if name in _VARIABLES:
        return getattr(env, name)
    raise AttributeError(name)
