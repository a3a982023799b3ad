"""A row of the table of PTX instructions, and what parts of the table share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

NUMBERS = {
    "f16": "kF16",
    "bf16": "kBf16",
    "tf32": "kTf32",
    "e4m3": "kE4m3",
    "e5m2": "kE5m2",
    "s8": "kS8",
    "u8": "kU8",
    "f32": "kF32",
    "f64": "kF64",
    "s32": "kS32",
    "e2m3": "kE2m3",
    "e3m2": "kE3m2",
    "e2m1": "kE2m1",
    "ue8m0": "kUe8m0",
    "ue4m3": "kUe4m3",
}
"""The runtime's names of the types of numbers."""


@dataclass(frozen=True)
class Instruction:
    """A row of the table."""

    name: str
    """As PTX has it."""
    call: str
    """The instruction in C++."""
    operands: int
    """How many groups of operands it takes."""
    since: int = 80
    """The compute capability that has it."""
    definitions: Callable[[], str] = str
    """The tables that the call names, in C++."""
    is_background: bool = False
    """Whether its first operand is written later, and others in braces are read then.

    The call gets where their registers are.
    """


def table(name: str, pairs: Iterable[tuple[int, int]], pair: str = "std::uint8_t[2]") -> str:
    """An array of pairs of bytes in C++: a string, of which a compiler reads thousands in no time."""
    values = tuple(itertools.chain.from_iterable(pairs))
    text = "".join(f"\\{value:03o}" for value in values)
    return (
        f"static const auto& {name} = reinterpret_cast<const "
        f'std::type_identity_t<{pair}> (&)[{len(values) // 2}]>("{text}");\n'
    )


def hopper(name: str, call: str, operands: int) -> Instruction:
    """A row of sm_90."""
    return Instruction(name, f"::emulator::ptx::{call}", operands, 90)
