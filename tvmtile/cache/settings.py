"""Settings of the cache: its directory, its limit, and whether there is one."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from tvmtile.cache.store import Store
from tvmtile.errors import InvalidValue, warn

_MEGABYTES = 4096
_switched: bool | None = None
"""The wish of this process; None where the environment decides."""


def enable_cache() -> None:
    """Keep what is compiled from now on, and load what was kept."""
    global _switched
    _switched = True


def disable_cache() -> None:
    """Compile everything again from now on, and keep nothing."""
    global _switched
    _switched = False


def is_cache_enabled() -> bool:
    """Tell whether kernels are kept on disk.

    They are, unless `TVMTILE_DISABLE_CACHE` is 1, true, yes or on, or `disable_cache` was called.
    """
    if _switched is not None:
        return _switched
    given = os.environ.get("TVMTILE_DISABLE_CACHE", "")
    return given.lower() not in ("1", "true", "yes", "on")


def cache_directory() -> Path | None:
    """The cache's directory: `TVMTILE_CACHE_DIR`, or the user's for caches; None without either.

    A user without a home directory has none, as in some containers.
    """
    named = os.environ.get("TVMTILE_CACHE_DIR")
    try:
        directory = Path(named).expanduser() if named else _user_directory()
    except (RuntimeError, OSError, KeyError):  # there is no such user, or none knows where he lives
        return None
    return directory if named or directory.is_absolute() else None


def _user_directory() -> Path:
    try:
        from platformdirs import user_cache_path
    except ModuleNotFoundError:  # tvmtile runs from a checkout that was not installed
        return Path.home() / ".cache" / "tvmtile"
    return user_cache_path("tvmtile", appauthor=False)


def current_store() -> Store | None:
    """The cache, or None where it is disabled or can't be, which a warning says once."""
    if not is_cache_enabled():
        return None
    directory = _found(os.environ.get("TVMTILE_CACHE_DIR"))
    if directory is None:
        return None
    return _store(directory, _limit(os.environ.get("TVMTILE_CACHE_SIZE", "")))


@lru_cache(maxsize=16)
def _found(named: str | None) -> Path | None:
    """The directory, which is looked for once."""
    directory = cache_directory()
    if directory is None:
        place = f"TVMTILE_CACHE_DIR={named} names" if named else "this user has"
        warn(
            f"{place} no directory, so that nothing that is compiled is kept: TVMTILE_CACHE_DIR says "
            "where to keep it, TVMTILE_DISABLE_CACHE=1 that nothing is to be"
        )
    return directory


@lru_cache(maxsize=16)
def _store(directory: Path, limit: int) -> Store:
    return Store(directory, limit)


def _limit(megabytes: str) -> int:
    """Bytes."""
    if megabytes and not megabytes.isdecimal():
        raise InvalidValue(
            f"TVMTILE_CACHE_SIZE={megabytes}", help="give a number of megabytes, as 4096"
        )
    return int(megabytes or _MEGABYTES) << 20


def clear_cache() -> None:
    """Remove all that the cache holds, also where it is disabled."""
    directory = cache_directory()
    if directory is not None:
        _store(directory, _limit("")).clear()
