"""Rows of `tcgen05`: tensor memory, and products whose sums lie in it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tvmtile.emulator.cuda.row import NUMBERS, Instruction, table
from tvmtile.instructions.tensor_memory import (
    COPIES,
    DATAPATHS,
    KINDS,
    TRANSFERS,
    MmaKind,
    TensorCopy,
    Transfer,
)

_GROUPS = (1, 2)
_USES = {
    "fill": "kFill",
    "use": "kUse",
    "lastuse": "kLastUse",
    "discard": "kDiscard",
}


def _collectors(buffers: dict[str, int]) -> dict[str, str]:
    """The hardware's uses of a buffer for an operand, as PTX writes them: the C++ of each."""
    made = "::emulator::Collector({}, ::emulator::{})".format
    found = {
        f".collector::{name}::{use}": made(number, does)
        for name, number in buffers.items()
        for use, does in _USES.items()
    }
    return {"": made(min(buffers.values()), _USES["discard"]), **found}


_COLLECTORS = _collectors({"a": 0})
_STATIONARY = _collectors({f"b{i}": 1 + i for i in range(4)})


def tensor_core_rows() -> list[Instruction]:
    """All of them."""
    return [
        *_allocations(),
        *itertools.chain.from_iterable(map(_transfers, TRANSFERS.values())),
        *itertools.chain.from_iterable(map(_copies, COPIES)),
        *itertools.chain.from_iterable(map(_products, KINDS)),
        *_orders(),
    ]


def _row(name: str, call: str, operands: int, **more: object) -> Instruction:
    return Instruction(f"tcgen05.{name}", f"::emulator::ptx::{call}", operands, 100, **more)  # type: ignore[arg-type]


def _allocations() -> Iterator[Instruction]:
    for blocks in _GROUPS:
        group = f"cta_group::{blocks}.sync.aligned"
        for space in ("", ".shared::cta"):
            address = "::emulator::shared_address({0})"
            yield _row(
                f"alloc.{group}{space}.b32",
                f"tensor_alloc({{line}}, {blocks}, {address}, {{1}})",
                2,
            )
        yield _row(f"dealloc.{group}.b32", f"tensor_dealloc({{line}}, {blocks}, {{0}}, {{1}})", 2)
        yield _row(f"relinquish_alloc_permit.{group}", f"tensor_relinquish({{line}}, {blocks})", 0)


def _orders() -> Iterator[Instruction]:
    for what in ("ld", "st"):
        loads = str(what == "ld").lower()
        yield _row(f"wait::{what}.sync.aligned", f"tensor_wait({{line}}, {loads})", 0)
    yield _row("fence::before_thread_sync", "tensor_fence_before({line})", 0)
    yield _row("fence::after_thread_sync", "tensor_fence_after({line})", 0)
    for blocks, space in itertools.product(_GROUPS, ("", ".shared::cluster")):
        name = f"commit.cta_group::{blocks}.mbarrier::arrive::one{space}"
        call = f"tensor_commit({{line}}, {blocks}, ::emulator::shared_address({{0}})"
        yield _row(f"{name}.b64", f"{call})", 1)
        yield _row(f"{name}.multicast::cluster.b64", f"{call}, {{1}})", 2)


def _transfers(transfer: Transfer) -> Iterator[Instruction]:
    name = f"emulator_tensor_{transfer.name}"
    places = itertools.chain.from_iterable(transfer.places)
    registers = len(transfer.places[0])
    definition = (
        f"{table(f'{name}_places', places)}"
        f'static const ::emulator::TensorTransfer {name} = {{"{transfer.name}", {transfer.columns}, '
        f"{registers}, {str(transfer.is_split).lower()}, {name}_places}};\n"
    )
    for count, packs in itertools.product(transfer.repetitions, (False, True)):
        for way, kept in (("ld", "pack"), ("st", "unpack")):
            suffix = f".{kept}::16b" * packs
            head = f"{way}.sync.aligned.{transfer.name}.x{count}{suffix}.b32"
            loads = way == "ld"
            address, words = ("{1}", "{0}") if loads else ("{0}", "{1}")
            split = "0"
            if transfer.is_split:
                split, words = ("{2}", words) if loads else ("{1}", "{2}")
            how = f"{name}, {count}, {str(packs).lower()}"
            words = f"({'std::uint32_t* const*' if loads else 'const std::uint32_t*'}){words}"
            call = f"tensor_{way}({{line}}, {how}, {address}, {split}, {words})"
            operands = 2 + transfer.is_split
            yield _row(head, call, operands, definitions=lambda: definition, is_background=loads)


