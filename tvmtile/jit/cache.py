"""TileLang's switches of its cache on disk, which there is not: a jitted function keeps its kernels."""

from __future__ import annotations

from tvmtile.errors import warn

__all__ = ["disable_cache", "enable_cache", "is_cache_enabled"]


def enable_cache() -> None:
    """Accepted with a warning: nothing is kept on disk."""
    warn("tvmtile.enable_cache has no effect: kernels are not kept on disk")


def disable_cache() -> None:
    """Keep nothing on disk, as it is."""


def is_cache_enabled() -> bool:
    """Tell whether kernels are kept on disk: they are not."""
    return False
