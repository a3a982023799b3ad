"""The blocks of a cluster that reach each other's shared memory, as barriers see them.

All run one program, and what tells them apart is their rank: an access, an arrival or a wait is that of
each block for which its conditions may hold, with the rank in place. One that reaches into the memory
of another block touches the tile there; an arrival counts at the mbarrier there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, is_buffer_var, mapped, nodes_in
from tvmtile.analysis.conflicts.footprint import Footprints
from tvmtile.analysis.effects import Effect, Loop
from tvmtile.analysis.thread_effects import Effects
from tvmtile.ir.annotations import CLUSTER_ANNOTATION
from tvmtile.ir.conditions import conjuncts
from tvmtile.ir.operands import constant
from tvmtile.ir.operators import TileOp, operator_of, operators_in
from tvmtile.ir.rewriting import contains, mentions, substitute, variables_of
from tvmtile.ir.scopes import is_shared
from tvmtile.ir.tensor_maps import is_encoder

_MOST_BLOCKS = 16
"""Of a cluster; no GPU has larger ones."""


def blocks_together(kernel: tirx.For) -> int:
    """The number of blocks that reach each other's memory: a cluster's, or one."""
    size = math.prod(map(int, kernel.annotations.get(CLUSTER_ANNOTATION, [1])))
    reaches = size > 1 and any(op.effects().ranks is not None for op in operators_in(kernel))
    return size if reaches else 1


def is_published(kernel: tirx.For, function: tirx.Stmt, effects: Effects) -> bool:
    """Tell whether threads may write what other blocks read: in the memory of these, or in a tensor.

    `function` is what makes the tensor maps.
    """
    operators = operators_in(kernel)
    if effects.device_memory or any(map(_stores_there, operators)):
        return True
    written = {hash(effects.root(each)) for each in effects.written if not is_shared(each)}
    read = {hash(effects.root(buffer_of(load))) for load in nodes_in(kernel, ir.TensorLoad)}
    tensors = _described(function)
    for op in operators:
        named = {
            hash(effects.root(t)) for v in variables_of(op.to_call()) for t in tensors.get(v, ())
        }
        (read if op.writes() else written).update(named)
    return not read.isdisjoint(written)


def _stores_there(op: TileOp) -> bool:
    """Tell whether threads store to the memory of another block, not a copy nor an arrival there."""
    effects = op.effects()
    is_store = effects.writes and effects.completes_on is None and effects.arrives_at is None
    return bool(is_store) and effects.ranks is not None


def _described(function: tirx.Stmt) -> dict[ir.Var, list[ir.Var]]:
    """The tensors that the tensor maps describe which the host makes."""
    found: dict[ir.Var, list[ir.Var]] = {}
    for call in filter(is_encoder, nodes_in(function, ir.Call)):
        tensor_map, *others = variables_of(call)
        found[tensor_map] = list(filter(is_buffer_var, others))
    return found


class Done(NamedTuple):
    """An access as one block of the cluster does it."""

    block: int
    access: Effect
    places: frozenset[int]
    """The blocks whose memory it may touch."""


class Arrivals(NamedTuple):
    """The arrivals of each block's threads at mbarriers of the cluster."""

    threads: tuple[int, ...]
    """The threads that certainly come, by block, a bit each."""
    reached: tuple[frozenset[int], ...]
    """The blocks at whose mbarrier they certainly are, by their own block."""


