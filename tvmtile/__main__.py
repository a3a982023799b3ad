"""`python -m tvmtile`: what there is to ask from a shell."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

from tvmtile.cache import Store, cache_directory, clear_cache

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line says.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the process where absent.
    """
    parser = argparse.ArgumentParser(prog="python -m tvmtile")
    commands = parser.add_subparsers(dest="command", required=True)
    cache = commands.add_parser("cache", help="what is kept on disk")
    cache.add_argument(
        "action",
        nargs="?",
        choices=_CACHE,
        default="list",
        help="list its entries, remove them, or print where they are",
    )
    given = parser.parse_args(arguments)
    _CACHE[given.action]()


def _list() -> None:
    store = Store(cache_directory(), 0)
    entries = sorted(store.entries(), key=lambda entry: entry[2], reverse=True)
    for directory, size, used in entries:
        facts = store.facts(directory)
        print(
            f"{time.strftime('%Y-%m-%d %H:%M', time.localtime(used))} {size / 1024:9.1f} KB  "
            f"{directory.parent.name:8} {facts.get('name', '?'):24} {facts.get('target', '')}"
        )
    total = sum(size for _, size, _ in entries)
    print(f"{len(entries)} entries, {total / (1 << 20):.1f} MB in {store.directory}")


_CACHE: dict[str, Callable[[], None]] = {
    "list": _list,
    "clear": clear_cache,
    "path": lambda: print(cache_directory()),
}

if __name__ == "__main__":
    main()
