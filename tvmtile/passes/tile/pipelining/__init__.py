"""What the pipelining passes know of a loop: its statements, their dependences, the versions of tiles.

A pipelined loop is cut into units, the statements of its body. A plan gives each unit a stage and a
place in the order: in round `t` of the pipeline a unit of stage `s` does iteration `t - s`, and the
units of a round follow each other in the order. So a unit of stage 0 runs ahead of one of stage 1 by
an iteration.

A plan is right if two units that touch the same buffer, one of them writing, meet in the order in
which they were written. Within an iteration that is a matter of stage and order. Between iterations a
tile gets as many versions as its uses are apart; iteration `k` works on version `k % versions`. Then
an iteration finds in its version what it wrote itself and nothing else, so every element that it
reads must have been written in the same iteration.
"""

from tvmtile.passes.tile.pipelining.async_units import async_units
from tvmtile.passes.tile.pipelining.body import Body, Obstacle, Unit, body_of
from tvmtile.passes.tile.pipelining.plan import (
    PIPELINE_ANNOTATIONS,
    Plan,
    Versions,
    plan_of,
    versions_of,
)
from tvmtile.passes.tile.pipelining.tiles import KernelTiles

__all__ = [
    "PIPELINE_ANNOTATIONS",
    "Body",
    "KernelTiles",
    "Obstacle",
    "Plan",
    "Unit",
    "Versions",
    "async_units",
    "body_of",
    "plan_of",
    "versions_of",
]
