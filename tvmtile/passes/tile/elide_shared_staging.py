"""ElideSharedStaging: redundant staging in shared memory is removed."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, mapped, mutated, nodes_in, ranges_of
from tvmtile.analysis.effects import effects_of
from tvmtile.analysis.kernel_info import info_of
from tvmtile.ir.annotations import STAGE_ANNOTATION, STAGES_ANNOTATION
from tvmtile.ir.kernels import Launch, target_of, with_kernels
from tvmtile.ir.operands import constant, is_whole
from tvmtile.ir.operators import TileOp, copied, operator_of, with_tile
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import ranges_in, reads_no_memory, replace_loop, seq
from tvmtile.ir.scopes import is_global, is_shared
from tvmtile.ir.threads import Regions
from tvmtile.tileop.registry import Decline, Lowering, LoweringContext, implementation_of


@prim_func_pass("ElideSharedStaging", requires=(Property.IMPLEMENTATIONS,))
def ElideSharedStaging(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let an operator read a tile from global memory that was copied to shared memory for it alone.

    On unified memory the copy pays where several simdgroups read the tile, or where it is read more
    than once; on a CPU not for a micro-kernel that packs its operands anyway. It is left out where one
    operator after it, in the same loop, reads the tile, and each element once, and can do so in global
    memory (on a CPU, where the tile certainly lies inside the tensor); not in a loop whose statements
    the user has given stages, one each, nor in a function whose tensors may share memory.
    `T.copy(..., annotations={"direct": ...})` decides otherwise: True leaves the copy out however many
    simdgroups read the tile, False keeps it.
    """
    target = target_of(func)

    def read(kernel: tirx.For) -> tirx.For:
        context = LoweringContext(target, ranges_in(kernel), launch=Launch(kernel))
        return _Direct(kernel, context).apply()

    return with_kernels(func, read)


class _Direct:
    """The tiles of one kernel that need not be staged, and the kernel without them."""

    def __init__(self, kernel: tirx.For, context: LoweringContext) -> None:
        self._kernel = kernel
        self._context = context
        self._regions = Regions()
        self._info = info_of(kernel)
        self._written_by_plan = _written_in_planned_loops(kernel)
        self._left_out: set[ir.Var] = set()

    def apply(self) -> tirx.For:
        visits = (tirx.AttrStmt, self._regions.visit), (tirx.SeqStmt, self._sequence)
        result = mutated(self._kernel, *visits)
        if not self._left_out:
            return self._kernel
        result = mapped(result, (tirx.AllocBuffer, self._without_tile))
        return mapped(result, (tirx.For, self._without_stages))

    def _without_stages(self, loop: tirx.For) -> tirx.For:
        """A loop without its copies has nothing that could run ahead."""
        if STAGES_ANNOTATION not in loop.annotations:
            return loop
        accesses = effects_of(loop.body)
        if any(access.writes and is_shared(access.root) for access in accesses):
            return loop
        kept = {k: v for k, v in loop.annotations.items() if k != STAGES_ANNOTATION}
        return replace_loop(loop, annotations=kept)

    def _without_tile(self, node: tirx.AllocBuffer) -> tirx.Stmt:
        return seq([]) if buffer_of(node) in self._left_out else node

    def _sequence(self, node: tirx.SeqStmt, mutator: Mutator) -> tirx.Stmt:
        return self._without_copies(mutator.default_mutate(node))

    def _without_copies(self, node: tirx.SeqStmt) -> tirx.Stmt:
        statements = list(node.seq)
        for position, statement in enumerate(statements):
            copied = self._staged_tile(statement)
            if copied is None:
                continue
            source, tile, wanted = copied
            reader = self._only_reader(buffer_of(tile), statements[position + 1 :])
            if reader is None:
                continue
            at, reading = position + 1 + reader[0], reader[1]
            op = operator_of(reading)
            assert op is not None
            chosen = implementation_of(op, self._context.kind)
            if chosen is None or chosen.direct is None:
                continue
            times = chosen.direct(op, self._context.of(self._regions.group))
            fields = [
                name for name in times if buffer_of(getattr(op, name)).same_as(buffer_of(tile))
            ]
            if len(fields) != 1 or (times[fields[0]] > 1 and not wanted):
                continue
            direct = with_tile(op, buffer_of(tile), source)
            if not self._fits(chosen, direct):
                continue
            call = direct.to_call(reading.value.span)
            statements[at] = tirx.Evaluate(call, reading.span)
            statements[position] = seq([])
            self._left_out.add(buffer_of(tile))
        return seq(statements) if self._left_out else node

    def _fits(self, chosen: Lowering, op: TileOp) -> bool:
        """Tell whether an implementation still does an operator that reads global memory."""
        try:
            chosen.check(op, self._context.of(self._regions.group))
        except Decline:
            return False
        return True

    def _staged_tile(self, statement: tirx.Stmt) -> tuple[Any, Any, bool] | None:
        """The source and the tile of a copy that could be left out, and whether the user wants it."""
        op = operator_of(statement)
        ends = copied(op)
        if op is None or ends is None or getattr(op, "direct", None) is False:
            return None
        source, tile = ends
        from_global = is_global(buffer_of(source))
        is_written = self._info.root(buffer_of(source)) in self._info.written
        if not from_global or not is_shared(buffer_of(tile)) or is_written:
            return None
        shape = [constant(extent) for extent in buffer_of(tile).ty.shape]
        # Rows and columns of the tile are the last axes of the source too.
        outer = [1] * (len(ranges_of(source)) - len(shape))
        in_line = [constant(r.extent) for r in ranges_of(source)] == [*outer, *shape]
        if buffer_of(tile) in self._written_by_plan:
            return None
        if (
            not is_whole(tile)
            or not in_line
            or not all(reads_no_memory(r.min) for r in ranges_of(source))
        ):
            return None
        return source, tile, bool(getattr(op, "direct", None))

    def _only_reader(
        self, tile: ir.Var, following: list[tirx.Stmt]
    ) -> tuple[int, tirx.Evaluate] | None:
        """The statement, among those that follow, which alone uses a tile besides its copy."""
        if len(self._info.effects_on(tile)) != 2:
            return None
        for number, statement in enumerate(following):
            if not isinstance(statement, tirx.Evaluate):
                continue
            op = operator_of(statement)
            if op is not None and any(buffer_of(o).same_as(tile) for o in op.reads()):
                return number, statement
        return None


def _written_in_planned_loops(kernel: tirx.For) -> set[ir.Var]:
    """The buffers that loops write whose stages and order the user gives."""
    planned = (loop for loop in nodes_in(kernel, tirx.For) if STAGE_ANNOTATION in loop.annotations)
    return {access.root for loop in planned for access in effects_of(loop.body) if access.writes}
