"""A proposal of how to cut a computation into blocks."""

from __future__ import annotations

from dataclasses import dataclass, field

from tvmtile.carver.roller.rasterization import NoRasterization, Rasterization


@dataclass(frozen=True)
class Hint:
    """A proposal.

    Attributes
    ----------
    block, warp, rstep : list of int
        Extents of a block's tile, of a warp's part of it, and of a step along the axes that are
        summed over.
    threads : int
        Threads of a block.
    pipeline_stage : int
        `num_stages` of the loop over steps; 1: without a pipeline.
    use_tc : bool
        Whether matrix instructions do it.
    rasterization_plan : Rasterization
        The order of the blocks.
    seconds : float
        What the model says that it takes.
    """

    block: list[int]
    threads: int
    warp: list[int] = field(default_factory=list)
    rstep: list[int] = field(default_factory=list)
    pipeline_stage: int = 1
    use_tc: bool = False
    rasterization_plan: Rasterization = field(default_factory=NoRasterization)
    seconds: float = 0.0

    @property
    def use_async(self) -> bool:
        """Whether copies run ahead of the steps that use them."""
        return self.pipeline_stage > 1

    def to_dict(self) -> dict[str, object]:
        """What it proposes, without what it leaves as it is."""
        proposed = {"block": self.block, "warp": self.warp, "rstep": self.rstep}
        found: dict[str, object] = {name: value for name, value in proposed.items() if value}
        found["threads"] = self.threads
        if self.pipeline_stage > 1:
            found["pipeline_stage"] = self.pipeline_stage
        return found
