"""Resources for a schedule: shared memory for buffer copies, registers for roles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import warn
from tvmtile.ir.kernels import Launch
from tvmtile.ir.operands import bits_of, static_shape
from tvmtile.ir.operators import operator_for
from tvmtile.ir.options import options_of
from tvmtile.ir.spans import first_location
from tvmtile.ir.threads import REGISTER_FILE, WARPGROUP, registers_of_each, whole_registers
from tvmtile.passes.memory.shared_memory import lifetimes_in, most_at_once
from tvmtile.passes.tile.schedule.body import PipelineStmt
from tvmtile.passes.tile.schedule.split_loops import REGISTER_BITS, SplitLoop, registers_held
from tvmtile.target import GpuCapability


def warn_of_fewer_stages(loop: tirx.For, stages: int, wanted: int, why: str) -> None:
    """Say that a loop has not the stages that it asks for."""
    warn(
        f"the loop over {loop.loop_var.name} has {stages} stage{'s' * (stages != 1)} in place of "
        f"{wanted}: {why} for more copies of its tiles",
        first_location(loop),
    )


class BlockMemory:
    """The shared memory of a block: what its tiles take, and what there is."""

    def __init__(self, kernel: tirx.For, capability: GpuCapability | None) -> None:
        self._tiles = []
        self._room = None if capability is None else capability.shared_memory
        self._copies: dict[ir.Var, int] = {}
        self.name = f"a block of {capability.name}" if capability is not None else ""
        if capability is not None:
            self._tiles = lifetimes_in(kernel, capability, through_loops=False)

    def has_room_for(self, copies: Mapping[ir.Var, int]) -> bool:
        """Tell whether tiles can have so many copies; they always can have one.

        The copies of a tile hold values at all times, so that no other tile shares their memory.
        """
        if self._room is None or all(count == 1 for count in copies.values()):
            return True
        counts = {**self._copies, **copies}
        others = most_at_once(tile for tile in self._tiles if tile.buffer not in counts)
        multi_buffered = (tile.size * counts.get(tile.buffer, 0) for tile in self._tiles)
        return sum(tile.size for tile in others) + sum(multi_buffered) <= self._room

    def has_room_for_all(self) -> bool:
        """Tell whether all tiles can hold values at once, with one copy each."""
        return self._room is None or sum(tile.size for tile in self._tiles) <= self._room

    def blocks_at_once(self) -> int:
        """The number of blocks that a multiprocessor has room for, with the copies taken."""
        if self._room is None:
            return 1
        taken = sum(tile.size * self._copies.get(tile.buffer, 1) for tile in self._tiles)
        return max(1, self._room // max(1, taken))

    def take(self, copies: Mapping[ir.Var, int]) -> None:
        """Remember the buffer copies of a loop."""
        self._copies.update(copies)


# Registers of a thread of each role ---------------------------------------------------------------


_FEWEST = {(256, False): 24, (384, False): 32, (256, True): 72, (384, True): 56}
"""Of a thread that copies, by how many threads multiply, and whether threads copy elements, not one of
them tiles. Blocks of other sizes have enough for all, or none to move. Where threads compute tiles, see
`RoleRegisters._shares`.
"""


_MOST_REGISTERS = 240
_BESIDE_OPERANDS = 40
"""Of a thread that computes a tile: addresses, counters, what it computes with."""
_BESIDE_SUMS = 48
"""Of a thread that multiplies, so that it need not save any."""

LEAST_LOADED = 64
"""Registers that a thread loads at once, so that it pays to have threads for it."""


class RoleRegisters:
    """The registers of a multiprocessor, as the blocks and roles of a kernel share them."""

    def __init__(self, kernel: tirx.For) -> None:
        options = options_of(kernel)
        self.consumers = Launch(kernel).num_threads
        """How many threads multiply."""
        self.least_blocks = options.blocks_per_multiprocessor
        """How many blocks share them at least; None where the kernel does not say."""
        self.are_fixed = options.fixed_registers
        """Whether the kernel asks that each thread keeps those that it begins with."""

    def go_to_one_block(self) -> bool:
        """Tell whether one block takes all of them."""
        return self.least_blocks is None and not self.are_fixed and self._may_move

    def why_fixed(self, loops: Sequence[SplitLoop]) -> str | None:
        """The wish of the kernel that keeps a block of this size from moving registers."""
        if not self._may_move or self._shares(loops) is not None:
            return None
        if self.are_fixed:
            return "the kernel asks that none move"
        return f"{self.least_blocks} blocks on a multiprocessor leave none to move"

    @property
    def at_first(self) -> int:
        """Registers that each thread begins with, beside a producer's warpgroup."""
        return registers_of_each((self.least_blocks or 1) * (self.consumers + WARPGROUP))

    def of_consumer(self, loops: Sequence[SplitLoop]) -> int:
        """Registers of a thread that multiplies, at most."""
        shares = self._shares(loops)
        return self.at_first if shares is None else shares[1]

    def moved(self, loops: Sequence[SplitLoop]) -> tuple[list[tirx.Stmt], list[tirx.Stmt]]:
        """The statements that move registers from the producer's warpgroup to the consumers'."""
        shares = self._shares(loops)
        if shares is None:
            return [], []
        move = operator_for("registers")
        few, many = shares
        return [tirx.Evaluate(move(few, False).to_call())], [
            tirx.Evaluate(move(many, True).to_call())
        ]

    def blocks_at_once(self, threads: int, held: int) -> int:
        """The number of blocks with registers at once, whose threads hold so many."""
        return self.least_blocks or max(1, REGISTER_FILE // (threads * (held + _BESIDE_SUMS)))

    @property
    def _may_move(self) -> bool:
        return (self.consumers, False) in _FEWEST

    def _shares(self, loops: Sequence[SplitLoop]) -> tuple[int, int] | None:
        """Registers of a thread that copies, and of one that multiplies; None if none move.

        Threads that compute a tile load all of their elements before they need the first, so they get
        registers for these, of what the sums of those that multiply leave.
        """
        consumers, at_first = self.consumers, self.at_first
        fewest = _FEWEST.get((consumers, any(each.by_threads for each in loops)))
        if fewest is None or fewest >= at_first or self.are_fixed:
            return None
        # What a block has: an increase waits for no others.
        pool = at_first * (consumers + WARPGROUP)
        few = fewest
        wanted = max((registers_loaded(each) for each in loops), default=0)
        if wanted:
            sums = max(registers_held(each.units, each.order, consumers) for each in loops)
            left = (pool - consumers * (sums + _BESIDE_SUMS)) // WARPGROUP
            few = min(max(fewest, whole_registers(min(wanted + _BESIDE_OPERANDS, left))), at_first)
        return few, min(whole_registers((pool - WARPGROUP * few) // consumers), _MOST_REGISTERS)


def registers_loaded(split: SplitLoop) -> int:
    """The registers of a tile that a thread loads, of the tiles that a loop computes."""
    computed = (split.units[number] for number in split.computed)
    return max(map(_loaded, computed), default=0)


def _loaded(unit: PipelineStmt) -> int:
    bits = [bits_of(var) for var in unit.reads if is_buffer_var(var)]
    elements = max(math.prod(static_shape(var)) for var in unit.writes)
    return -(-elements * max(bits, default=0) // REGISTER_BITS // WARPGROUP)
