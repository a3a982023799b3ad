"""Instructions of warps and warpgroups on matrices, by the lane maps of their rows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache

from tvmtile.emulator.cuda.row import NUMBERS, Instruction, hopper, table
from tvmtile.instructions.matrices import ALONG_COLUMNS, ALONG_ROWS, MATRICES
from tvmtile.instructions.mma import ATOMS, SPARSE_ATOMS, Atom, lane_map, metadata_map
from tvmtile.instructions.wgmma import FAMILIES, Family, Wgmma, sum_map


def matrix_rows() -> list[Instruction]:
    """All of them."""
    return [
        *_matrices(),
        *_products(),
        *_of_warpgroups(),
    ]


def _places(name: str, axes: tuple[Sequence[object], Sequence[object]]) -> str:
    """A lane map as an array: row and column by lane and element."""
    return table(name, itertools.chain.from_iterable(lane_map(axes)))  # type: ignore[arg-type]


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
        *(f"::emulator::Number::{NUMBERS[t]}" for t in (*atom.dtypes, _SUMS[atom.sums])),
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


def _operands_of(family: Family) -> tuple[int, ...]:
    """The counts of operands: d, a, b, predicate, scales, and for 16 bits which are transposed."""
    if family.sums == "int32":
        return (4,)
    return (7, 8) if family.transposes else (6,)


def _of_warpgroups() -> list[Instruction]:
    rows = []
    for family in FAMILIES.values():
        for row in family:
            name = f"emulator_wgmma_{row.n}_{'_'.join(row.names)}"
            for operands in _operands_of(family):
                listed = ", ".join(
                    ["(std::uint32_t* const*){0}", *(f"{{{i}}}" for i in range(1, operands))]
                )
                rows.append(
                    Instruction(
                        row.instruction,
                        f"::emulator::ptx::wgmma({{line}}, {name}, {listed})",
                        operands,
                        90,
                        lambda name=name, row=row: _wgmma_definition(name, row),  # type: ignore[misc]
                        is_background=True,
                    )
                )
    return [
        *rows,
        hopper("wgmma.fence.sync.aligned", "wgmma_fence()", 0),
        hopper("wgmma.commit_group.sync.aligned", "wgmma_commit({line})", 0),
        hopper("wgmma.wait_group.sync.aligned", "wgmma_wait({line}, {0})", 1),
        *(
            hopper(f"griddepcontrol.{n}", "launch_order()", 0)
            for n in ("wait", "launch_dependents")
        ),
        *(
            hopper(
                f"setmaxnreg.{way}.sync.aligned.u32", f"set_registers({{line}}, {{0}}, {more})", 1
            )
            for way, more in (("inc", "true"), ("dec", "false"))
        ),
    ]


def _wgmma_definition(name: str, row: Wgmma) -> str:
    sums = itertools.chain.from_iterable(sum_map(row))
    of_a = next(atom for atom in ATOMS[row.dtypes] if atom.k == row.k)
    types = ", ".join(f"::emulator::Number::{NUMBERS[t]}" for t in (*row.names, _SUMS[row.sums]))
    return (
        f"{_places(f'{name}_a', of_a.a)}"
        f"{table(f'{name}_sums', sums, '::emulator::Place')}"
        f"static const ::emulator::Wgmma {name} = "
        f'{{"{row.instruction}", {row.n}, {row.k}, {types}, {name}_a, {name}_sums}};\n'
    )
