"""LaunchBlocksOnCpu: the grid of a kernel becomes one parallel loop."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, nodes_in
from tvmtile.analysis.uniformity import ThreadVariance
from tvmtile.codegen.opaque import opaque
from tvmtile.errors import NestingError, SourceLocation
from tvmtile.ir.barriers import is_grid_barrier
from tvmtile.ir.divisions import is_division, rounded_to_zero
from tvmtile.ir.kernels import (
    Launch,
    expressions_of,
    flattened,
    leaves_loop,
    statements_of,
    with_kernels,
    with_statements,
)
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, for_loop, reads_no_memory, seq, with_fresh_variables
from tvmtile.ir.spans import location_of
from tvmtile.passes.cpu.insert_index_checks import CHECK_INDICES
from tvmtile.passes.cpu.loop_fission import ByBlock, Item, ItemBuilder, Nested, Private, emit_runs


@prim_func_pass(
    "LaunchBlocksOnCpu", requires=(Property.NO_THREADS,), establishes=(Property.NO_KERNELS,)
)
def LaunchBlocksOnCpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Run the blocks of a kernel as the iterations of one parallel loop, `blockIdx.x` fastest.

    TVM's thread pool takes one parallel loop, not nested ones, so the axes of the grid are fused.
    A grid that is found to have one block when the kernel is called runs it without the pool, which
    takes longer to wake than a small kernel runs. Threads have been dealt with by SerializeThreads. An
    index that is a division by a dynamic extent is computed where it has its name. With
    `tvmtile.check_indices`, and where a kernel asserts something, the blocks run one after the other,
    so that an error comes as it is raised: not as text from a thread of the pool, and not lost, as it
    is by a pool of one thread.

    A kernel with `T.sync_grid` becomes several loops over the blocks, one for what is between two
    barriers; loops and branches around a barrier stay outside of them. A tile that lives across a
    barrier becomes an array of those of all blocks.

    Raises
    ------
    NestingError
        If some blocks come to a barrier for the grid and others don't.
    """
    checks = func.attrs is not None and func.attrs.get(CHECK_INDICES, False)

    def launched(kernel: tirx.For) -> tirx.Stmt:
        stops = checks or contains(kernel, tirx.AssertStmt)
        kind = tirx.ForKind.SERIAL if stops else tirx.ForKind.PARALLEL
        if contains(kernel, tirx.Evaluate, is_grid_barrier):
            return _runs(_Grid(kernel), kind)
        loop = _loop_over_blocks(Launch(kernel), kind)
        return loop if stops else _without_pool_for_one(loop)

    return with_kernels(func, launched)


def _loop_over_blocks(launch: Launch, kind: tirx.ForKind) -> tirx.For:
    total: ir.Expr = tirx.const(1, "int32")
    for axis in launch.blocks:
        total = total * axis.extent
    block = tirx.Var("block", total.ty.dtype)
    rest: Any = block
    bindings: list[tirx.Stmt] = []
    for position, axis in enumerate(launch.blocks):
        last = position == len(launch.blocks) - 1
        index: Any = rest if last else _kept(tirx.floormod(rest, axis.extent))
        if last and position > 0:
            index = _bounded(index, constant(axis.extent))
        bindings.append(tirx.Bind(axis.loop_var, index.astype(axis.loop_var.ty.dtype)))
        rest = _kept(tirx.floordiv(rest, axis.extent))
    return for_loop(block, total, seq([*bindings, launch.body]), kind)


def _without_pool_for_one(loop: tirx.For) -> tirx.Stmt:
    """The loop; where a call has one block, without the pool."""
    if isinstance(loop.extent, tirx.IntImm):
        return loop
    alone = for_loop(loop.loop_var, loop.extent, loop.body, tirx.ForKind.SERIAL)
    # What TVM concluded of the grid's extents, it would divide by.
    return tirx.IfThenElse(opaque(loop.extent) <= 1, with_fresh_variables(alone), loop)


