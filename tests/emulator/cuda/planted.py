"""Mistakes planted in CUDA that TVM generates: steps of its protocols left out or off by one.

The source is compiled once. The kernel gets one more parameter, `mistake`: the number of the mistake
that it makes, from 1 on, or 0. What a call does is read off the PTX in the function that TVM wraps
around it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import tvmtile
from tests.running import assert_close
from tvmtile.emulator.cuda import compile_cuda
from tvmtile.errors import CudaEmulationError

_WRAPPER = re.compile(r"^__\S[^\n]*\bvoid (\w+)\([^;{]*\) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_KERNEL = re.compile(r'^(extern "C" __global__ .*\))( \{|;)$', re.MULTILINE)
_CALL = re.compile(r"^(?P<indent> +)(?P<name>\w+)\((?P<arguments>.*)\);$")
_PREDICATE = re.compile(r".*setp[^;]*;|.*LAB_WAIT:")
_INSTRUCTION = re.compile(r"(?:[a-z]\w*\.)+[\w.:]+(?: \d+;)?")
# Steps that a protocol may not leave out, by how they begin.
_STEPS = (
    "__syncthreads",
    "__syncwarp",
    "bar.",
    "barrier.",
    "cp.async.bulk.commit_group",
    "cp.async.bulk.wait_group",
    "cp.async.commit_group",
    "cp.async.mbarrier",
    "cp.async.wait_group",
    "fence.",
    "mbarrier.arrive",
    "mbarrier.expect_tx",
    "mbarrier.init",
    "mbarrier.try_wait",
    "wgmma.commit_group",
    "wgmma.fence",
    "wgmma.wait_group",
)
# Steps that may not be taken twice.
_NOT_TWICE = ("barrier.", "mbarrier.arrive", "mbarrier.expect_tx", "cp.async.mbarrier")
_OF_A_STAGE = (
    "cp.async.bulk.tensor",
    "cp.async.c",
    "mbarrier.arrive",
    "mbarrier.try_wait",
    "wgmma.mma",
)
# An arrival that publishes what was written, and the one that does not.
_PUBLISHES = {
    "barrier.cluster.arrive.release.aligned": "barrier.cluster.arrive.relaxed.aligned",
    "mbarrier.arrive.release.cluster.shared::cluster.b64": "mbarrier.arrive.shared::cluster.b64",
}
_GROUPS = re.compile(r"([\w.]*wait_group[\w.]*) (\d+);")
_STAGE = re.compile(r"\((\([^()]*\)|\w+) ([&%] \d+)\)")
ROW = 128  # bytes of a row of a swizzled tile


@dataclass(frozen=True)
class Mistake:
    """A mistake: what it is, the instruction, and the line of the source that has it."""

    what: str
    instruction: str
    line: str

    def __str__(self) -> str:
        return f"{self.what}: {self.line.strip()[:120]}"


def planted(source: str) -> tuple[str, list[Mistake]]:
    """The source of a kernel that makes the mistake it is told to, and the mistakes, in order."""
    instructions = dict(_instructions(source))
    head, start, body = source.rpartition('extern "C" __global__')
    mistakes: list[Mistake] = []
    lines = [_with_mistakes(line, instructions, mistakes) for line in body.split("\n")]
    whole = head + start + "\n".join(lines)
    return _KERNEL.sub(lambda found: f"{found[1][:-1]}, int mistake){found[2]}", whole), mistakes


def _instructions(source: str) -> Iterator[tuple[str, str]]:
    """The functions that TVM wraps around one instruction, with that."""
    yield "__syncthreads", "__syncthreads"
    yield "__syncwarp", "__syncwarp"
    for name, body in _WRAPPER.findall(source):
        called = re.fullmatch(r"\s*(__sync\w+)\(\);\s*", body)
        text = " ".join(re.findall(r'"([^"]*)"', body)).replace("\\n", " ")
        found = _INSTRUCTION.search(_PREDICATE.sub("", text))
        if called or found:
            yield name, called[1] if called else found[0]  # type: ignore[index]


def _with_mistakes(line: str, instructions: dict[str, str], mistakes: list[Mistake]) -> str:
    """A line that is wrong for the mistakes that it adds."""
    call = _CALL.match(line)
    if call is None:
        return line

    def number(what: str) -> int:
        known = [
            i for i, m in enumerate(mistakes, 1) if (m.what, m.instruction) == (what, instruction)
        ]
        if known and instruction.startswith("fence.mbarrier_init"):
            return known[0]  # one fence may stand for others: they are left out together
        mistakes.append(Mistake(what, instruction, line))
        return len(mistakes)

    instruction = instructions.get(call["name"], call["name"])
    arguments = _off(instruction, call["arguments"], number)
    text = f"{call['name']}({arguments});"
    if instruction.startswith(_STEPS):
        loose = _GROUPS.search(instruction)
        if loose is not None:
            asm = f'asm volatile("{loose[1]} {int(loose[2]) + 1};" : : : "memory");'
            text = f"if (mistake == {number('one group more left under way')}) {asm} else {text}"
        if instruction in _PUBLISHES:
            address, operand = (" _, [%0]", f'"r"({arguments})') if arguments else ("", "")
            asm = f'asm volatile("{_PUBLISHES[instruction]}{address};" : : {operand} : "memory");'
            text = f"if (mistake == {number('publishes nothing')}) {asm} else {text}"
        if instruction.startswith(_NOT_TWICE):
            text = f"if (mistake == {number('done twice')}) {{ {text} }} {text}"
        text = f"if (mistake != {number('left out')}) {{ {text} }}"
    return call["indent"] + text


def _off(instruction: str, arguments: str, number: Callable[[str], int]) -> str:
    """The arguments of a call, each off where it may be."""
    if instruction.startswith(_OF_A_STAGE) and not _hands_back(instruction, arguments):
        found = _STAGE.search(arguments)
        if found:
            mistake = number("the stage's index off by one")
            stage = f"(({found[1]} + (mistake == {mistake})) {found[2]})"
            arguments = arguments[: found.start()] + stage + arguments[found.end() :]
    if instruction.startswith("mbarrier.try_wait"):
        barrier, _, phase = arguments.rpartition(", ")
        return f"{barrier}, (({phase}) ^ (mistake == {number('the phase flipped')}))"
    if instruction.startswith("mbarrier.init"):
        barrier, _, count = arguments.rpartition(", ")
        more, less = number("an arrival more"), number("an arrival less")
        return f"{barrier}, {count} + (mistake == {more}) - (mistake == {less})"
    if "expect_tx" in instruction:
        barrier, _, size = arguments.rpartition(", ")
        more, less = number("a row of bytes more"), number("a row of bytes less")
        return f"{barrier}, {size} + {ROW} * (mistake == {more}) - {ROW} * (mistake == {less})"
    if instruction == "ptx_wgmma_encode_matrix_descriptor":
        return _descriptor_off(arguments, number)
    return arguments


def _hands_back(instruction: str, arguments: str) -> bool:
    """Tell whether a stage is handed back: in order, so that nothing is wrong with all off by one."""
    if instruction.startswith("mbarrier.try_wait"):
        return re.search(r"\^ 1\)+$|, \(1 - ", arguments) is not None
    return instruction.startswith("mbarrier.arrive.shared") and "full" not in arguments


def _descriptor_off(arguments: str, number: Callable[[str], int]) -> str:
    first, leading, stride, mode = arguments.rsplit(", ", 3)
    if leading != "1":  # which a swizzled operand along K has no use for
        mistake = number("half the leading dimension's offset")
        leading = f"(mistake == {mistake} ? {leading} / 2 : {leading})"
    half = number("half the stride's offset")
    narrower = number("the next narrower swizzle")
    return (
        f"{first}, {leading}, (mistake == {half} ? {stride} / 2 : {stride}), "
        f"{mode} - (mistake == {narrower})"
    )


@dataclass(frozen=True)
class Subject:
    """A kernel that runs in the emulator, and how its result is compared.

    Attributes
    ----------
    source, name, arch : str
        The CUDA source, its kernel, and what it is for.
    arguments : tuple
        Of a launch: arrays, tensor maps and numbers.
    launch : dict
        Grid, block, cluster and shared memory.
    result : Tensor
        What the kernel writes.
    expected : Tensor
        What that should be, in float64.
    added : bool
        The kernel adds to the result, which begins with zeros.
    precision : str
        The narrowest dtype that the result went through; its own where empty.
    """

    source: str
    name: str
    arch: str
    arguments: tuple[Any, ...]
    launch: dict[str, Any]
    result: torch.Tensor
    expected: torch.Tensor
    added: bool = False
    precision: str = ""

    def run(self, kernel: Any, *mistake: int, **options: Any) -> Any:
        """Run the kernel, or one of the same parameters, and compare; what it did."""
        self.result.view(torch.uint8).fill_(0 if self.added else 0xFF)  # which is NaN
        did = kernel(*self.arguments, *mistake, **self.launch, **options)
        assert_close(self.result, self.expected, self.precision)
        return did


def subject(
    program: Any, tensors: tuple[torch.Tensor, ...], expected: torch.Tensor, **options: Any
) -> Subject:
    """The only kernel of a tile program, as tvmtile launches it on Hopper; more as of `Subject`."""
    target = {"kind": "cuda", "arch": "sm_90a"}
    kernel = tvmtile.compile(program, target=target, execution_backend="emulator")
    ((name, source),) = kernel.adapter.sources.items()
    launches: list[tuple[Any, Any]] = []
    kernel.adapter._launched = lambda launch, arrays: launches.append((launch, arrays))
    kernel(*tensors)
    ((launch, arrays),) = launches
    how = {"grid": launch.grid, "block": launch.threads, "cluster": launch.cluster}
    how["shared_bytes"] = launch.shared_bytes
    arguments = (*arrays, *launch.scalars)
    return Subject(source, name, "sm_90a", arguments, how, tensors[-1], expected, **options)


def survivors(subject: Subject, seeds: int = 3, every: int = 1) -> Iterator[tuple[Mistake, str]]:
    """The mistakes that the emulator says nothing of, and whether the result is "right" or "wrong".

    A mistake is found if the emulator objects with one of the first seeds, at least.
    """
    text, mistakes = planted(subject.source)
    kernel = compile_cuda(text, arch=subject.arch).kernel(subject.name)
    subject.run(kernel, 0)
    for number, mistake in list(enumerate(mistakes, 1))[::every]:
        outcomes = []
        while len(outcomes) < seeds and "found" not in outcomes:
            outcomes.append(_outcome(subject, kernel, number, len(outcomes)))
        if "found" not in outcomes:
            yield mistake, "wrong" if "wrong" in outcomes else "right"


def _outcome(subject: Subject, kernel: Any, number: int, seed: int) -> str:
    try:
        subject.run(kernel, number, seed=seed)
    except CudaEmulationError:
        return "found"
    except AssertionError:
        return "wrong"
    return "right"