def _copies(copy: TensorCopy) -> Iterator[Instruction]:
    name = f"emulator_tensor_copy_{copy.name.replace('.', '_').replace('::', '_')}"
    each = len(copy.lanes[0])
    listed = ", ".join(map(str, itertools.chain.from_iterable(copy.lanes)))
    definition = (
        f"static const std::uint8_t {name}_lanes[] = {{{listed}}};\n"
        f'static const ::emulator::TensorCopy {name} = {{"tcgen05.cp.{copy.name}", {copy.rows}, '
        f"{copy.bits // 8}, {each}, {name}_lanes}};\n"
    )
    for blocks in _GROUPS:
        call = f"tensor_copy({{line}}, {name}, {blocks}, {{0}}, {{1}})"
        yield _row(f"cp.cta_group::{blocks}.{copy.name}", call, 2, definitions=lambda: definition)


def _products(kind: MmaKind) -> Iterator[Instruction]:
    """Operands: sum, A, B, descriptor, lanes left out or scales, whether the sum is added to."""
    for blocks in _GROUPS:
        group = f"cta_group::{blocks}.kind::{kind.name}"
        if kind.scales:
            for spelled, scales in kind.scales.items():
                name, definition = _definition(kind, blocks, False, scales)
                operands = f"{{0}}, {_A}, {{2}}, {{3}}, {{4}}, {{5}}, {{6}}"
                for collector, keeps in _COLLECTORS.items():
                    yield _row(
                        f"mma.{group}.block_scale{spelled}{collector}",
                        f"tensor_mma({{line}}, {name}, {keeps}, {operands})",
                        7,
                        definitions=lambda text=definition: text,
                    )
            continue
        name, definition = _definition(kind, blocks, False, 0)
        for (collector, keeps), count in itertools.product(_COLLECTORS.items(), (5, 6, 7)):
            rest = "".join(f", {{{i}}}" for i in range(4, count))
            call = f"tensor_mma({{line}}, {name}, {keeps}, {{0}}, {_A}, {{2}}, {{3}}{rest})"
            yield _row(
                f"mma.{group}{collector}",
                call,
                count,
                definitions=lambda text=definition: text,
            )
    if kind.stationary:
        name, definition = _definition(kind, 1, True, 0)
        for (collector, keeps), count in itertools.product(_STATIONARY.items(), (5, 6)):
            rest = ", {5}" * (count == 6)
            call = (
                f"tensor_mma_ws({{line}}, {name}, {keeps}, {{0}}, {_A}, {{2}}, {{3}}, {{4}}{rest})"
            )
            yield _row(
                f"mma.ws.cta_group::1.kind::{kind.name}{collector}",
                call,
                count,
                definitions=lambda text=definition: text,
            )


_A = "::emulator::Operand({1})"


def _definition(kind: MmaKind, blocks: int, stationary: bool, scales: int) -> tuple[str, str]:
    """The name of a kind's table, and the table."""
    name = f"emulator_tensor_mma_{kind.name}_{blocks}_{int(stationary)}_{scales}"
    rows = []
    for m, first, last, step in kind.extents(blocks, stationary):
        path = DATAPATHS[m, blocks, stationary]
        numbers = (m, first, last, step, path.rows, path.chunk, path.parts, path.apart)
        rows.append(f"{{{', '.join(map(str, numbers))}}}")
    spelled = f"tcgen05.mma{'.ws' * stationary}.kind::{kind.name}"
    flags = (kind.transposes, kind.negates, kind.saturates)
    return name, (
        f"static const ::emulator::TensorShape {name}_shapes[] = {{{', '.join(rows)}}};\n"
        f'static const ::emulator::TensorMma {name} = {{"{spelled}", {blocks}, {kind.k}, {scales}, '
        f"{', '.join(str(flag).lower() for flag in flags)}, "
        f"{_by_code(kind.formats, 8)}, {_by_code(kind.sums, 4)}, {_by_code(kind.scale_types, 2)}, "
        f"{name}_shapes, {len(rows)}}};\n"
    )


def _by_code(types: dict[int, str], codes: int) -> str:
    names = (NUMBERS.get(types.get(code, ""), "kNone") for code in range(codes))
    return "{" + ", ".join(f"::emulator::Number::{name}" for name in names) + "}"
