"""The cache on disk: what was compiled once is loaded by the next process.

It holds compiled kernels, machine code of GPUs, what the emulators compiled and what was tuned.
`TVMTILE_CACHE_DIR` says where it is, `TVMTILE_CACHE_SIZE` how many megabytes it may have;
`TVMTILE_DISABLE_CACHE=1` does without. `python -m tvmtile cache` shows it. What a process needs for a
while is in its scratch directory. No other module names a file that the user did not.
"""

from tvmtile.cache.directory import scratch_directory, scratch_file
from tvmtile.cache.settings import (
    cache_directory,
    clear_cache,
    current_store,
    disable_cache,
    enable_cache,
    is_cache_enabled,
)
from tvmtile.cache.store import KINDS, CacheEntry, Store, digest

__all__ = [
    "KINDS",
    "CacheEntry",
    "Store",
    "cache_directory",
    "clear_cache",
    "current_store",
    "digest",
    "disable_cache",
    "enable_cache",
    "is_cache_enabled",
    "scratch_directory",
    "scratch_file",
]
