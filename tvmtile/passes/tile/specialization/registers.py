"""How many registers a thread of each role has."""

from __future__ import annotations

from tvm import tirx

from tvmtile.ir.operators import operator_for
from tvmtile.ir.threads import WARPGROUP, registers_of_each

__all__ = ["moves_registers", "registers_moved", "registers_of"]

_REGISTERS = {
    (256, False): (24, 240),
    (384, False): (32, 160),
    (256, True): (72, 216),
    (384, True): (56, 152),
}
"""Of a thread that copies, and of one that multiplies, by how many of these there are.

And whether threads copy elements, not one of them tiles. A multiprocessor has 65536. Blocks of other
sizes have enough for all, or none to move.
"""


def moves_registers(consumers: int) -> bool:
    """Tell whether a block of so many threads that multiply moves registers to them."""
    return (consumers, False) in _REGISTERS


def registers_of(consumers: int, *, by_threads: bool) -> int:
    """Registers of a thread that multiplies, at most."""
    if (consumers, by_threads) in _REGISTERS:
        return _REGISTERS[consumers, by_threads][1]
    return registers_of_each(consumers + WARPGROUP)


def registers_moved(consumers: int, *, by_threads: bool) -> tuple[list[tirx.Stmt], list[tirx.Stmt]]:
    """What moves registers from the producer's warpgroup to those of the consumers."""
    if (consumers, by_threads) not in _REGISTERS:
        return [], []
    move = operator_for("registers")
    few, many = _REGISTERS[consumers, by_threads]
    return [tirx.Evaluate(move(few, False).to_call())], [tirx.Evaluate(move(many, True).to_call())]
