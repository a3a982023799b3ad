"""Loops of the two roles."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile.ir.annotations import NO_UNROLLING
from tvmtile.ir.rewriting import replace_loop, seq
from tvmtile.passes.tile.pipelining import other_annotations

__all__ = ["one_of", "rolled"]


def rolled(loop: tirx.For, body: list[tirx.Stmt]) -> tirx.For:
    """A loop to be split with the body of a role.

    Compilers of CUDA would unroll it where the number of iterations is known, and move instructions
    between products that then have to wait for each other.
    """
    annotations = {**other_annotations(loop), NO_UNROLLING: 1}
    return replace_loop(loop, annotations=annotations, body=seq(body))


def one_of(loop: tirx.For) -> ir.Expr:
    """The number 1, as the loop counts."""
    return tirx.const(1, str(loop.loop_var.ty.dtype))
