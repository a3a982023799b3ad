"""What the two roles of a specialised kernel do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import Mutator, mapped, mutated, walk
from tvmtile.analysis.accesses import accesses_of
from tvmtile.ir.annotations import NO_UNROLLING
from tvmtile.ir.asynchronous import asynchronously, signal, wait
from tvmtile.ir.kernels import flattened
from tvmtile.ir.operands import constant
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import (
    contains,
    has_effect,
    replace_loop,
    seq,
    substitute,
    variables_of,
    with_fresh_variables,
)
from tvmtile.passes.tile.pipelining import (
    Body,
    KernelTiles,
    body_of,
    other_annotations,
    work_of,
)
from tvmtile.passes.tile.specialization.candidates import Candidate, Unsuitable
from tvmtile.passes.tile.specialization.ring import Ring

__all__ = ["Split", "consumers_of", "producer_of"]


@dataclass(frozen=True)
class Split:
    """A loop that is split.

    Attributes
    ----------
    candidate : Candidate
        The loop as it was.
    rings : list of Ring
        Of its tiles.
    counter : Var or None
        Counts the iterations of former executions of the loop, and of others with its tiles, where
        there may be some.
    """

    candidate: Candidate
    rings: list[Ring]
    counter: ir.Var | None

    @property
    def variable(self) -> ir.Var:
        """The variable of the loop."""
        return self.candidate.loop.loop_var

    def filled(self, ring: Ring) -> list[ir.Var]:
        """The tiles of a ring."""
        return [tile for unit in ring.units for tile in self.candidate.units[unit].writes]

    def counted(self, loop: tirx.For) -> list[tirx.Stmt]:
        """What counts the iterations of an execution of the loop."""
        if self.counter is None:
            return []
        total = tirx.BufferLoad(self.counter, [0]) + loop.extent
        return [tirx.BufferStore(self.counter, total, [0])]


Splits = Mapping[ir.Var, Split]
"""By the variable of the loop."""


def _counters(splits: Splits) -> list[tirx.Stmt]:
    """Counters that begin."""
    counters = (each.counter for each in splits.values() if each.counter is not None)
    return [
        statement
        for counter in dict.fromkeys(counters)
        for statement in (
            tirx.AllocBuffer(counter),
            tirx.BufferStore(counter, tirx.const(0, str(counter.ty.dtype)), [0]),
        )
    ]


def _parts(loop: tirx.For, split: Split, tiles: KernelTiles) -> Body:
    body = body_of(loop, tiles, split=True)
    assert len(body.units) == len(split.candidate.units), "the loop was split before"
    return body


# Consumers ---------------------------------------------------------------------------------------


def consumers_of(
    body: tirx.Stmt, splits: Splits, tiles: KernelTiles, thread: ir.Expr, kind: str
) -> tirx.Stmt:
    """What the consumers do: all but the producer's copies.

    Parameters
    ----------
    body : Stmt
        What a block does, in which tiles have their buffer copies.
    splits : mapping of Var to Split
        Its loops, by their variable.
    tiles : KernelTiles
        Of the kernel.
    thread : Expr
        The number of a thread among the consumers'.
    kind : str
        Of the target.
    """

    def visit(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        split = splits.get(loop.loop_var)
        if split is None:
            return mutator.default_mutate(loop)
        return seq(_consuming(loop, split, _parts(loop, split, tiles), thread, kind))

    return seq([*_counters(splits), mutated(body, (tirx.For, visit))])


def _consuming(
    loop: tirx.For, split: Split, body: Body, thread: ir.Expr, kind: str
) -> list[tirx.Stmt]:
    tokens = {
        number: f"{work.name}/{loop.loop_var.name}{number}"
        for number in split.candidate.in_flight
        if (work := work_of(body.units[number], kind)) is not None
    }
    statements: list[tirx.Stmt] = []
    for number, unit in enumerate(body.units):
        if number in split.candidate.producers:
            continue
        statements += [ring.wait_until_full() for ring in split.rings if ring.first == number]
        statements += _begun(unit.stmt, tokens.get(number))
        for ring in split.rings:
            if ring.last == number:
                statements += _released(ring, loop, thread)
    used = body.bindings_for(statements)
    return [
        *body.declarations,
        _rolled(loop, [*used, *statements]),
        *(wait(token, 0) for token in tokens.values()),
        *_released_last(split, loop, thread),
        *split.counted(loop),
    ]


def _begun(stmt: tirx.Stmt, token: str | None) -> list[tirx.Stmt]:
    """A statement, which goes on until the next iteration has issued its own if it has a token."""
    if token is None:
        return [stmt]
    return [asynchronously(token, stmt), signal(token), wait(token, 1)]


def _released(ring: Ring, loop: tirx.For, thread: ir.Expr) -> list[tirx.Stmt]:
    """Behind the last use in an iteration: the copy is free, or that of the iteration before."""
    if not ring.in_flight:
        return ring.release(thread)
    return ring.release(thread, ring.iteration - _one(loop), loop.loop_var > loop.min)


def _released_last(split: Split, loop: tirx.For, thread: ir.Expr) -> list[tirx.Stmt]:
    """Behind the loop: the copies of the last iteration, if there was one."""
    last = loop.min + loop.extent - _one(loop)
    happens = None if (constant(loop.extent) or 0) > 0 else loop.extent > 0
    return [
        statement
        for ring in split.rings
        if ring.in_flight
        for statement in ring.release(
            thread, substitute(ring.iteration, {split.variable: last}), happens
        )
    ]


def _one(loop: tirx.For) -> ir.Expr:
    return tirx.const(1, str(loop.loop_var.ty.dtype))


def _rolled(loop: tirx.For, body: list[tirx.Stmt]) -> tirx.For:
    """A loop to be split with the body of a role.

    Compilers of CUDA would unroll it where the number of iterations is known, and move instructions
    between products that then have to wait for each other.
    """
    annotations = {**other_annotations(loop), NO_UNROLLING: 1}
    return replace_loop(loop, annotations=annotations, body=seq(body))


# Producer ----------------------------------------------------------------------------------------


def producer_of(body: tirx.Stmt, splits: Splits, tiles: KernelTiles, thread: ir.Expr) -> tirx.Stmt:
    """What the producer does: the copies, in the loops and under the conditions around them.

    Parameters
    ----------
    body, splits, tiles
        As of `consumers_of`.
    thread : Expr
        The number of a thread among the producer's.

    Raises
    ------
    Unsuitable
        If the copies depend on what only consumers know.
    """
    sliced = _Slicer(body, splits, tiles, thread).slice()
    whole = with_fresh_variables(seq([*_counters(splits), sliced]))
    _check_known(whole, body)
    return whole


class _Slicer:
    """Keeps the loops to be split, what is around them, and the names that they need."""

    def __init__(
        self, body: tirx.Stmt, splits: Splits, tiles: KernelTiles, thread: ir.Expr
    ) -> None:
        self._body = body
        self._splits = splits
        self._tiles = tiles
        self._thread = thread
        self._written = {tiles.root(a.buffer) for a in accesses_of(body) if a.writes}

    def slice(self) -> tirx.Stmt:
        return seq(self._of(self._body))

    def _of(self, stmt: tirx.Stmt) -> list[tirx.Stmt]:
        """What a statement is to the producer; nothing where there are no loops to be split."""
        if isinstance(stmt, tirx.For) and stmt.loop_var in self._splits:
            return self._producing(stmt, self._splits[stmt.loop_var])
        if not contains(stmt, tirx.For, lambda loop: loop.loop_var in self._splits):
            return []
        if isinstance(stmt, tirx.SeqStmt):
            return self._sequence(stmt)
        if isinstance(stmt, tirx.For):
            self._check_replayable(stmt.min, stmt.extent)
            return [replace_loop(stmt, body=seq(self._of(stmt.body)))]
        if isinstance(stmt, tirx.IfThenElse):
            self._check_replayable(stmt.condition)
            other = None if stmt.else_case is None else seq(self._of(stmt.else_case))
            return [tirx.IfThenElse(stmt.condition, seq(self._of(stmt.then_case)), other)]
        if isinstance(stmt, tirx.AttrStmt):
            return [tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, seq(self._of(stmt.body)))]
        raise Unsuitable("the loop is inside of a statement that only consumers do")

    def _sequence(self, stmt: tirx.SeqStmt) -> list[tirx.Stmt]:
        """The loops, and before them the names that they use."""
        kept: list[tirx.Stmt] = []
        used: set[ir.Var] = set()
        for child in reversed(list(flattened(stmt))):
            parts = (
                [child] if isinstance(child, tirx.Bind) and child.var in used else self._of(child)
            )
            if isinstance(child, tirx.Bind) and parts:
                self._check_replayable(child.value)
            used.update(var for part in parts for var in variables_of(part))
            kept = [*parts, *kept]
        return kept

    def _check_replayable(self, *values: Any) -> None:
        for value in values:
            if has_effect(value) or contains(value, ir.TensorLoad, self._is_of_kernel):
                raise Unsuitable(f"{value} depends on what the kernel writes")

    def _is_of_kernel(self, load: ir.TensorLoad) -> bool:
        return self._tiles.root(load.source) in self._written

    def _producing(self, loop: tirx.For, split: Split) -> list[tirx.Stmt]:
        body = _parts(loop, split, self._tiles)
        statements: list[tirx.Stmt] = []
        for ring in split.rings:
            copies = [_arriving(body.units[number].stmt, ring) for number in ring.units]
            statements += ring.fill(copies, self._thread)
        used = body.bindings_for(statements)
        inner = _rolled(loop, [*used, *statements])
        return [inner, *split.counted(loop)]


def _arriving(stmt: tirx.Stmt, ring: Ring) -> tirx.Stmt:
    """A copy, which arrives on the mbarrier of a ring."""

    def rewrite(call: ir.Call) -> Any:
        op = operator_of(call)
        begun = op.begun_on(ring.arrives_on) if op is not None and op.is_tile else None
        return call if begun is None else begun.to_call(call.span)

    return mapped(stmt, (ir.Call, rewrite))


def _check_known(producer: tirx.Stmt, body: tirx.Stmt) -> None:
    """Make sure that it uses no name that something else in the kernel binds."""
    bound: set[ir.Var] = set()
    walk(
        body,
        (tirx.For, lambda node: bound.add(node.loop_var)),
        ((tirx.Bind, tirx.Let), lambda node: bound.add(node.var)),
    )
    unknown = next((var for var in variables_of(producer) if var in bound), None)
    if unknown is not None:
        raise Unsuitable(f"the copies depend on {unknown.name}, which only consumers know")
