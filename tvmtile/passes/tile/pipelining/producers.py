"""What of a pipelined loop runs ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.ir.scopes import is_shared, is_tensor
from tvmtile.passes.tile.pipelining.body import Obstacle, PipelineStmt
from tvmtile.passes.tile.pipelining.plan import PipelinePlan
from tvmtile.passes.tile.pipelining.tiles import KernelTiles


class Producers:
    """The units that run ahead: copies from global memory into shared tiles, and what they need."""

    def __init__(self, units: Sequence[PipelineStmt], tiles: KernelTiles) -> None:
        self._units = units
        self._tiles = tiles
        self._refused: dict[int, str] = {}
        self._copies = [i for i in range(len(units)) if self._is_copy(i)]

    @property
    def refused(self) -> list[tuple[PipelineStmt, str]]:
        """The copies that can't run ahead, and why."""
        return [(self._units[i], self._refused[i]) for i in self._copies if i in self._refused]

    def refuse_writers_of(self, buffer: ir.Var | None, reason: str) -> None:
        """Leave the copies into a tile with the consumers."""
        writers = [
            i
            for i, unit in enumerate(self._units)
            if i not in self._refused and (buffer is None or buffer in unit.writes)
        ]
        if not writers:
            raise Obstacle(reason, buffer)
        self._refused.update(dict.fromkeys(writers, reason))

    def plan(self, last: int) -> PipelinePlan:
        """Stage 0 for the producers, which come first in an iteration, the last one for the others."""
        producers = self._closed()
        if not producers:
            raise Obstacle(self._why_none())
        return PipelinePlan.of_producers(producers, len(self._units), last)

    def _why_none(self) -> str:
        reasons = list(dict.fromkeys(reason for _, reason in self.refused))
        return reasons[0] if reasons else "nothing copies from global memory into a shared tile"

    def _is_copy(self, index: int) -> bool:
        return (
            self._may_run_ahead(index)
            and not self._computes(index)
            and any(map(is_tensor, self._units[index].reads))
        )

    def _computes(self, index: int) -> bool:
        """Tell whether a unit is a nest that needs what the iteration has copied.

        Weights that are dequantised with scales from global memory are such; that the copy runs ahead
        is worth more than that the nest does.
        """
        unit = self._units[index]
        others = [other for number, other in enumerate(self._units) if number != index]
        return isinstance(unit.inner, tirx.For) and any(
            is_buffer_var(var) and is_shared(var) and any(var in other.writes for other in others)
            for var in unit.reads
        )

    def _may_run_ahead(self, index: int) -> bool:
        unit = self._units[index]
        return (
            not unit.binds
            and not unit.has_effects
            and bool(unit.writes)
            and all(
                var in self._tiles.allocated and var.ty.storage_scope.startswith("shared")
                for var in unit.writes
            )
        )

    def _closed(self) -> set[int]:
        """The copies with what they need, but for those that need a consumer."""
        producers = {i for i in self._copies if i not in self._refused}
        while True:
            found = next(self._dependences(producers), None)
            if found is None:
                return producers
            unit, needed, name = found
            if needed < unit and needed not in self._refused and self._may_run_ahead(needed):
                producers.add(needed)
                continue
            other = self._units[needed]
            self._refused[unit] = f"it depends on {other.describe()} by {name}"
            producers.discard(unit)

    def _dependences(self, producers: set[int]) -> Any:
        """Producers, the consumers that they depend on, and by which buffer or name."""
        for i in sorted(producers):
            unit = self._units[i]
            for j, other in enumerate(self._units):
                if j in producers:
                    continue
                needs = unit.conflicts(other)
                if i < j:
                    needs = [var for var in needs if var in unit.reads and var in other.writes]
                if needs:
                    yield i, j, needs[0].name
