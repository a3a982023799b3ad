"""How many buffer copies of tiles the shared memory of a block has room for."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import ir, tirx

from tvmtile.passes.memory.shared_memory import allocated_bytes, most_at_once
from tvmtile.target import GpuCapability

__all__ = ["BlockMemory"]


class BlockMemory:
    """The shared memory of a block: what its tiles take, and what there is."""

    def __init__(self, kernel: tirx.For, capability: GpuCapability | None) -> None:
        self._kernel = kernel
        self._capability = capability
        self._copies: dict[ir.Var, int] = {}
        self.name = f"a block of {capability.name}" if capability is not None else ""

    def has_room_for(self, copies: Mapping[ir.Var, int]) -> bool:
        """Tell whether tiles can have so many copies; they always can have one.

        The copies of a tile hold values at all times, so that no other tile shares their memory.
        """
        capability = self._capability
        if capability is None or all(count == 1 for count in copies.values()):
            return True
        all_copies = {**self._copies, **copies}
        others = sum(most_at_once(self._kernel, capability, all_copies).values())
        multi_buffered = sum(allocated_bytes(b, capability) * n for b, n in all_copies.items())
        return others + multi_buffered <= capability.shared_memory

    def take(self, copies: Mapping[ir.Var, int]) -> None:
        """Remember the buffer copies of a loop."""
        self._copies.update(copies)
