"""What the runtime reports, in words."""

from __future__ import annotations

import re
from typing import NamedTuple

from tvmtile.errors import MetalEmulationError
from tvmtile.testing.metal.abi import Access, Failure, Report

__all__ = ["Context", "error_of"]

_SPACES = ("device", "threadgroup")
_DOES = ("reads", "writes", "atomically reads", "atomically writes")
_DID = ("read", "wrote", "atomically read", "atomically wrote")
_HELP = {
    Failure.RACE: "put a threadgroup_barrier between the two accesses, with the flag of that memory",
    Failure.UNINITIALIZED: "write it first, and put a barrier between",
    Failure.DIVERGENCE: "every thread must get there: move it out of the branch or the early return",
    Failure.MISALIGNED: "align the index, or access it by a narrower or a packed type",
    Failure.DIVISION: "guard the division; Metal's result is undefined",
    Failure.STACK: "keep arrays of that size in threadgroup or device memory",
    Failure.ENDLESS: "if the kernel is right and only long, give it more time: `seconds`",
    Failure.NOT_UNIFORM: "all lanes of a simdgroup pass the same: the function adds the lane's part",
}

Position = tuple[int, int, int]


class Context(NamedTuple):
    """What a report needs to be understood: the kernel, its source, and its threadgroup's shape."""

    kernel: str
    source: str
    threads: Position


def _position(index: int, extent: Position) -> Position:
    x, y, _ = extent
    return index % x, index // x % y, index // (x * y)


