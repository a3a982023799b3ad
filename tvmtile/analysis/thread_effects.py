"""The effects, in the program of a thread, on memory that barriers order."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Set
from functools import cached_property
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, indices_of, is_buffer_var, mapped
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.effects import Effect, Loop, MbarrierElement, effects_in_memory, effects_on
from tvmtile.ir.annotations import ORDER_OF_STORES
from tvmtile.ir.kernels import Launch, expressions_of, statements_of
from tvmtile.ir.operands import literal
from tvmtile.ir.rewriting import (
    is_pure,
    reads_no_memory,
    statements_in,
    substitute,
    variables_of,
)
from tvmtile.ir.scopes import is_global, is_private, is_shared


class Effects:
    """Finds the accesses of expressions and of single statements.

    Threadgroup memory is looked at, and device memory that the kernel both reads and writes, updates
    atomically besides one of these, or writes in two places, or in the iterations of a loop that have
    an order.

    Parameters
    ----------
    launch : Launch
        What a thread does is in its body: the views of buffers and the bindings there are looked up.
    in_whiles : iterable of str
        The tensors that iterations of `while` loops store to one after the other.

    Attributes
    ----------
    written : set of Var
        The buffers that are written, as the program names them, but for the arrays of a thread.
    exchanged : frozenset of Var
        The device memory that is used in two ways, of reads, writes and atomic updates.
    device_memory : frozenset of Var
        That, and what is written in two places.
    stored_by_iterations : frozenset of Var
        Other device memory, that a loop stores to whose iterations have an order.
    """

    def __init__(self, launch: Launch, in_whiles: Iterable[str] = ()) -> None:
        body = launch.body
        self._aliases = Aliases(body)
        self._in_whiles = frozenset(in_whiles)
        self._stored_in_order = set(self._in_whiles)
        self._objects: dict[int, ir.Var] = {}  # by address
        self._bound: Counter[ir.Var] = Counter()
        self._values: dict[ir.Var, ir.Expr] = {}
        for bind in statements_in(body, tirx.Bind):
            self._note_value(bind)
        for loop in statements_in(body, tirx.For):
            self._stored_in_order |= ordered_by(loop)
        self._resolutions: dict[int, tuple[Any, Any]] = {}
        self._ordered: dict[int, bool] = {}
        self._present: dict[int, tuple[tirx.Stmt, bool]] = {}
        statements: list[tirx.Stmt] = statements_in(body)
        effects = [
            effect
            for stmt in statements
            for part in (expressions_of(stmt) if statements_of(stmt) else [stmt])
            for effect in effects_in_memory(part)
        ]
        self.written = {effect.buffer for effect in effects if effect.writes}
        self._scalars: dict[ir.Var, ir.Expr] = {}
        if any(
            type(stmt) is tirx.AllocBuffer and _is_scalar(buffer_of(stmt)) for stmt in statements
        ):
            self._note_scalars(launch)
        self.exchanged = self._exchanged(effects)
        stores = Counter(
            self.root(effect.buffer) for effect in effects if effect.writes and not effect.is_atomic
        )
        twice = {root for root, count in stores.items() if count > 1 and is_global(root)}
        self.device_memory = self.exchanged | twice
        in_order = self._stored_by_iterations(stores.keys(), effects)
        self.stored_by_iterations = in_order - self.device_memory

    @cached_property
    def written_by_blocks(self) -> frozenset[ir.Var]:
        """The written buffers that other blocks may write too, and their views."""
        root = self._aliases.root
        roots = set(map(root, self.written))
        written = roots.union(view for view in self._aliases.views if root(view) in roots)
        return frozenset(
            buffer
            for buffer in written
            if is_buffer_var(buffer) and not is_shared(buffer) and not is_private(buffer)
        )

    def _note_value(self, bind: tirx.Bind) -> None:
        if bind.var in self._bound:  # in two places, with values that may differ
            self._values.pop(bind.var, None)
        elif ir.is_prim_expr(bind.value) and reads_no_memory(bind.value):
            self._values[bind.var] = substitute(bind.value, self._values)
        self._bound[bind.var] += 1

    def _note_scalars(self, launch: Launch) -> None:
        """Note the values that variables of a thread keep: those stored before any loop, branch or use.

        Where it is loaded from tensors which nobody writes, at one place for all threads, a name stands
        for the value, the same in all expressions.
        """
        threads = {loop.loop_var for loop in launch.threads}
        varying = {*threads, *self._bound, *map(self.root, self.written), *self.written}
        of_root: dict[ir.Var, list[Effect]] = {}
        is_scalar = functools.cache(_is_scalar)
        for effect in effects_on(launch.body, lambda buffer: is_scalar(self.root(buffer))):
            of_root.setdefault(self.root(effect.buffer), []).append(effect)
        for root, effects in of_root.items():
            stores = list(itertools.takewhile(lambda effect: effect.writes, effects))
            if (
                not stores
                or any(effect.writes for effect in effects[len(stores) :])
                or not all(
                    store.value is not None
                    and store.buffer.same_as(root)
                    and store.is_certain
                    and not (store.around or store.conditions)
                    for store in stores
                )
            ):
                continue
            value = self.resolved(stores[-1].value)
            used = variables_of(value)
            if reads_no_memory(value) and not self._bound.keys() & set(used):
                self._scalars[root] = value
            elif (
                varying.isdisjoint(used)
                and not any(is_private(each) for each in used if is_buffer_var(each))
                and is_pure(value)
            ):
                self._scalars[root] = tirx.Var(root.name, str(value.ty.dtype))

    def is_bound_once(self, name: ir.Var) -> bool:
        """Tell whether only one place gives a name its value."""
        return self._bound[name] == 1

    def _exchanged(self, effects: list[Effect]) -> frozenset[ir.Var]:
        read, written, updated = (
            {self.root(effect.buffer) for effect in effects if _is_of_kind(effect)}
            for _is_of_kind in (
                lambda effect: not (effect.is_atomic or effect.writes),
                lambda effect: not effect.is_atomic and effect.writes,
                lambda effect: effect.is_atomic,
            )
        )
        in_two_ways = (read & written) | (written & updated) | (read & updated)
        return frozenset(filter(is_global, in_two_ways))

    def _stored_by_iterations(
        self, stored: Set[ir.Var], effects: list[Effect]
    ) -> frozenset[ir.Var]:
        """The device memory that a loop stores to whose iterations have an order.

        Asynchronous copies keep an order of their own.
        """
        copied = {self.root(effect.buffer) for effect in effects if effect.token is not None}
        in_order = self._stored_in_order
        return frozenset(
            root for root in stored - copied if is_global(root) and root.name in in_order
        )

    def root(self, buffer: ir.Var) -> ir.Var:
        """The buffer that a view looks at: always the same object."""
        root = self._aliases.root(buffer)
        return self._objects.setdefault(hash(root), root)

    def loop(self, node: tirx.For | tirx.While, is_uniform: bool) -> Loop:
        """A loop, as the accesses in it know it."""
        if isinstance(node, tirx.While):
            return Loop(node, is_uniform, ordered=self._in_whiles)
        bounds = self.resolved(node.min), self.resolved(node.extent)
        return Loop(node, is_uniform, *bounds, ordered_by(node))

    def of(
        self,
        node: ir.Node,
        loops: tuple[Loop, ...],
        conditions: tuple[ir.Expr, ...],
        **region: object,
    ) -> list[Effect]:
        """The accesses of an expression, or of a statement that holds no others, in their order.

        The last ones are attributes of them all.
        """
        return [
            self._effect(effect, node, loops, conditions, region)
            for effect in effects_in_memory(node)
            if self._is_ordered(effect.buffer)
        ]

    def are_in(self, stmt: tirx.Stmt) -> bool:
        """Tell whether a statement accesses memory that barriers order, or calls anything."""
        known = self._present.get(hash(stmt))
        if known is None:
            children = statements_of(stmt)
            own = expressions_of(stmt) if children else [stmt]
            are_in = (
                type(stmt) is tirx.Evaluate
                or any(map(self.are_in, children))
                or any(
                    self._is_ordered(each.buffer)
                    for part in own
                    for each in effects_in_memory(part)
                )
            )
            known = self._present[hash(stmt)] = stmt, are_in
        return known[1]

    def _is_ordered(self, buffer: ir.Var) -> bool:
        if hash(buffer) not in self._ordered:
            root = self.root(buffer)
            of_device = self.device_memory | self.stored_by_iterations
            self._ordered[hash(buffer)] = is_shared(root) or root in of_device
        return self._ordered[hash(buffer)]

    def _effect(
        self,
        effect: Effect,
        node: ir.Node,
        loops: tuple[Loop, ...],
        conditions: tuple[ir.Expr, ...],
        region: dict[str, Any],
    ) -> Effect:
        start = self._aliases.start(effect.buffer)
        indices = None if start is None or not effect.is_exact else effect.indices
        root = self.root(effect.buffer)
        ordering = None
        if root in self.stored_by_iterations:
            ordering = tuple(loop for loop in loops if root.name in loop.ordered)
        return effect.changed(
            root=root,
            indices=None if indices is None else tuple(map(self.resolved, indices)),
            block=tuple((extent, self.resolved(stride)) for extent, stride in effect.block),
            conditions=tuple(map(self.resolved, (*conditions, *effect.conditions))),
            ranks=None if effect.ranks is None else tuple(map(self.resolved, effect.ranks)),
            nodes=(node,),
            start=start,
            loops=loops,
            ordering=ordering,
            mbarrier=None if effect.completes_on is None else self.mbarrier(effect.completes_on),
            **region,
        )

    def mbarrier(self, element: ir.TensorLoad) -> MbarrierElement:
        """The mbarrier that an element is."""
        return MbarrierElement(
            self.root(buffer_of(element)), literal(self.resolved(indices_of(element)[0]))
        )

    def resolved(self, expression: ir.Expr) -> ir.Expr:
        """An expression with bound names replaced by their values, where these never change."""
        if not self._values and not self._scalars:
            return expression
        if hash(expression) not in self._resolutions:
            found = substitute(expression, self._values)
            if self._scalars:
                found = mapped(found, (ir.TensorLoad, self._loaded))
            self._resolutions[hash(expression)] = expression, found
        return self._resolutions[hash(expression)][1]

    def _loaded(self, load: ir.TensorLoad) -> ir.Expr:
        return self._scalars.get(buffer_of(load), load)


def _is_scalar(buffer: ir.Var) -> bool:
    """Tell whether a buffer is an integer that each thread has for itself."""
    has_one = [literal(extent) for extent in buffer.ty.shape] == [1]
    return has_one and is_private(buffer) and str(buffer.ty.dtype).startswith("int")


def ordered_by(loop: tirx.For) -> frozenset[str]:
    """The tensors that the iterations of a loop store to one after the other; see OrderIterations."""
    return frozenset(map(str, loop.annotations.get(ORDER_OF_STORES, ())))
