"""PTX instructions that the emulator knows: one row an instruction.

A row is an instruction's name and the C++ call that does what it means. In the call, `{0}`, `{1}`, ...
are the operands as they stand in the text, those in braces together as an array; `{line}` is where the
kernel asks for it. An instruction that no row has is an error that names it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from tvmtile.instructions.matrices import ALONG_COLUMNS, ALONG_ROWS, MATRICES
from tvmtile.instructions.mma import ATOMS, SPARSE_ATOMS, Atom, lane_map, metadata_map

__all__ = ["ROWS", "Instruction", "find"]


@dataclass(frozen=True)
class Instruction:
    """A row of the table.

    Attributes
    ----------
    name : str
        As PTX has it.
    call : str
        What it is in C++.
    operands : int
        How many groups of operands it takes.
    since : int
        The compute capability that has it.
    definitions : callable
        The tables that the call names, in C++.
    """

    name: str
    call: str
    operands: int
    since: int = 80
    definitions: Callable[[], str] = str


def _places(name: str, axes: tuple[Sequence[object], Sequence[object]]) -> str:
    """A lane map as an array: row and column by lane and element."""
    places = itertools.chain.from_iterable(lane_map(axes))  # type: ignore[arg-type]
    pairs = ", ".join(f"{{{row}, {column}}}" for row, column in places)
    return f"static const std::uint8_t {name}[][2] = {{{pairs}}};\n"


# Matrices of 8x8 -----------------------------------------------------------------------------------


@cache
def _matrix_places() -> str:
    return _places("emulator_rows", ALONG_ROWS) + _places("emulator_columns", ALONG_COLUMNS)


def _matrices() -> list[Instruction]:
    rows = []
    powers = [count for count in (1, 2, 4) if count <= MATRICES]
    for count, trans in itertools.product(powers, (False, True)):
        suffix = f"m8n8.x{count}{'.trans' * trans}"
        places = "emulator_columns" if trans else "emulator_rows"
        for space in ("shared", "shared::cta"):
            load = f"::emulator::ptx::ldmatrix({{line}}, {places}, {{0}}, {count}, {{1}})"
            store = f"::emulator::ptx::stmatrix({{line}}, {places}, {{0}}, {{1}}, {count})"
            rows += [
                Instruction(
                    f"{name}.sync.aligned.{suffix}.{space}.b16", call, 2, since, _matrix_places
                )
                for name, call, since in (("ldmatrix", load, 75), ("stmatrix", store, 90))
            ]
    move = "::emulator::ptx::movmatrix({line}, emulator_columns, emulator_rows, {0}, {1})"
    rows.append(Instruction("movmatrix.sync.aligned.m8n8.trans.b16", move, 2, 75, _matrix_places))
    return rows


# Products of matrices ------------------------------------------------------------------------------

_NUMBERS = {
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
}
_SUMS = {"float32": "f32", "float64": "f64", "int32": "s32"}


def _elements(axes: object) -> int:
    return len(lane_map(axes)[0])  # type: ignore[arg-type]


def _definition_of(name: str, atom: Atom) -> str:
    maps = {"a": atom.a, "b": atom.b, "sums": atom.c}
    text = "".join(_places(f"{name}_{part}", axes) for part, axes in maps.items())
    pieces = metadata_map(atom) if atom.sparse else []
    if pieces:
        listed = ", ".join(f"{{{p.row}, {p.first}, {p.lane}, {p.shift}, {p.bits}}}" for p in pieces)
        text += f"static const ::emulator::MetadataPiece {name}_metadata[] = {{{listed}}};\n"
    fields = [
        f'"{atom.instruction}"',
        *map(str, (atom.m, atom.n, atom.k, atom.stored_k)),
        *(f"::emulator::Number::{_NUMBERS[t]}" for t in (*atom.dtypes, _SUMS[atom.sums])),
        *(str(_elements(axes)) for axes in maps.values()),
        *(f"{name}_{part}" for part in maps),
        f"{name}_metadata" if pieces else "nullptr",
        str(len(pieces)),
        str(atom.place_bits),
    ]
    return f"{text}static const ::emulator::Mma {name} = {{{', '.join(fields)}}};\n"


def _products() -> list[Instruction]:
    tables = (*ATOMS.values(), *SPARSE_ATOMS.values())
    rows = []
    for number, atom in enumerate(itertools.chain.from_iterable(tables)):
        name = f"emulator_mma_{number}"
        operands = "{0}, {1}, {2}, {3}" + ", {4}, {5}" * atom.sparse
        rows.append(
            Instruction(
                atom.instruction,
                f"::emulator::ptx::mma({{line}}, {name}, {operands})",
                6 if atom.sparse else 4,
                definitions=lambda name=name, atom=atom: _definition_of(name, atom),  # type: ignore[misc]
            )
        )
    return rows


# Copies and barriers -------------------------------------------------------------------------------


def _copies() -> list[Instruction]:
    rows = []
    hints = ("", ".L2::64B", ".L2::128B", ".L2::256B")
    for level, hint in itertools.product(("ca", "cg"), hints):
        for space in ("shared", "shared::cta"):
            name = f"cp.async.{level}.{space}.global{hint}"
            call = f'::emulator::ptx::cp_async({{line}}, "cp.async.{level}", {{0}}, {{1}}, {{2}}, '
            rows += [Instruction(name, call + "{2})", 3), Instruction(name, call + "{3})", 4)]
    return [
        *rows,
        Instruction("cp.async.commit_group", "::emulator::ptx::cp_async_commit()", 0),
        Instruction("cp.async.wait_group", "::emulator::ptx::cp_async_wait({line}, {0})", 1),
        Instruction("cp.async.wait_all", "::emulator::ptx::cp_async_wait_all({line})", 0),
    ]


def _barriers() -> list[Instruction]:
    rows = []
    for name in ("bar", "barrier", "bar.cta", "barrier.cta"):
        for suffix in ("sync", "sync.aligned"):
            call = "::emulator::ptx::bar_sync({line}, {0}"
            rows += [
                Instruction(f"{name}.{suffix}", f"{call})", 1),
                Instruction(f"{name}.{suffix}", f"{call}, {{1}})", 2),
            ]
        for suffix in ("arrive", "arrive.aligned"):
            call = "::emulator::ptx::bar_arrive({line}, {0}, {1})"
            rows.append(Instruction(f"{name}.{suffix}", call, 2))
    return [*rows, Instruction("bar.warp.sync", "__syncwarp({0}, {line})", 1)]


ROWS: tuple[Instruction, ...] = (*_matrices(), *_products(), *_copies(), *_barriers())
"""All instructions, each with a number of operands once."""
_BY_NAME = {(row.name, row.operands): row for row in ROWS}
if len(_BY_NAME) != len(ROWS):
    raise ValueError("two rows are for the same instruction")


def find(name: str, operands: int) -> Instruction | None:
    """The row of an instruction with so many groups of operands."""
    return _BY_NAME.get((name, operands))
