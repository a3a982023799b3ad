"""Reports of the runtime, in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tvmtile.emulator.machine.abi import Failure, MemoryAccess, RunReport
from tvmtile.errors import EmulationError

_DOES = ("reads", "writes", "atomically reads", "atomically writes")
_DID = ("read", "wrote", "atomically read", "atomically wrote")
_HELP = {
    Failure.UNINITIALIZED: "write it first, and put a barrier between",
    Failure.DIVERGENCE: "every thread must get there: move it out of the branch or the early return",
    Failure.MISALIGNED: "align the index, or access it by a narrower type",
    Failure.DIVISION: "guard the division; its result is undefined",
    Failure.ENDLESS: "if the kernel is right and only long, give it more time: `seconds`",
}
_HELP_BETWEEN_BLOCKS = (
    "a barrier orders the threads of one block only: update the element atomically, or wait for the "
    "whole grid, T.sync_grid(), where the target can; blocks of a cluster wait for each other by "
    "T.cluster_sync()"
)

Position = tuple[int, int, int]


@dataclass(frozen=True)
class Vocabulary:
    """The words of a language for the parts of the machine."""

    error: type[EmulationError]
    """Of its reports."""
    block: str
    warp: str
    """Its names of a block and a warp."""
    spaces: tuple[str, str]
    """Its names of global memory and shared memory."""
    help: Mapping[Failure, str] = field(default_factory=dict)
    """Remedies in its own terms."""
    kinds: Mapping[Failure, str] = field(default_factory=dict)
    """Failures that it has a name of its own for."""
    agents: tuple[str, ...] = ()
    """Kinds of work that threads start in the background."""
    places: Mapping[str, Callable[[int], str]] = field(default_factory=dict)
    """By the name of memory that is no buffer of the program's, what it calls an element."""


class Context(NamedTuple):
    """The context of a report: the language, the kernel, its source, its block's shape."""

    words: Vocabulary
    kernel: str
    source: str
    threads: Position


def _type(name: str) -> str:
    """A type, as GCC and clang name it, in the same way."""
    meant = re.fullmatch(r"'.*' \(aka '(.*)'\)", name)
    return re.sub(r"\bstruct |<.*>| (?=\[)", "", f"'{meant[1]}'" if meant else name)


def _position(index: int, extent: Position) -> Position:
    x, y, _ = extent
    return index % x, index // x % y, index // (x * y)


