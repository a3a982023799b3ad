"""SplitReducers: every thread of a block has totals of its own until a reducer is finalized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, indices_of, nodes_in
from tvmtile.analysis.contributions import contribution
from tvmtile.errors import InvalidOperand
from tvmtile.ir.combiners import COMBINERS, Combiner
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


class _ReducerTiles:
    """The two tiles of a reducer."""

    def __init__(self, reducer: ir.Var) -> None:
        ty = reducer.ty
        self.kind = str(ty.storage_scope).removeprefix(REDUCER_SCOPE)
        dtype = str(ty.dtype)
        self.own = tirx.decl_buffer(ty.shape, dtype, name=f"{reducer.name}_own", scope="local")
        self.result = tirx.decl_buffer(ty.shape, dtype, name=reducer.name, scope=FRAGMENT_SCOPE)
        self.is_open = False

    @property
    def combiner(self) -> Combiner:
        return COMBINERS[self.kind]


class _Split(ScopedRewriter):
    """Goes through the program in order; a reducer is open between its start and its end."""

    def __init__(self, body: tirx.Stmt) -> None:
        super().__init__()
        self._parts: dict[ir.Var, _ReducerTiles] = {}

        for each in nodes_in(body, tirx.AllocBuffer):
            if str(buffer_of(each).ty.storage_scope).startswith(REDUCER_SCOPE):
                self._parts[buffer_of(each)] = _ReducerTiles(buffer_of(each))

    def split(self, body: tirx.Stmt) -> tirx.Stmt:
        """The program with two tiles for each reducer."""
        if not self._parts:
            return body
        results = {reducer: parts.result for reducer, parts in self._parts.items()}
        return substitute(self.rewrite(body), results)

    def visit_alloc(self, node: tirx.AllocBuffer) -> tirx.Stmt:
        parts = self._parts.get(buffer_of(node))
        if parts is None:
            return node
        return seq([tirx.AllocBuffer(parts.own), tirx.AllocBuffer(parts.result)])

    def visit_evaluate(self, node: tirx.Evaluate) -> tirx.Stmt:
        op = operator_of(node)
        if op is None:
            return self.descend(node)
        written = [buffer_of(operand) for operand in op.writes()]
        if op.role == "end":
            return self._finalized(op, node.span)
        reducers = [self._parts[buffer] for buffer in written if buffer in self._parts]
        if not reducers:
            return self.descend(node)
        return self._started_or_updated(op, reducers[0], node)

    def _finalized(self, op: TileOp, span: ir.Span | None) -> tirx.Stmt:
        (src,), (dst,) = op.reads(), op.writes()
        parts = self._parts[buffer_of(src)]
        parts.is_open = False
        if buffer_of(dst).same_as(buffer_of(src)):
            dst = as_region(parts.result)
        end = operator_for("end")(as_region(parts.own), dst, parts.kind)
        return tirx.Evaluate(end.to_call(span), span)

    def _started_or_updated(
        self, op: TileOp, parts: _ReducerTiles, node: tirx.Evaluate
    ) -> tirx.Stmt:
        if op.role == "contribute":
            total, value = node.value.args
            return self._updated(parts, indices_of(total), value, node.span)
        if op.role == "begin":
            value = node.value.args[1]
        else:
            value = None if parts.is_open else _constant_fill(op)
        if value is None:
            return self.descend(node)
        parts.is_open = True
        start = operator_for("begin")(as_region(parts.own), self.mutate(value), parts.kind)
        return tirx.Evaluate(start.to_call(node.span), node.span)

    def _updated(
        self, parts: _ReducerTiles, indices: Sequence[ir.Expr], value: ir.Expr, span: ir.Span | None
    ) -> tirx.Stmt:
        place = tirx.BufferLoad(parts.own, [self.mutate(index) for index in indices])
        update = operator_for("contribute")(place, self.mutate(value), parts.kind)
        return tirx.Evaluate(update.to_call(span), span)

    def visit_store(self, node: tirx.BufferStore) -> tirx.Stmt:
        parts = self._parts.get(buffer_of(node))
        if parts is None:
            return self.descend(node)
        if not parts.is_open:
            indices = [self.mutate(index) for index in indices_of(node)]
            return tirx.BufferStore(parts.result, self.mutate(node.value), indices, node.span)
        value = contribution(node, parts.combiner)
        if value is None:
            raise InvalidOperand(
                f"{describe(buffer_of(node))} is stored something else than a contribution",
                help="update it as in `total[i] += x` or by T.reducer_update, and read the totals "
                "after T.finalize_reducer",
                location=location_of(node),
            )
        return self._updated(parts, indices_of(node), value, node.span)


def _constant_fill(op: TileOp) -> Any:
    """The value that an elementwise operator sets every element to; None for any other."""
    loops = op.as_loops()
    stores = [] if loops is None else nodes_in(loops, tirx.BufferStore)
    if len(stores) != 1 or contains(stores[0].value, (ir.TensorLoad, ir.Var)):
        return None
    return stores[0].value
