"""SplitReducers: a reducer is a fragment, or every thread has totals of its own until its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm.target import Target

from tvmtile._tvm import Mutator, buffer_of, indices_of, mutated, nodes_in
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.linearity import contribution
from tvmtile.analysis.nests import nests_in
from tvmtile.errors import InvalidOperand
from tvmtile.ir.combiners import COMBINERS
from tvmtile.ir.kernels import Launch, with_kernels
from tvmtile.ir.operands import as_region, describe
from tvmtile.ir.operators import TileOp, operator_for, operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, mentions, retyped, seq, substitute
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.scopes import FRAGMENT_SCOPE, REDUCER_SCOPE
from tvmtile.ir.spans import location_of
from tvmtile.ir.threads import group_of_region
from tvmtile.passes.tile.reduce_accumulations import accumulations_in
from tvmtile.tileop.registry import LoweringContext, candidates_of

_ROLES = ("begin", "contribute", "end")


@prim_func_pass("SplitReducers", requires=(Property.REGIONS,))
def SplitReducers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make a fragment of a reducer, to which nests add, where ReduceAccumulations takes all of that.

    Its operators are what they are on a CPU then. Of any other reducer, whose totals are chosen by
    data, or in whose nests more happens, two tiles are made: an array of each thread's totals, and a
    fragment for the results. From its initialization on, the reducer is the array: what is stored into
    it must be a contribution, `total[i] += x`, and becomes an update. When it is finalized, the totals
    go to the fragment, if there is no other place for them, and what reads the reducer reads that.

    Raises
    ------
    InvalidOperand
        If something else than a contribution is stored between initialization and finalization.
    """

    def split(kernel: tirx.For) -> tirx.For:
        reducers = [
            buffer
            for buffer in map(buffer_of, nodes_in(kernel, tirx.AllocBuffer))
            if str(buffer.ty.storage_scope).startswith(REDUCER_SCOPE)
        ]
        others = []
        for reducer in reducers:
            with_fragment = _with_fragment(kernel, reducer)
            others += [reducer] if with_fragment is None else []
            kernel = with_fragment or kernel
        return _Split(others).split(kernel) if others else kernel

    return with_kernels(func, split)


def _with_fragment(kernel: tirx.For, reducer: ir.Var) -> tirx.For | None:
    """The kernel with a fragment in place of a reducer.

    None where a thread would do too much, or where some of the threads add to it: they hold no fragment
    of all.
    """
    if contains(kernel, tirx.AttrStmt, lambda n: bool(group_of_region(n)) and mentions(n, reducer)):
        return None
    fragment = retyped(reducer, scope=FRAGMENT_SCOPE)

    def on_cpu(node: tirx.Evaluate, _: Mutator) -> tirx.Stmt:
        op = operator_of(node)
        if op is None or op.role not in _ROLES or not mentions(node, reducer):
            return node
        context = LoweringContext(Target("llvm"), Analyzer(), location_of(node.value))
        return candidates_of(op, "llvm")[-1].code(op, context)

    result = substitute(mutated(kernel, (tirx.Evaluate, on_cpu)), {reducer: fragment})
    launch = Launch(result)
    aliases = Aliases(launch.body)
    reduced = [
        each.store
        for nest in nests_in(launch.body)
        for each in accumulations_in(nest, launch.num_threads, aliases)
    ]
    updates = (
        store
        for store in nodes_in(result, tirx.BufferStore)
        if buffer_of(store).same_as(fragment) and mentions(store.value, fragment)
    )
    is_reduced = all(any(store.same_as(each) for each in reduced) for store in updates)
    return result if is_reduced else None


class _Tiles:
    """The two tiles of a reducer."""

    def __init__(self, reducer: ir.Var) -> None:
        ty = reducer.ty
        self.kind = str(ty.storage_scope).removeprefix(REDUCER_SCOPE)
        dtype = str(ty.dtype)
        self.own = tirx.decl_buffer(ty.shape, dtype, name=f"{reducer.name}_own", scope="local")
        self.result = tirx.decl_buffer(ty.shape, dtype, name=reducer.name, scope=FRAGMENT_SCOPE)
        self.is_open = False


class _Split(ScopedRewriter):
    """Goes through the program in order; a reducer is open between its start and its end."""

    def __init__(self, reducers: list[ir.Var]) -> None:
        super().__init__()
        self._tiles = {reducer: _Tiles(reducer) for reducer in reducers}

    def split(self, kernel: tirx.For) -> tirx.For:
        """The kernel with two tiles for each reducer."""
        results = {reducer: tiles.result for reducer, tiles in self._tiles.items()}
        return substitute(self.rewrite(kernel), results)

    def visit_alloc(self, node: tirx.AllocBuffer) -> tirx.Stmt:
        tiles = self._tiles.get(buffer_of(node))
        if tiles is None:
            return node
        return seq([tirx.AllocBuffer(tiles.own), tirx.AllocBuffer(tiles.result)])

    def visit_evaluate(self, node: tirx.Evaluate) -> tirx.Stmt:
        op = operator_of(node)
        if op is None or not op.writes():
            return node
        if op.role in _ROLES:
            operand = op.reads()[0] if op.role == "end" else op.writes()[0]
            return self._of_thread(op, buffer_of(operand), node.span)
        reducer = buffer_of(op.writes()[0])
        tiles, value = self._tiles.get(reducer), _constant_fill(op)
        if tiles is None or tiles.is_open or value is None:
            return node
        return self._of_thread(operator_for("begin")(as_region(reducer), value), reducer, node.span)

    def visit_store(self, node: tirx.BufferStore) -> tirx.Stmt:
        reducer = buffer_of(node)
        tiles = self._tiles.get(reducer)
        if tiles is None or not tiles.is_open:
            return node
        value = contribution(node, COMBINERS[tiles.kind])
        if value is None:
            raise InvalidOperand(
                f"{describe(reducer)} is stored something else than a contribution",
                help="update it as in `total[i] += x` or by T.reducer_update, and read the totals "
                "after T.finalize_reducer",
                location=location_of(node),
            )
        total = tirx.BufferLoad(reducer, list(indices_of(node)))
        return self._of_thread(operator_for("contribute")(total, value), reducer, node.span)

    def _of_thread(self, op: Any, reducer: ir.Var, span: ir.Span | None) -> tirx.Stmt:
        """An operator on a reducer as each thread does it, with totals of its own."""
        tiles = self._tiles[reducer]
        tiles.is_open = op.role != "end"
        if op.role == "end" and buffer_of(op.dst).same_as(reducer):
            op = replace(op, dst=as_region(tiles.result))
        call = replace(op, kind=tiles.kind).to_call(span)
        return tirx.Evaluate(substitute(call, {reducer: tiles.own}), span)


def _constant_fill(op: TileOp) -> Any:
    """The value that an elementwise operator sets every element to; None for any other."""
    loops = op.as_loops()
    stores = [] if loops is None else nodes_in(loops, tirx.BufferStore)
    if len(stores) != 1 or contains(stores[0].value, (ir.TensorLoad, ir.Var)):
        return None
    return stores[0].value
