"""The cases of `<folder>/<pass>.tvmscript`, programs before and after a pass; see `tests/README.md`."""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

_BLOCK = re.compile(r"((?:^# .*\n)+)((?:^(?!# ).*\n)+)", re.MULTILINE)
_HOLE = re.compile(r"^( *)\.\.\.\n", re.MULTILINE)
_KERNEL = re.compile(
    r"^( *)for (\w+)(?:, (\w+))? in kernel\(([^,\n]+)(?:, ([^\n]+))?\):\n((?:\1 +.*\n)*)",
    re.MULTILINE,
)
_LOOPS = re.compile(
    r"^( *)for (\w+) in T\.thread_binding\(\s*(\w+), (?:thread=)?\"blockIdx.x\",\s*"
    r"annotations=\{\"tvmtile.kernel\": True\}\s*\):\n"
    r"(?:\1    for (\w+) in T\.thread_binding\((\w+), (?:thread=)?\"threadIdx.x\"\):\n)?"
    r"((?:\1 +.*\n)*)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Rewrite:
    """A program before and after a pass."""

    file: Path
    block: str  # its lines in the file
    header: str
    frame: str  # the lines around it, with a line `...` where it stands
    text: str  # with the marks - and +

    def __str__(self) -> str:
        return f"{self.file.parent.name}/{self.file.stem}: {self.header.partition('.')[0][2:]}"

    def option(self, name: str) -> str:
        """The value of `target` or `warns` in the header, or in that of the frame."""
        found = re.search(rf"^# {name}: (.*)$", self.header, re.MULTILINE)
        return found[1] if found else ""

    @property
    def before(self) -> str:
        """The program that the pass is given."""
        return self.program(sided(self.text, "-"))

    @property
    def after(self) -> str:
        """The program that it makes of it."""
        return self.program(sided(self.text, "+"))

    @property
    def changes(self) -> bool:
        """Tell whether the pass has something to do."""
        return re.search(r"^[-+]", self.text, re.MULTILINE) is not None

    def program(self, lines: str) -> str:
        """The whole program of lines that may stand in a frame, as TVM reads it."""
        if not re.match("def |@", lines):
            lines = _HOLE.sub(lambda hole: textwrap.indent(lines, hole[1]), self.frame)
        text = _KERNEL.sub(_loops, lines)
        return text if text.startswith("@") else f"@T.prim_func\n{text}"

    def written(self, printed: str) -> Rewrite:
        """The case in its file, where the pass makes the program that TVM has printed."""
        after = shortened(printed)
        if not re.match("def |@", self.text):
            head = self.frame.partition("...")[0].rstrip(" ")
            after = textwrap.dedent(after.removeprefix(head))
        text = merged(sided(self.text, "-"), after)
        new = self.block.removesuffix(self.text) + text
        self.file.write_text(self.file.read_text().replace(self.block, new, 1))
        return replace(self, text=text)


def rewrites(file: Path) -> Iterator[Rewrite]:
    """The cases of a file."""
    frame = shared = ""
    for block in _BLOCK.finditer(file.read_text()):
        header, text = block[1], block[2].rstrip("\n") + "\n"
        if text.endswith("\n---\n"):
            frame = text.removesuffix("---\n")
            shared = "".join(re.findall(r"^# \w+: .*\n", header, re.MULTILINE))
        else:
            framed = not re.match("def |@|[-+](def|@)", text)
            header = header + shared if framed else header
            yield Rewrite(file, block[1] + text, header, frame, text)


def sided(text: str, sign: str) -> str:
    """The lines with a mark, and those without one; in an indented line it stands for a space."""
    other = "+" if sign == "-" else "-"
    lines = [line for line in text.splitlines(keepends=True) if line.strip() and line[0] != other]
    return "".join(re.sub(rf"^\{sign}( ?)", r"\1\1", line) for line in lines)


def merged(before: str, after: str) -> str:
    """Both as one text with marks."""
    marked = lambda sign, line: sign + (line[1:] if line[0] == " " else line)
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    lines: list[str] = []
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for what, i, j, k, m in matcher.get_opcodes():
        if what == "equal":
            lines += old[i:j]
        else:
            lines += [marked("-", line) for line in old[i:j]]
            lines += [marked("+", line) for line in new[k:m]]
    return "".join(lines)


def _loops(kernel: re.Match[str]) -> str:
    """The loops over the blocks and the threads of `for bx, tx in kernel(blocks, threads):`."""
    indent, block, thread, blocks, threads, body = kernel.groups()
    note = 'annotations={"tvmtile.kernel": True}'
    text = f'{indent}for {block} in T.thread_binding({blocks}, thread="blockIdx.x", {note}):\n'
    if thread:
        text += f'{indent}    for {thread} in T.thread_binding({threads}, thread="threadIdx.x"):\n'
        body = textwrap.indent(body, "    ")
    return text + body


def shortened(program: str) -> str:
    """A function as a file has it."""
    return _LOOPS.sub(_kernel, program.removeprefix("@T.prim_func\n"))


def _kernel(loops: re.Match[str]) -> str:
    indent, block, blocks, thread, threads, body = loops.groups()
    if thread is None:
        return f"{indent}for {block} in kernel({blocks}):\n{body}"
    body = re.sub("^    ", "", body, flags=re.MULTILINE)
    return f"{indent}for {block}, {thread} in kernel({blocks}, {threads}):\n{body}"
