"""How many registers a thread of each role has."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.ir.operands import bits_of, static_shape
from tvmtile.ir.operators import operator_for
from tvmtile.ir.threads import REGISTER_FILE, WARPGROUP, registers_of_each
from tvmtile.passes.tile.pipelining import Unit
from tvmtile.passes.tile.specialization.candidates import Candidate
from tvmtile.passes.tile.specialization.skew import registers_held

_REGISTERS = {
    (256, False): (24, 240),
    (384, False): (32, 160),
    (256, True): (72, 216),
    (384, True): (56, 152),
}
"""Of a thread that copies, and of one that multiplies, by how many of these there are.

And whether threads copy elements, not one of them tiles. A multiprocessor has 65536. Blocks of other
sizes have enough for all, or none to move. Where threads compute tiles, see `_shares`.
"""


_MOST_REGISTERS, _STEP = 240, 8
_REGISTER_BITS = 32
_BESIDE_OPERANDS = 40
"""Of a thread that computes a tile: addresses, counters, what it computes with."""
_BESIDE_SUMS = 48
"""Of a thread that multiplies, so that it need not save any."""

LEAST_LOADED = 64
"""Registers that a thread loads at once, so that it pays to have threads for it."""


def moves_registers(consumers: int) -> bool:
    """Tell whether a block of so many threads that multiply moves registers to them."""
    return (consumers, False) in _REGISTERS


def consumer_registers(consumers: int, candidates: Sequence[Candidate]) -> int:
    """Registers of a thread that multiplies, at most."""
    shares = _shares(consumers, candidates)
    return registers_of_each(consumers + WARPGROUP) if shares is None else shares[1]


def registers_moved(
    consumers: int, candidates: Sequence[Candidate]
) -> tuple[list[tirx.Stmt], list[tirx.Stmt]]:
    """What moves registers from the producer's warpgroup to those of the consumers."""
    shares = _shares(consumers, candidates)
    if shares is None:
        return [], []
    move = operator_for("registers")
    few, many = shares
    return [tirx.Evaluate(move(few, False).to_call())], [tirx.Evaluate(move(many, True).to_call())]


def blocks_at_once(threads: int, held: int) -> int:
    """How many blocks a multiprocessor has registers for, whose threads hold so many."""
    return max(1, REGISTER_FILE // (threads * (held + _BESIDE_SUMS)))


def _shares(consumers: int, candidates: Sequence[Candidate]) -> tuple[int, int] | None:
    """Registers of a thread that copies, and of one that multiplies; None if none move.

    Threads that compute a tile load all of their elements before they need the first, so they get
    registers for these, of what the sums of those that multiply leave.
    """
    by_threads = any(each.by_threads for each in candidates)
    known = _REGISTERS.get((consumers, by_threads))
    wanted = max((registers_loaded(each) for each in candidates), default=0)
    if known is None or not wanted:
        return known
    sums = max(registers_held(each.units, each.order, consumers) for each in candidates)
    least, _ = known
    at_first = _whole(REGISTER_FILE // (consumers + WARPGROUP))
    pool = at_first * (consumers + WARPGROUP)  # which a block has: an increase waits for no others
    left = (pool - consumers * (sums + _BESIDE_SUMS)) // WARPGROUP
    few = min(max(least, _whole(min(wanted + _BESIDE_OPERANDS, left))), at_first)
    return few, min(_whole((pool - WARPGROUP * few) // consumers), _MOST_REGISTERS)


def _whole(registers: int) -> int:
    return registers // _STEP * _STEP


def registers_loaded(candidate: Candidate) -> int:
    """What a thread that computes the tiles of a loop loads for one of them, in registers."""
    computed = (candidate.units[number] for number in candidate.computed)
    return max(map(_loaded, computed), default=0)


def _loaded(unit: Unit) -> int:
    bits = [bits_of(var) for var in unit.reads if is_buffer_var(var)]
    elements = max(math.prod(static_shape(var)) for var in unit.writes)
    return -(-elements * max(bits, default=0) // _REGISTER_BITS // WARPGROUP)
