"""A pipelined loop that is split between a producer and consumers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from tvmtile.passes.tile.pipelining import Body, KernelTiles, body_of
from tvmtile.passes.tile.specialization.candidates import Candidate
from tvmtile.passes.tile.specialization.guards import without_guard
from tvmtile.passes.tile.specialization.iteration_space import IterationSpace
from tvmtile.passes.tile.specialization.preloads import Preload
from tvmtile.passes.tile.specialization.ring import Ring


@dataclass(frozen=True)
class Split:
    """A loop that is split."""

    candidate: Candidate
    """The loop as it was."""
    rings: list[Ring]
    """Of its tiles."""
    space: IterationSpace
    """Its iterations."""

    @property
    def variable(self) -> ir.Var:
        """The variable of the loop."""
        return self.candidate.loop.loop_var

    def filled(self, ring: Ring) -> list[ir.Var]:
        """The tiles of a ring."""
        return [tile for unit in ring.units for tile in self.candidate.units[unit].writes]


Splits = Mapping[ir.Var, Split]
"""By the variable of the loop."""


def counters_of(splits: Splits, preloads: Sequence[Preload]) -> list[tirx.Stmt]:
    """Counters that begin."""
    counters = [
        *(each.space.counter for each in splits.values()),
        *(each.counter for each in preloads),
    ]
    return [
        statement
        for counter in dict.fromkeys(each for each in counters if each is not None)
        for statement in (
            tirx.AllocBuffer(counter),
            tirx.BufferStore(counter, tirx.const(0, str(counter.ty.dtype)), [0]),
        )
    ]


def parts_of(loop: tirx.For, split: Split, tiles: KernelTiles) -> Body:
    """The statements of the loop, in a kernel whose tiles have their buffer copies."""
    if split.candidate.condition is not None:
        loop = without_guard(loop)
    body = body_of(loop, tiles, split=True)
    assert len(body.units) == len(split.candidate.units), "the loop was split before"
    return body
