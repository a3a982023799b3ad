"""What pipelining knows of a loop: its statements, their dependences, the buffer copies of tiles.

A pipelined loop is cut into units, the statements of its body. A plan gives each unit a stage and a
place in the order: in iteration `t` of the pipelined loop a unit of stage `s` does iteration `t - s` of
the source loop, and the units follow each other in the order. So a unit of stage 0 runs ahead of one of
stage 1 by an iteration.

A plan is right if two units that touch the same buffer, one of them writing, keep the order in
which they were written. Within an iteration that is a matter of stage and order. Between iterations a
tile gets as many buffer copies as its uses are apart; iteration `k` works on copy `k % count`. Then an
iteration finds in its copy what it wrote itself and nothing else, so every element that it reads must
have been written in the same iteration.
"""

from tvmtile.passes.tile.pipelining.async_units import async_units, later_units
from tvmtile.passes.tile.pipelining.block_memory import BlockMemory, warn_of_fewer_stages
from tvmtile.passes.tile.pipelining.body import (
    Body,
    Obstacle,
    PipelineStmt,
    body_of,
    has_effects,
    is_rematerializable,
)
from tvmtile.passes.tile.pipelining.in_flight import with_work_in_flight, work_of
from tvmtile.passes.tile.pipelining.mbarriers import Mbarriers
from tvmtile.passes.tile.pipelining.phases import Phases
from tvmtile.passes.tile.pipelining.plan import (
    PIPELINE_ANNOTATIONS,
    BufferCopies,
    PipelinePlan,
    buffer_copies_of,
    other_annotations,
    plan_of,
)
from tvmtile.passes.tile.pipelining.producers import Producers
from tvmtile.passes.tile.pipelining.stage_axis import StageAxis, with_stage_axes
from tvmtile.passes.tile.pipelining.stages import Stages
from tvmtile.passes.tile.pipelining.tiles import KernelTiles

__all__ = [
    "PIPELINE_ANNOTATIONS",
    "BlockMemory",
    "Body",
    "BufferCopies",
    "KernelTiles",
    "Mbarriers",
    "Obstacle",
    "Phases",
    "PipelinePlan",
    "PipelineStmt",
    "Producers",
    "StageAxis",
    "Stages",
    "async_units",
    "body_of",
    "buffer_copies_of",
    "has_effects",
    "is_rematerializable",
    "later_units",
    "other_annotations",
    "plan_of",
    "warn_of_fewer_stages",
    "with_stage_axes",
    "with_work_in_flight",
    "work_of",
]