class _Words:
    """The parts of a message."""

    def __init__(self, report: Report, line: int, context: Context) -> None:
        self.report = report
        self.line = line
        self.context = context
        self.failure = Failure(report.failure)
        self.thread = _position(max(report.thread, 0), context.threads)
        self.group: Position = tuple(report.threadgroup)
        self.other_group: Position = tuple(report.other_threadgroup)
        self.other = (
            None if report.other_thread < 0 else _position(report.other_thread, context.threads)
        )
        self.operation = report.operation.decode()
        self.other_operation = report.other_operation.decode()
        self.in_buffer = report.space >= 0

    @property
    def buffer(self) -> str | None:
        if self.failure is Failure.OUT_OF_BOUNDS and self.operation:
            return self.subscripted()
        name = self.report.buffer.decode()
        return name or None

    @property
    def index(self) -> int | None:
        if not self.in_buffer:
            return self.report.offset if self.failure is Failure.OUT_OF_BOUNDS else None
        return self.report.offset // max(self.report.element_bytes, 1)

    @property
    def element(self) -> str:
        """`A[17]`, with the byte where that is not the element's first."""
        if not self.in_buffer:
            return "memory of no buffer"
        byte = self.report.offset % max(self.report.element_bytes, 1)
        return f"{self.buffer}[{self.index}]" + (f" (byte {byte} of it)" if byte else "")

    @property
    def memory(self) -> str:
        return f"{_SPACES[self.report.space]} memory"

    @property
    def extent(self) -> str:
        elements = self.report.buffer_bytes // max(self.report.element_bytes, 1)
        return f"{self.buffer} has {elements} elements"

    def source_line(self, line: int) -> str:
        lines = self.context.source.splitlines()
        if not 0 < line <= len(lines):
            return ""
        return f"\n  line {line}: {lines[line - 1].strip()}"

    def subscripted(self) -> str | None:
        """The array whose index the compiler's own check refused, which knows only its type."""
        extent = re.search(r"\[\d+\]", self.operation)
        names = set(re.findall(r"([A-Za-z_]\w*)\s*\[", self.source_line(self.line)))
        if extent is not None and len(names) > 1:
            declared = rf"\s(\w+)(?:\[[^\]]*\])*{re.escape(extent[0])}"
            names &= set(re.findall(declared, self.context.source))
        return names.pop() if len(names) == 1 else None

    # --- one sentence a failure

    def race(self) -> str:
        who = f"thread {self.other}"
        if self.other_group != self.group:
            who += f" of threadgroup {self.other_group}"
        did = _DID[Access(self.report.other_access)]
        does = _DOES[Access(self.report.access)]
        between = (
            "and no barrier is between"
            if self.other_group == self.group
            else "and nothing orders two threadgroups"
        )
        return f"race: thread {self.thread} {does} {self.element}, which {who} {did}, {between}"

    def out_of_bounds(self) -> str:
        if not self.in_buffer and self.operation:
            array = f"{self.buffer}, {self.operation}" if self.buffer else self.operation
            index = f"index {self.index} of {array}"
            return f"out of bounds: thread {self.thread} takes {index}"
        does = _DOES[Access(self.report.access)]
        where = f"; {self.extent}" if self.in_buffer else ""
        return f"out of bounds: thread {self.thread} {does} {self.element}{where}"

    def uninitialized(self) -> str:
        if self.operation:
            which = "" if self.other_operation == "matrix" else f" {self.other_operation!r}"
            return (
                f"never written: {self.operation} takes matrix{which}, "
                f"of which thread {self.thread} wrote nothing"
            )
        return (
            f"never written: thread {self.thread} reads {self.element}, "
            "which no thread of its threadgroup wrote"
        )

    def divergence(self) -> str:
        waits = f"divergence: thread {self.thread} waits in {self.operation} (line {self.line})"
        if self.other_operation:
            return (
                f"{waits}, but thread {self.other} in {self.other_operation} "
                f"(line {self.report.other_line})"
            )
        return f"{waits}, but thread {self.other} has returned"

    def misaligned(self) -> str:
        return (
            f"misaligned: thread {self.thread} accesses {self.element} as {self.operation}, "
            f"which must lie at a multiple of {self.report.size} bytes"
        )

    def threadgroup_memory(self) -> str:
        return (
            f"threadgroup memory: {self.buffer} takes {self.report.buffer_bytes} bytes, "
            f"which makes {self.report.size} together: more than a threadgroup has"
        )

    def not_uniform(self) -> str:
        return (
            f"not uniform: {self.operation} gets another {self.other_operation} from thread "
            f"{self.other} than from the first lane of its simdgroup"
        )

    def invalid_lane(self) -> str:
        return (
            f"invalid lane: {self.operation} of thread {self.thread} needs lane "
            f"{self.report.offset}, which its simdgroup does not have"
        )

    def read_only(self) -> str:
        return f"read-only: thread {self.thread} writes {self.element}, which is const"

    def division(self) -> str:
        return f"division: thread {self.thread} divides an integer by zero, or the lowest one by -1"

    def stack(self) -> str:
        return f"stack: thread {self.thread} has more than 240 KiB of variables, or recurses"

    def endless(self) -> str:
        return (
            f"endless: the threadgroup did not end in its time; thread {self.thread} is in a loop"
        )

    def resources(self) -> str:
        return "the emulator could not get the memory for this launch"


def error_of(report: Report, line: int, context: Context) -> MetalEmulationError:
    """Make the exception of a report.

    Parameters
    ----------
    report : Report
        What the runtime filled in.
    line : int
        The line of the Metal source, 0 if it is not known.
    context : Context
        The launch.

    Returns
    -------
    MetalEmulationError
        To be raised.
    """
    words = _Words(report, line, context)
    kind = words.failure.name.lower()
    sentence = getattr(words, kind)()
    other_line = report.other_line if report.other_line != line else 0
    return MetalEmulationError(
        f"kernel {context.kernel!r}: {sentence}\n  in threadgroup {words.group}"
        f"{words.source_line(line)}{words.source_line(other_line)}",
        help=_HELP.get(words.failure),
        kind=kind,
        kernel=context.kernel,
        buffer=words.buffer,
        index=words.index,
        threads=(words.thread,) if words.other is None else (words.thread, words.other),
        threadgroup=words.group,
        line=line or None,
    )