class Cluster:
    """The blocks of a cluster, or one alone where they do not reach each other.

    A set of their threads has a bit for each of them, those of the block of rank 0 first.
    """

    def __init__(self, footprints: Footprints, size: int = 1) -> None:
        self._footprints = footprints
        self._size = size
        self._done: dict[Effect, tuple[Done, ...]] = {}
        self._num_threads = footprints.all_threads.bit_length()

    @property
    def all_threads(self) -> int:
        """The threads of all blocks."""
        return (1 << self._size * self._num_threads) - 1

    def of_block(self, block: int, threads: int) -> int:
        """The threads of the cluster that are some threads of a block."""
        return threads << block * self._num_threads

    def in_block(self, block: int, threads: int) -> int:
        """The threads of a block among those of the cluster."""
        return threads >> block * self._num_threads & self._footprints.all_threads

    def by_blocks(self, access: Effect) -> tuple[Done, ...]:
        """An access as each block does it that may."""
        if access not in self._done:
            self._done[access] = tuple(self._each(access))
        return self._done[access]

    def _each(self, access: Effect) -> Iterator[Done]:
        if self._size == 1:
            yield Done(0, access, frozenset([0]))
            return
        for block in range(self._size):
            conditions = tuple(_at(each, block) for each in access.conditions)
            if any(_decided(part) is False for each in conditions for part in conjuncts(each)):
                continue
            there = access.ranks
            ranks = [block] if there is None else [constant(_at(rank, block)) for rank in there]
            known = [rank for rank in ranks if rank is not None]
            places = known if len(known) == len(ranks) else range(self._size)
            yield Done(block, _of_block(access, block, conditions), frozenset(places))

    def arrivals(
        self,
        conditions: Iterable[ir.Expr],
        diverging: Iterable[ir.Expr],
        ranks: Sequence[ir.Expr] | None,
        loops: Sequence[Loop],
    ) -> Arrivals:
        """The blocks that come to a statement at an mbarrier, and those whose mbarrier it is.

        Threads come where `conditions` hold, of which `diverging` differ between threads. `ranks` are
        those of the blocks whose mbarrier it is; None for that of their own.
        """
        if self._size == 1:
            return Arrivals((self._footprints.threads_where(diverging),), (frozenset([0]),))
        parts, on_threads = list(conditions), list(diverging)
        threads, reached = [], []
        for block in range(self._size):
            own = [_at(part, block) for part in on_threads]
            places = self._reached(block, parts, ranks, loops)
            threads.append(self._footprints.threads_where(own) if places else 0)
            reached.append(places)
        return Arrivals(tuple(threads), tuple(reached))

    def _reached(
        self,
        block: int,
        conditions: list[ir.Expr],
        ranks: Sequence[ir.Expr] | None,
        loops: Sequence[Loop],
    ) -> frozenset[int]:
        found: set[int] = set()
        own = [tirx.const(block, "int32")]
        for rank in own if ranks is None else ranks:
            for values in _iterations([loop for loop in loops if _has(rank, loop.var)]):
                deciding = (
                    _decided(substitute(_at(part, block), values))
                    for part in conditions
                    if _has_rank(part) or any(_has(part, name) for name in values)
                )
                place = constant(substitute(_at(rank, block), values))
                if place is not None and all(deciding):
                    found.add(place)
        return frozenset(found)


def _iterations(loops: Sequence[Loop]) -> Iterator[dict[ir.Var, ir.Expr]]:
    """The values of the variables of some loops, as far as they are known and few."""
    known = [
        loop for loop in loops if loop.trip_count is not None and loop.trip_count <= _MOST_BLOCKS
    ]
    ranges = [range(loop.trip_count or 0) for loop in known]
    for numbers in itertools.product(*ranges):
        yield {
            loop.var: loop.low + tirx.const(number, str(loop.var.ty.dtype))
            for loop, number in zip(known, numbers, strict=True)
            if loop.var is not None
        }


def _of_block(access: Effect, block: int, conditions: tuple[ir.Expr, ...]) -> Effect:
    """An access with the rank of a block in place."""
    indices = access.indices
    if not any(map(_has_rank, (*access.conditions, *(indices or ())))):
        return access
    placed = None if indices is None else tuple(_at(index, block) for index in indices)
    return access.changed(indices=placed, conditions=conditions)


def _is_rank(node: Any) -> bool:
    op = operator_of(node)
    return op is not None and op.role == "block rank"


def _has_rank(expression: ir.Expr) -> bool:
    return contains(expression, ir.Call, _is_rank)


def _at(expression: ir.Expr, block: int) -> ir.Expr:
    """An expression with the rank of a block in place."""
    rank = tirx.const(block, "int32")
    return mapped(expression, (ir.Call, lambda call: rank if _is_rank(call) else call))


def _has(expression: ir.Expr, name: ir.Var | None) -> bool:
    return name is not None and mentions(expression, name)


def _decided(condition: ir.Expr) -> bool | None:
    """The truth of a condition, where that is known."""
    value = constant(condition)
    return None if value is None else bool(value)
