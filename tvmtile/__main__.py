"""`python -m tvmtile`: what there is to ask from a shell."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tvmtile.cache import Store, cache_directory, clear_cache
from tvmtile.errors import TileError
from tvmtile.target import HOW_WRITTEN


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line says.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the process where absent.
    """
    parser = argparse.ArgumentParser(prog="python -m tvmtile")
    kinds = parser.add_subparsers(dest="command", required=True)
    cache = kinds.add_parser("cache", help="what is kept on disk")
    cache.add_argument(
        "action",
        nargs="?",
        choices=_CACHE,
        default="list",
        help="list its entries, remove them, or print where they are",
    )
    lower = _about_a_file(kinds, "lower", "print kernels as the passes leave them")
    lower.add_argument("--after", help="stop after the last pass whose name has this in it")
    lower.add_argument("--diff", action="store_true", help="show what each pass changes")
    source = _about_a_file(kinds, "source", "print the generated code")
    source.add_argument("--kernel-only", action="store_true", help="leave out the host's part")
    _about_a_file(kinds, "check", "compile kernels, and report what is wrong")
    profile = _about_a_file(
        kinds, "profile", "measure kernels, and compare with the device's limits"
    )
    profile.add_argument("--emulate", action="store_true", help="count bank conflicts instead")
    profile.add_argument(
        "--extent",
        action="append",
        default=[],
        type=_extent,
        metavar="NAME=VALUE",
        help="of a dynamic shape",
    )
    kinds.add_parser("info", help="versions, the machine, targets, operators")
    given = parser.parse_args(arguments)
    if given.command == "cache":
        _CACHE[given.action]()
        return
    from tvmtile import commands

    if given.command != "info":
        given.target = given.target or ["llvm"]
    getattr(commands, given.command)(given)


def _about_a_file(kinds: Any, name: str, text: str) -> Any:
    parser = kinds.add_parser(name, help=text)
    parser.add_argument("file", help="a file with kernels, or file.py:name for one of them")
    parser.add_argument(
        "--target",
        action="append",
        help=f"llvm by default; {HOW_WRITTEN}. check takes several",
    )
    return parser


def _extent(written: str) -> tuple[str, int]:
    name, _, value = written.partition("=")
    try:
        return name, int(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{written!r} is no NAME=VALUE of an integer") from None


def _list() -> None:
    place = cache_directory()
    if place is None:
        print("there is no cache")
        return
    store = Store(place, 0)
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
    "path": lambda: print(cache_directory() or "there is no cache"),
}

if __name__ == "__main__":
    try:
        main()
    except TileError as error:  # it says where in the user's file; frames of ours say nothing
        sys.exit(f"{type(error).__name__}: {error}")
