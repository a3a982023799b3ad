"""The rows of the table: wrong programs, and what a person sees of each.

`tests/README.md` describes the form of the files.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROW = re.compile(r"(?P<code>(?:.*\n)*?)(?P<message>(?:>.*\n)+)")
FRAME = re.compile(r"(?P<frame>(?:.*\n)*?)---\n")
HOLE = re.compile(r"^( *)\.\.\.$", re.MULTILINE)
IMPORTS = """\
from __future__ import annotations
import numpy as np, torch, tvmtile
import tvmtile.language as T
"""


@dataclass
class Row:
    """A wrong program and what it shows, without the place that it points at."""

    file: Path
    index: int  # among the rows of its file
    frame: str  # the program around it
    code: str
    message: str
    shares: bool = False  # other programs show the same text

    def __str__(self) -> str:
        """Its title, or the line that the message points at."""
        lines = [line.removesuffix("# <--").strip() for line in self.code.splitlines()]
        marked = [line.removesuffix("# <--") for line in self.code.splitlines() if "# <--" in line]
        title = lines[0] if re.match("# (?!target:|accepted:)", lines[0]) else (marked or lines)[0]
        return f"{self.file.stem}: {title.removeprefix('#').strip()}"

    def targets(self, what: str = "target", default: str = "llvm") -> list[str]:
        """The targets where tracing finds nothing wrong; "accepted": those for which it is right.

        The frame says it for all of its rows.
        """
        named = re.search(rf"^# {what}: (.*)$", self.code + self.frame, re.MULTILINE)
        return (named[1] if named else default).split()

    def program(self, target: str, *, checked: bool = False) -> str:
        """The program that a person would run: it compiles the kernel, or checks it only."""
        text = self.code
        if not re.search("^@", text, re.MULTILINE):
            text = HOLE.sub(lambda hole: textwrap.indent(self.code, hole[1]), self.frame)
        if target != "none" and "compile(" not in text and "def kernel(" in text:
            named = target if not target.startswith("sm_") else {"kind": "cuda", "arch": target}
            backend = "auto" if target == "llvm" else "emulator"
            text += (
                f"from tvmtile.pipeline import check\ncheck(kernel, {named!r})\n"
                if checked
                else f"tvmtile.compile(kernel, target={named!r}, execution_backend={backend!r})\n"
            )
        return IMPORTS + text


def rows(file: Path) -> Iterator[Row]:
    """The rows of a file."""
    frame = ""
    for index, found in enumerate(ROW.finditer(file.read_text())):
        code = found["code"]
        while framed := FRAME.match(code):
            frame, code = framed["frame"], code[framed.end() :]
        programs = list(_programs(code.strip("\n")))
        for program in programs:
            yield Row(file, index, frame, program, found["message"], len(programs) > 1)


def _programs(code: str) -> Iterator[str]:
    """The programs of a row: marked lines alone, and what blank lines lie between."""
    targets = "".join(re.findall(r"^# (?:target|accepted): .*\n", code, re.MULTILINE))
    is_whole = re.search("^@", code, re.MULTILINE)
    for block in [code] if is_whole else re.split(r"\n\n+", code):
        lines = [line for line in block.splitlines() if not line.startswith("#")]
        if len(lines) > 1 and all(re.match(r"\S.*# <--$", line) for line in lines):
            yield from (f"{targets}{line}\n" for line in lines)
        else:
            yield (targets if targets not in f"{block}\n" else "") + block + "\n"


def write(row: Row, shown: str) -> None:
    """Write what a row shows in the place of its message."""
    text = row.file.read_text()
    start, end = list(ROW.finditer(text))[row.index].span("message")
    message = re.sub("^", "> ", shown, flags=re.MULTILINE) + "\n"
    row.file.write_text(text[:start] + message + text[end:])
