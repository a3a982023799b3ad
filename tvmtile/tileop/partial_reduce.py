"""A reduction that each thread does for itself: what threads hold is put together later."""

from __future__ import annotations

from tvm import ir

from tvmtile.ir.combiners import COMBINERS, Combiner
from tvmtile.ir.operators import TileOp, tile_operator


@tile_operator
class PartialReduce(TileOp):
    """Combine the elements along an axis that a thread holds.

    `src` is [X, d, Y] and `dst` [X, p, Y], fragments with layouts. Along the axis `dst` has an element
    for each of the p threads that hold different elements of `src`. Which elements it combines is the
    layout's to say, so that it exists only behind InferLayout.
    """

    name = "partial_reduce"
    role = "partial reduction"
    options = ("kind", "dim", "clear")
    clearing = "clear"

    src: ir.TensorRegion
    dst: ir.TensorRegion
    kind: str = "sum"
    dim: int = 0
    clear: bool = True

    def reads(self) -> list[ir.Expr]:
        return [self.src] if self.clear else [self.src, self.dst]

    def writes(self) -> list[ir.Expr]:
        return [self.dst]

    @property
    def combiner(self) -> Combiner:
        """How elements are combined."""
        return COMBINERS[self.kind]
