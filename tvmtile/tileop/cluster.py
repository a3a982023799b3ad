"""`T.block_rank_in_cluster`: which of the blocks of its cluster a block is."""

from __future__ import annotations

from dataclasses import dataclass

from tvm import ir
from tvm.tirx.script import builder as T

from tvmtile.ir.operators import ValueOp, tile_operator
from tvmtile.ir.spans import current_span
from tvmtile.tileop.registry import Lacking, LoweringContext, lowering

__all__ = ["BlockRank", "block_rank_in_cluster"]


def block_rank_in_cluster() -> ir.Call:
    """The number of a block in its cluster, from 0, with x fastest; 0 where each block is alone.

    Returns
    -------
    Call
        An int32, the same in all threads of the block.
    """
    return BlockRank().to_call(current_span())


@tile_operator
@dataclass(frozen=True, eq=False)
class BlockRank(ValueOp):
    """The number of a block in its cluster."""

    name = "block_rank_in_cluster"
    role = "block rank"

    def result_dtype(self) -> str:
        return "int32"


def _has_clusters(op: BlockRank, context: LoweringContext) -> None:
    del op
    if not context.gpu.has_clusters:
        raise Lacking("NVIDIA's GPUs from compute capability 9.0 on have clusters")


@lowering(BlockRank, target="cuda", variant="register", fits=_has_clusters)
def _(_op: BlockRank, _context: LoweringContext) -> ir.Expr:
    """A special register."""
    return T.cuda.mov_sreg(32, "cluster_ctarank")
