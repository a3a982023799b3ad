"""Visiting what a statement or an expression does to memory, in the order in which it is done."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import Mutator, Rewriting, indices_of, is_buffer_var, mutated, ranges_of
from tvmtile.ir.calls import is_if_then_else
from tvmtile.ir.operators import TileOp, operator_of


def mbarriers_of(op: TileOp) -> list[ir.TensorLoad]:
    """The mbarriers on which an operator completes or at which it arrives, beside what it writes."""
    named = (op.completes_on(), op.releases())
    written = op.writes()
    return [each for each in named if each is not None and not any(map(each.same_as, written))]


class Collector:
    """Calls a method for each load, store, operator and function, what these are given first.

    An operand of an operator names a place and is no load; its indices are expressions like others.

    Attributes
    ----------
    conditions : tuple of Expr
        Those of the branches around what is visited, as they have to be.
    """

    def __init__(self) -> None:
        self.conditions: tuple[ir.Expr, ...] = ()

    def visit(self, node: ir.Node, *others: Rewriting) -> None:
        """Go through a node; nodes of other types are given to callbacks."""
        mutated(
            node,
            (tirx.BufferStore, self._store),
            (ir.TensorLoad, self._load),
            (ir.Call, self._call),
            *others,
        )

    def on_store(self, store: tirx.BufferStore) -> None:
        """Note a store."""
        raise NotImplementedError

    def on_load(self, load: ir.TensorLoad) -> None:
        """Note a load."""
        raise NotImplementedError

    def on_operator(self, op: TileOp, call: ir.Call, mutator: Mutator) -> None:
        """Visit what an operator is given besides operands; subclasses note what it does to these."""
        operands = [*op.reads(), *op.writes(), *mbarriers_of(op)]
        for argument in call.args[:]:
            if is_buffer_var(argument):
                continue
            if not any(argument.same_as(operand) for operand in operands):
                mutator.mutate(argument)
            elif isinstance(argument, ir.TensorRegion):
                for r in ranges_of(argument)[:]:
                    mutator.mutate(r.min)
                    mutator.mutate(r.extent)
            else:
                for index in indices_of(argument)[:]:
                    mutator.mutate(index)

    def on_call(self, call: ir.Call, mutator: Mutator) -> None:
        """Visit a function that is called, and its arguments."""
        raise NotImplementedError

    def cases(
        self, mutator: Mutator, condition: ir.Expr, then: ir.Node, otherwise: ir.Node | None
    ) -> None:
        """Visit a condition and the two cases of a branch."""
        mutator.mutate(condition)
        outer = self.conditions
        for case, holds in ((then, condition), (otherwise, tirx.Not(condition))):
            self.conditions = (*outer, holds)
            if case is not None:
                mutator.mutate(case)
        self.conditions = outer

    def _store(self, store: tirx.BufferStore, mutator: Mutator) -> tirx.Stmt:
        mutator.mutate(store.value)
        for index in indices_of(store)[:]:
            mutator.mutate(index)
        self.on_store(store)
        return store

    def _load(self, load: ir.TensorLoad, mutator: Mutator) -> ir.Expr:
        self.on_load(load)
        return mutator.default_mutate(load)

    def _call(self, call: ir.Call, mutator: Mutator) -> ir.Expr:
        op = operator_of(call)
        if op is not None:
            self.on_operator(op, call, mutator)
        elif is_if_then_else(call):
            self.cases(mutator, *call.args)
        else:
            self.on_call(call, mutator)
        return call
