"""SplitReducers: every thread of a block has totals of its own until a reducer is finalized."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, indices_of, nodes_in
from tvmtile.analysis.contributions import contribution
from tvmtile.errors import InvalidOperand
from tvmtile.ir.combiners import COMBINERS
from tvmtile.ir.kernels import with_body
from tvmtile.ir.operands import as_region, describe
from tvmtile.ir.operators import TileOp, operator_for, operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, seq, substitute
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.scopes import FRAGMENT_SCOPE, REDUCER_SCOPE
from tvmtile.ir.spans import location_of


@prim_func_pass("SplitReducers", requires=(Property.REGIONS,))
def SplitReducers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make two tiles of a reducer: an array of each thread's totals, and a fragment for the results.

    From its initialization on, a reducer is the array: what is stored into it must be a contribution,
    `total[i] += x`, and becomes an update. When it is finalized, the totals go to the fragment, if
    there is no other place for them, and what reads the reducer reads that.

    Raises
    ------
    InvalidOperand
        If something else than a contribution is stored between initialization and finalization.
    """
    return with_body(func, _Split(func.body).split(func.body))


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

    def __init__(self, body: tirx.Stmt) -> None:
        super().__init__()
        allocated = map(buffer_of, nodes_in(body, tirx.AllocBuffer))
        self._tiles = {
            buffer: _Tiles(buffer)
            for buffer in allocated
            if str(buffer.ty.storage_scope).startswith(REDUCER_SCOPE)
        }

    def split(self, body: tirx.Stmt) -> tirx.Stmt:
        """The program with two tiles for each reducer."""
        results = {reducer: tiles.result for reducer, tiles in self._tiles.items()}
        return substitute(self.rewrite(body), results) if results else body

    def visit_alloc(self, node: tirx.AllocBuffer) -> tirx.Stmt:
        tiles = self._tiles.get(buffer_of(node))
        if tiles is None:
            return node
        return seq([tirx.AllocBuffer(tiles.own), tirx.AllocBuffer(tiles.result)])

    def visit_evaluate(self, node: tirx.Evaluate) -> tirx.Stmt:
        op = operator_of(node)
        if op is None or not op.writes():
            return node
        if op.role in ("begin", "contribute", "end"):
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