def _kept(index: ir.Expr) -> ir.Expr:
    """A division that is computed once, where it is one by a dynamic extent."""
    if not is_division(index):
        return index
    return tirx.max(opaque(rounded_to_zero(index)), tirx.const(0, index.ty.dtype))


def _bounded(index: ir.Expr, extent: int | None) -> ir.Expr:
    """The last axis's index, with the bound that dividing by a dynamic extent hides."""
    if extent == 1:
        return tirx.const(0, index.ty.dtype)
    is_division_kept = isinstance(index, tirx.Max)
    return tirx.min(index, extent - 1) if extent is not None and is_division_kept else index


# Blocks that wait for each other ---------------------------------------------------------------------


class _Grid(Launch):
    """The blocks of a grid as the threads of one block; a run ends at each grid barrier."""

    def __init__(self, loop: tirx.For) -> None:
        super().__init__(loop)
        self.threads = self.blocks

    @property
    def num_threads(self) -> Any:
        """Blocks of the grid, which may be known at run time only."""
        count: ir.Expr = tirx.const(1, "int32")
        for axis in self.blocks:
            count = count * axis.extent
        return count


def _runs(grid: _Grid, kind: tirx.ForKind) -> tirx.Stmt:
    """A loop over all blocks for each run between two barriers."""
    variance = ThreadVariance(grid.body, [axis.loop_var for axis in grid.blocks])
    own = {buffer_of(node) for node in nodes_in(grid.body, tirx.AllocBuffer)}
    runs = _RunCutter(variance, own).cut(grid.body)
    return emit_runs(runs, grid, variance, scope="global", kind=kind)


class _RunCutter:
    """Cuts a block's body at its barriers for the grid.

    `own` is the memory of a block; the variance is between blocks, memory apart.
    """

    def __init__(self, variance: ThreadVariance, own: set[ir.Var]) -> None:
        self._variance = variance
        self._own = own
        self._bound: set[ir.Var] = set()  # to what a run has computed

    def cut(self, body: tirx.Stmt) -> list[Item]:
        items = ItemBuilder()
        for stmt in flattened(body):
            if is_grid_barrier(stmt):
                items.add()
            elif contains(stmt, tirx.Evaluate, is_grid_barrier):
                items.add(self._nested(stmt))
            elif (declared := self._declared(stmt)) is not None:
                items.declare(declared)
            else:
                items.per_thread(stmt)
        return items.items

    def _declared(self, stmt: tirx.Stmt) -> Item | None:
        """The item of a declaration outside of a run: of memory, or of a uniform value's name."""
        if isinstance(stmt, tirx.AllocBuffer | tirx.DeclBuffer):
            is_own = self._variance.root(buffer_of(stmt)) in self._own
            return Private(stmt) if is_own else ByBlock(stmt)
        if not isinstance(stmt, tirx.Bind):
            return None
        if self._differs(stmt.value) or not reads_no_memory(stmt.value):
            self._bound.add(stmt.var)
            return None
        return ByBlock(stmt)

    def _nested(self, stmt: tirx.Stmt) -> Nested:
        if leaves_loop(stmt) or any(map(self._differs, expressions_of(stmt))):
            raise NestingError(
                "T.sync_grid stands where some blocks may come and others not",
                help="all blocks must come to it equally often: move it out of the branch or the loop "
                "that depends on the block or on what a block has computed",
                location=_location_of_barrier(stmt),
            )
        bodies = [self.cut(child) for child in statements_of(stmt)]
        return Nested(bodies, lambda bodies: with_statements(stmt, bodies))

    def _differs(self, expression: ir.Expr) -> bool:
        return self._variance.may_diverge(expression) or contains(
            expression,
            ir.Var,
            lambda var: var in self._bound or self._variance.root(var) in self._own,
        )


def _location_of_barrier(stmt: tirx.Stmt) -> SourceLocation | None:
    barriers = filter(is_grid_barrier, nodes_in(stmt, tirx.Evaluate))
    return location_of(next(barriers).value)
