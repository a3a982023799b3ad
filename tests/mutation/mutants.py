"""Planted mistakes: what a tired engineer might write, one file of them for each part of tvmtile.

    === a_name (kind)
    What it breaks, in one line.
    --- tvmtile/the_file.py
    text that occurs exactly once in it
    --- with
    text that takes its place

Text is taken as it stands, from its first line's first character on: it may be a part of a line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

TABLES = Path(__file__).parent / "mutants"
_ENTRY = re.compile(
    r"=== (?P<name>\w+) \((?P<kind>[^)]+)\)\n(?P<breaks>.+)\n--- (?P<file>\S+)\n"
    r"(?P<find>.*?)\n--- with\n(?P<replacement>.*)",
    re.DOTALL,
)


@dataclass(frozen=True)
class Mutant:
    """A mistake, as a replacement of text in a file."""

    name: str
    kind: str
    breaks: str
    file: str
    find: str
    replacement: str
    subject: str
    """The subject of its table."""

    def applied(self, text: str) -> str:
        """The file's text with the mistake.

        Raises
        ------
        ValueError
            If the text that it replaces is missing or there twice.
        """
        if (times := text.count(self.find)) != 1:
            raise ValueError(f"{self.name}: its text occurs {times} times in {self.file}")
        return text.replace(self.find, self.replacement)


def all_mutants() -> dict[str, Mutant]:
    """The mutants of all tables, by name."""
    found: dict[str, Mutant] = {}
    for table in sorted(TABLES.glob("*.txt")):
        for entry in re.split(r"\n+(?==== )", table.read_text(encoding="utf-8").strip("\n")):
            fields = _ENTRY.fullmatch(entry)
            if fields is None:
                raise ValueError(f"{table.name}: not an entry:\n{entry}")
            mutant = Mutant(**fields.groupdict(), subject=table.stem.replace("_", " "))
            if mutant.name in found:
                raise ValueError(f"{table.name}: two mutants are called {mutant.name}")
            found[mutant.name] = mutant
    return found
