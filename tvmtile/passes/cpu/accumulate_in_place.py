"""AccumulateInPlace: sums that a kernel only writes out are kept where they go."""

from __future__ import annotations

from itertools import dropwhile, takewhile
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, mapped, mutated, ranges_of
from tvmtile.analysis.kernel_info import info_of
from tvmtile.ir.extents import linear_in
from tvmtile.ir.kernels import Launch, leaves_loop, target_of, with_kernels
from tvmtile.ir.operands import constant, is_whole, region
from tvmtile.ir.operators import TileOp, copied, filled, operator_of, with_tile
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import (
    defined_in,
    mentions,
    ranges_in,
    reads_no_memory,
    seq,
    substitute,
    variables_of,
)
from tvmtile.ir.scopes import is_global
from tvmtile.tileop.registry import Decline, LoweringContext, implementation_of


@prim_func_pass("AccumulateInPlace", requires=(Property.IMPLEMENTATIONS,))
def AccumulateInPlace(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let products of matrices add to a tensor, where a tile of sums is only copied there in the end.

    A tile of 256 x 256 sums fills a core's second cache. To clear it, to load and store it for each
    step along K, and to copy it took an eighth of a product of bytes.

    The tile is left out where nothing uses it but products that add to it, and what clears it, before
    one copy to a tensor of its dtype that the kernel does not use otherwise. The copy stands beside
    the tile's allocation, no `break` or `continue` skips it once the tile is in use, and it fills a
    region that certainly lies inside the tensor. No two blocks have parts of the region in common:
    each index of the grid counts, in an axis of its own, by the region's extent or more.
    """
    target = target_of(func)

    def accumulate(kernel: tirx.For) -> tirx.For:
        return _InPlace(kernel, LoweringContext(target, ranges_in(kernel))).apply()

    return with_kernels(func, accumulate)


class _InPlace:
    """The tiles of one kernel that are summed where they go, and the kernel without them."""

    def __init__(self, kernel: tirx.For, context: LoweringContext) -> None:
        self._kernel = kernel
        self._context = context
        self._blocks = [b for b in Launch(kernel).blocks if constant(b.extent) != 1]
        self._info = info_of(kernel)

    def apply(self) -> tirx.For:
        return mutated(self._kernel, (tirx.SeqStmt, self._sequence))

    def _sequence(self, node: tirx.SeqStmt, mutator: Mutator) -> tirx.Stmt:
        result: tirx.Stmt = mutator.default_mutate(node)
        for statement in node.seq:
            if isinstance(statement, tirx.AllocBuffer) and isinstance(result, tirx.SeqStmt):
                result = self._without_tile(result, buffer_of(statement))
        return result

    def _without_tile(self, node: tirx.SeqStmt, tile: ir.Var) -> tirx.Stmt:
        copies = [(s, ends) for s in node.seq if (ends := _copied(s)) and _is(ends[0], tile)]
        if len(copies) != 1 or _may_skip(node, tile, copies[0][0]):
            return node
        goal = self._goal(node, tile, copies[0][1])
        if goal is None:
            return node

        def moved(statement: tirx.Evaluate) -> tirx.Stmt:
            op = operator_of(statement)
            if op is None or not any(_is(o, tile) for o in (*op.reads(), *op.writes())):
                return statement
            call = with_tile(op, tile, goal).to_call(statement.value.span)
            return tirx.Evaluate(call, statement.span)

        kept = [s for s in node.seq if not s.same_as(copies[0][0]) and not _allocates(s, tile)]
        result = mapped(seq(kept), (tirx.Evaluate, moved))
        return node if mentions(result, tile) else result

    def _goal(self, node: tirx.SeqStmt, tile: ir.Var, ends: tuple[Any, Any]) -> Any:
        """The region that the tile is copied to, if its sums may be kept there."""
        *others, last = self._info.effects_on(tile)
        source, goal = ends[0], self._without_names(ends[1])
        operators = [use.operator for use in others if use.operator is not None]
        if copied(last.operator) is None:
            return None
        if len(operators) < len(others) or not all(_sums(op, tile) for op in operators):
            return None
        if not any(op.role == "product" for op in operators):
            return None
        if str(buffer_of(goal).ty.dtype) != str(tile.ty.dtype) or not is_whole(source):
            return None
        if not self._is_free(goal, source, node):
            return None
        return goal if all(self._fits(with_tile(op, tile, goal)) for op in operators) else None

    def _is_free(self, goal: ir.TensorRegion, source: Any, node: tirx.SeqStmt) -> bool:
        """Tell whether a block has a region for itself, which is known where its tile begins."""
        buffer = buffer_of(goal)
        if not is_global(buffer) or len(self._info.effects_on(buffer)) != 1:
            return False
        shape = [constant(r.extent) for r in ranges_of(source)]
        outer = [1] * (len(ranges_of(goal)) - len(shape))
        if [constant(r.extent) for r in ranges_of(goal)] != [*outer, *shape]:
            return False
        known = all(reads_no_memory(r.min) for r in ranges_of(goal)) and not any(
            variable in defined_in(node)
            for r in ranges_of(goal)
            for variable in variables_of(r.min)
        )
        return known and self._is_inside(goal) and self._is_of_one_block(goal)

    def _without_names(self, goal: ir.TensorRegion) -> ir.TensorRegion:
        """The region by what names stand for, which may be bound behind the tile's allocation."""
        origin = [substitute(r.min, self._info.values) for r in ranges_of(goal)]
        return region(buffer_of(goal), origin, [r.extent for r in ranges_of(goal)])

    def _is_inside(self, goal: ir.TensorRegion) -> bool:
        return all(
            self._context.analyzer.can_prove(tirx.all(r.min >= 0, r.min + r.extent <= size))
            for r, size in zip(ranges_of(goal), buffer_of(goal).ty.shape, strict=True)
        )

    def _is_of_one_block(self, goal: ir.TensorRegion) -> bool:
        axes = []
        for block in self._blocks:
            index = block.loop_var
            mine = [a for a, r in enumerate(ranges_of(goal)) if mentions(r.min, index)]
            if len(mine) != 1:
                return False
            linear = linear_in(ranges_of(goal)[mine[0]].min, index)
            if linear is None or abs(linear[0]) < (constant(ranges_of(goal)[mine[0]].extent) or 0):
                return False
            axes += mine
        return len(set(axes)) == len(axes)

    def _fits(self, op: TileOp) -> bool:
        chosen = implementation_of(op, self._context.kind)
        if chosen is None:
            return False
        try:
            chosen.check(op, self._context)
        except Decline:
            return False
        return True


def _copied(statement: tirx.Stmt) -> tuple[Any, Any] | None:
    """Source and target of a statement that copies."""
    return copied(operator_of(statement))


def _sums(op: TileOp, tile: ir.Var) -> bool:
    """Tell whether an operator sets a tile to a value, or is a product that adds to it or sets it.

    Of others the operands' ranks may matter, which are not the tensor's.
    """
    if filled(op) is not None:
        return True
    others = [o for o in op.reads() if not any(o is written for written in op.writes())]
    return op.role == "product" and not any(_is(o, tile) for o in others)


def _may_skip(node: tirx.SeqStmt, tile: ir.Var, copy: tirx.Stmt) -> bool:
    """Tell whether a `break` or `continue` may leave out the copy of a tile that is summed."""
    until_copy = takewhile(lambda s: not s.same_as(copy), node.seq)
    used = dropwhile(lambda s: _allocates(s, tile) or not mentions(s, tile), until_copy)
    return any(map(leaves_loop, used))


def _allocates(statement: tirx.Stmt, tile: ir.Var) -> bool:
    return isinstance(statement, tirx.AllocBuffer) and buffer_of(statement).same_as(tile)


def _is(operand: Any, tile: ir.Var) -> bool:
    return isinstance(operand, ir.TensorRegion) and buffer_of(operand).same_as(tile)
