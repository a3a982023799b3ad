"""How many buffer copies of tiles the shared memory of a block has room for."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import ir, tirx

from tvmtile.errors import warn
from tvmtile.ir.spans import first_location
from tvmtile.passes.memory.shared_memory import lifetimes_in, most_at_once
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
        """How many blocks a multiprocessor has room for, with the copies that were taken."""
        if self._room is None:
            return 1
        taken = sum(tile.size * self._copies.get(tile.buffer, 1) for tile in self._tiles)
        return max(1, self._room // max(1, taken))

    def take(self, copies: Mapping[ir.Var, int]) -> None:
        """Remember the buffer copies of a loop."""
        self._copies.update(copies)