class _Words:
    """The parts of a message."""

    def __init__(self, report: RunReport, line: int, context: Context) -> None:
        self.report = report
        self.line = line
        self.context = context
        self.names = context.words
        self.failure = Failure(report.failure)
        self.thread = _position(max(report.thread, 0), context.threads)
        self.block: Position = tuple(report.block)
        self.other_block: Position = tuple(report.other_block)
        self.other = (
            None if report.other_thread < 0 else _position(report.other_thread, context.threads)
        )
        self.operation = report.operation.decode()
        self.other_operation = report.other_operation.decode()
        self.in_buffer = report.space >= 0

    @property
    def buffer(self) -> str | None:
        if self.failure is Failure.OUT_OF_BOUNDS and self.operation and not self.report.agent:
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
        if (place := self.names.places.get(self.report.buffer.decode())) and self.index is not None:
            return place(self.index)
        byte = self.report.offset % max(self.report.element_bytes, 1)
        return f"{self.buffer}[{self.index}]" + (f" (byte {byte} of it)" if byte else "")

    @property
    def memory(self) -> str:
        return f"{self.names.spaces[self.report.space]} memory"

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

    def remedy(self) -> str | None:
        """The advice for the failure, in the language's terms where it has some."""
        if self.failure is Failure.UNINITIALIZED and self.other_operation and not self.operation:
            return "give it a value where it is declared"
        if self.failure is Failure.RACE and self.other_block != self.block:
            return _HELP_BETWEEN_BLOCKS
        return self.names.help.get(self.failure) or _HELP.get(self.failure)

    # --- one sentence a failure

    def race(self) -> str:
        did = _DID[MemoryAccess(self.report.other_access)]
        does = f"{self.agent} {_DOES[MemoryAccess(self.report.access)]}"
        between = "and no barrier is between"
        if self.other_block != self.block:
            between = f"and nothing orders two {self.names.block}s"
        elif self.report.other_agent:
            between = "and nothing between waits for that"
        return f"race: {does} {self.element}, which {self.other_agent} {did}, {between}"

    @property
    def elsewhere(self) -> str:
        """The place of the other thread, if that is another block."""
        if self.other_block == self.block:
            return ""
        return f" of {self.names.block} {self.other_block}"

    @property
    def agent(self) -> str:
        """The thread, or what it started."""
        return self._agent(self.report.agent, self.thread, self.operation)

    @property
    def other_agent(self) -> str:
        """The other thread, or what that started, and where it is."""
        name = self._agent(self.report.other_agent, self.other, self.other_operation)
        return name + self.elsewhere

    def _agent(self, kind: int, thread: Position | None, name: str) -> str:
        if not kind:
            return f"thread {thread}"
        return name or f"{self.names.agents[kind - 1]} of thread {thread}"

    def out_of_bounds(self) -> str:
        if not self.in_buffer and self.operation and not self.report.agent:
            array = _type(self.operation)
            array = f"{self.buffer}, {array}" if self.buffer else array
            index = f"index {self.index} of {array}"
            return f"out of bounds: thread {self.thread} takes {index}"
        does = f"{self.agent} {_DOES[MemoryAccess(self.report.access)]}"
        where = f"; {self.extent}" if self.in_buffer else ""
        return f"out of bounds: {does} {self.element}{where}"

    def uninitialized(self) -> str:
        if self.operation and not self.report.agent:
            which = "" if self.other_operation == "matrix" else f" {self.other_operation!r}"
            return (
                f"never written: {self.operation} takes matrix{which}, "
                f"of which thread {self.thread} wrote nothing"
            )
        if self.other_operation:
            return (
                f"never written: thread {self.thread} makes {self.element} of its variable "
                f"{self.other_operation}, which it has not written"
            )
        return (
            f"never written: thread {self.thread} reads {self.element}, "
            f"which no thread of its {self.names.block} wrote"
        )

    def divergence(self) -> str:
        waits = f"divergence: thread {self.thread} waits in {self.operation} (line {self.line})"
        if self.other_operation:
            return (
                f"{waits}, but thread {self.other}{self.elsewhere} in {self.other_operation} "
                f"(line {self.report.other_line})"
            )
        return f"{waits}, but thread {self.other}{self.elsewhere} has returned"

    def misaligned(self) -> str:
        return (
            f"misaligned: thread {self.thread} accesses {self.element} as {_type(self.operation)}, "
            f"which must lie at a multiple of {self.report.size} bytes"
        )

    def shared_memory(self) -> str:
        return (
            f"{self.names.spaces[1]} memory: {self.buffer} takes {self.report.buffer_bytes} bytes, "
            f"which makes {self.report.size} together: more than a {self.names.block} has"
        )

    def not_uniform(self) -> str:
        return (
            f"not uniform: {self.operation} gets another {self.other_operation} from thread "
            f"{self.other} than from the first lane of its {self.names.warp}"
        )

    def invalid_lane(self) -> str:
        return (
            f"invalid lane: {self.operation} of thread {self.thread} needs lane "
            f"{self.report.offset}, which its {self.names.warp} does not have"
        )

    def read_only(self) -> str:
        return f"read-only: thread {self.thread} writes {self.element}, which is const"

    def division(self) -> str:
        return f"division: thread {self.thread} divides an integer by zero, or the lowest one by -1"

    def overflow(self) -> str:
        return f"overflow: thread {self.thread} computes what no {self.other_operation} can hold"

    def shift(self) -> str:
        return (
            f"shift: thread {self.thread} shifts {_type(self.other_operation)}, which has "
            f"{self.report.size} bits, by {self.report.offset}"
        )

    def stack(self) -> str:
        return f"stack: thread {self.thread} has more than 240 KiB of variables, or recurses"

    def endless(self) -> str:
        return (
            f"endless: the {self.names.block} did not end in its time; "
            f"thread {self.thread} is in a loop"
        )

    def deadlock(self) -> str:
        waits = f"deadlock: thread {self.thread} waits in {self.operation} (line {self.line})"
        if self.other_operation:
            waits += (
                f", thread {self.other}{self.elsewhere} in {self.other_operation} "
                f"(line {self.report.other_line})"
            )
        return f"{waits}, and no thread can go on"

    def trap(self) -> str:
        return f"trap: thread {self.thread} gets to {self.operation}"

    def unsupported(self) -> str:
        return f"not emulated: {self.operation}, which thread {self.thread} gets to"

    def fence(self) -> str:
        does = f"{self.agent} {_DOES[MemoryAccess(self.report.access)]}"
        did = f"{self.other_agent} {_DID[MemoryAccess(self.report.other_access)]}"
        return f"fence: {does} {self.element}, which {did}, and no fence is between"

    def register(self) -> str:
        return f"register: thread {self.thread} touches a register of {self.operation} in flight"

    def protocol(self) -> str:
        return f"protocol: {self.operation}, which thread {self.thread} gets to"

    def resources(self) -> str:
        return "the emulator could not get the memory for this launch"


def error_of(report: RunReport, line: int, context: Context) -> EmulationError:
    """Make the exception of a report; the line is 0 if it is not known."""
    words = _Words(report, line, context)
    failure, names = words.failure, context.words
    sentence = getattr(words, failure.name.lower())()
    other_line = report.other_line if report.other_line != line else 0
    return names.error(
        f"kernel {context.kernel!r}: {sentence}\n  in {names.block} {words.block}"
        f"{words.source_line(line)}{words.source_line(other_line)}",
        help=words.remedy(),
        kind=names.kinds.get(failure, failure.name.lower()),
        kernel=context.kernel,
        buffer=words.buffer,
        index=words.index,
        threads=(words.thread,) if words.other is None else (words.thread, words.other),
        block=words.block,
        line=line or None,
    )
