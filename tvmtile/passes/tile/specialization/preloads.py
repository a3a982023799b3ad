"""Copies before a pipelined loop, of tiles that all of its iterations read: the producer's, too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, mutated, nodes_in
from tvmtile.ir.kernels import flattened, leaves_loop
from tvmtile.ir.operators import TileOp, operator_of
from tvmtile.ir.rewriting import contains
from tvmtile.ir.scopes import is_shared
from tvmtile.passes.tile.pipelining import KernelTiles
from tvmtile.passes.tile.specialization.candidates import Candidate
from tvmtile.passes.tile.specialization.ring import Ring

if TYPE_CHECKING:
    from tvmtile.analysis.accesses import Access


@dataclass(frozen=True)
class Preload:
    """A copy before a split loop, of a tile that only the consumers of the loop read."""

    tile: ir.Var
    variable: ir.Var
    """Of the loop."""
    ring: Ring
    """Of the copies of the tile, one for each execution of the loop."""
    around: ir.Var | None
    """Of the innermost serial loop around it."""
    counter: ir.Var | None
    """Counts the executions before, where there may be some."""
    is_free_early: bool
    """The second of a loop's products, which goes on behind the loop, does not use it."""

    def fills(self, stmt: tirx.Stmt) -> bool:
        """Tell whether a statement is the copy."""
        op = operator_of(stmt)
        return op is not None and any(buffer_of(at).same_as(self.tile) for at in op.writes())

    def renamed(self, before: tirx.For, behind: tirx.For) -> Preload:
        """The same in a kernel whose tiles have got copies."""
        pairs = zip(
            nodes_in(before, tirx.AllocBuffer), nodes_in(behind, tirx.AllocBuffer), strict=True
        )
        (tile,) = (buffer_of(new) for old, new in pairs if buffer_of(old).same_as(self.tile))
        return replace(self, tile=tile)

    def counted(self) -> list[tirx.Stmt]:
        """What counts an execution."""
        if self.counter is None:
            return []
        return [tirx.BufferStore(self.counter, tirx.BufferLoad(self.counter, [0]) + 1, [0])]


Preloaded: TypeAlias = list[tuple[ir.Var, Candidate, "tirx.For | None"]]
"""Tiles, the loops before which they are copied, and the innermost serial loops around these."""


def preloaded_in(
    body: tirx.Stmt,
    candidates: Sequence[Candidate],
    tiles: KernelTiles,
    why_not: Callable[[TileOp, int], str | None],
) -> Preloaded:
    """The tiles that are copied before a loop and then only read by its consumers.

    With each are the loop, and the innermost serial loop around the copy, if there is one.

    `candidates` are the loops that are split, `why_not` is as of `candidates_in`.
    """
    found: Preloaded = []
    around: list[tirx.For] = []

    def visit(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        around.append(loop)
        mutator.default_mutate(loop)
        around.pop()
        return loop

    def sequence(node: tirx.SeqStmt, mutator: Mutator) -> tirx.Stmt:
        before: list[TileOp] = []
        for child in flattened(node):
            op = _copy_of(child)
            if op is not None and why_not(op, 1) is None:
                before.append(op)
            elif leaves_loop(child):  # consumers that leave do not come to wait for the copies
                before.clear()
            for candidate in candidates:
                if child.same_as(candidate.loop):
                    outer = around[-1] if around else None
                    found.extend((_written(op), candidate, outer) for op in before)
            mutator.mutate(child)
        return node

    mutated(body, (tirx.SeqStmt, sequence), (tirx.For, visit))
    return [each for each in found if _belongs_to(each[0], each[1], tiles)]


def _copy_of(stmt: tirx.Stmt) -> TileOp | None:
    """The copy of a tile that a statement is, if all that it needs is known from the block."""
    op = operator_of(stmt)
    if op is None or not op.is_tile or not op.is_copy:
        return None
    return None if contains(stmt, ir.TensorLoad) else op


def _written(op: TileOp) -> ir.Var:
    (operand,) = op.writes()
    return buffer_of(operand)


def _belongs_to(tile: ir.Var, candidate: Candidate, tiles: KernelTiles) -> bool:
    if tile not in tiles.allocated or not is_shared(tile) or tiles.views_of(tile):
        return False
    writes, *reads = [each for each in tiles.accesses if each.buffer.same_as(tile)]
    sources = [tiles.root(buffer_of(at)) for at in _operator(writes).reads()]
    is_constant = not any(
        each.writes and any(each.buffer.same_as(source) for source in sources)
        for each in tiles.accesses
    )
    inside = [
        access
        for number in candidate.order
        for access in candidate.units[number].accesses
        if access.buffer.same_as(tile)
    ]
    is_only_read = writes.writes and not any(access.writes for access in (*reads, *inside))
    return is_constant and is_only_read and len(inside) == len(reads)


def _operator(access: Access) -> TileOp:
    assert access.operator is not None, "the first access is the copy"
    return access.operator
