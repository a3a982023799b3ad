"""Moves from global to shared memory as asynchronous copies, 16, 8 or 4 bytes each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of, indices_of
from tvmtile.ir.asynchronous import issue
from tvmtile.ir.calls import is_if_then_else
from tvmtile.ir.conditions import conjuncts
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import for_loop, mentions, substitute
from tvmtile.ir.scopes import is_global, is_shared
from tvmtile.passes.gpu.vector_moves import LARGEST, bytes_of, contiguous_base

_SIZES = (16, 8, 4)


def as_async_copies(
    variable: ir.Var, extent: int, body: tirx.Stmt, analyzer: Analyzer, token: str
) -> tirx.Stmt | None:
    """A loop over contiguous elements as asynchronous copies.

    None if an iteration does not just move an element, or zero where it lies outside, or if no four
    bytes of contiguous elements are aligned on both sides.
    """
    move = _move_of(body)
    if move is None:
        return None
    for size in _SIZES:
        lanes = size // bytes_of(buffer_of(move.store))
        if lanes and extent % lanes == 0:
            found = _in_pieces(variable, extent // lanes, lanes, move, analyzer, token)
            if found is not None:
                return found
    return None


@dataclass(frozen=True)
class _Move:
    """`shared[i] = global[j] if all(conditions) else 0`."""

    store: tirx.BufferStore
    load: ir.TensorLoad
    conditions: tuple[ir.Expr, ...] = ()

    def substituted(self, values: dict[ir.Var, ir.Expr]) -> _Move:
        conditions = tuple(substitute(condition, values) for condition in self.conditions)
        return _Move(substitute(self.store, values), substitute(self.load, values), conditions)


def _move_of(body: tirx.Stmt) -> _Move | None:
    if not isinstance(body, tirx.BufferStore) or not is_shared(buffer_of(body)):
        return None
    value, conditions = body.value, ()
    if isinstance(value, ir.Call):
        if not is_if_then_else(value) or not _is_zero(value.args[2]):
            return None
        conditions, value = tuple(conjuncts(value.args[0])), value.args[1]
    if not isinstance(value, ir.TensorLoad) or not is_global(buffer_of(value)):
        return None
    if (
        buffer_of(value).ty.dtype != buffer_of(body).ty.dtype
        or not 0 < bytes_of(buffer_of(body)) <= LARGEST
    ):
        return None
    return _Move(body, value, conditions)


def _is_zero(value: ir.Expr) -> bool:
    return isinstance(value, tirx.IntImm | tirx.FloatImm) and value.value == 0


def _in_pieces(
    variable: ir.Var, count: int, lanes: int, move: _Move, analyzer: Analyzer, token: str
) -> tirx.Stmt | None:
    """One copy a piece of some lanes, if the pieces are aligned and lie in rows of the tile."""
    dtype = str(variable.ty.dtype)
    piece, lane = tirx.Var("piece", dtype), tirx.Var("lane", dtype)
    analyzer.bind(piece, ir.Range(0, count))
    analyzer.bind(lane, ir.Range(0, lanes))
    first = piece * lanes if count > 1 else tirx.const(0, dtype)
    move = move.substituted({variable: first + lane})
    target = contiguous_base(buffer_of(move.store), indices_of(move.store), lane, lanes, analyzer)
    source = contiguous_base(buffer_of(move.load), indices_of(move.load), lane, lanes, analyzer)
    if source is None or target is None or len(target) != len(indices_of(move.store)):
        return None
    read = _bytes_inside(move, lane, lanes, analyzer)
    if read is None:
        return None
    size = lanes * bytes_of(buffer_of(move.store))
    copy = _copy(move.substituted({lane: tirx.const(0, dtype)}), size, read, analyzer, token)
    return copy if count == 1 else for_loop(piece, count, copy, tirx.ForKind.UNROLLED)


def _copy(move: _Move, size: int, read: ir.Expr, analyzer: Analyzer, token: str) -> tirx.Stmt:
    """A copy of some bytes, zeros for those behind the ones that are read.

    The address may lie outside of the tensor where nothing is read.
    """
    target, source = (
        T.address_of(tirx.BufferLoad(buffer, [analyzer.simplify(index) for index in indices]))
        for buffer, indices in (
            (buffer_of(move.store), indices_of(move.store)),
            (buffer_of(move.load), indices_of(move.load)),
        )
    )
    rest = () if constant(read) == size else (read,)
    return issue(token, target, source, size, *rest)


def _bytes_inside(move: _Move, lane: ir.Var, lanes: int, analyzer: Analyzer) -> Any:
    """The bytes of a piece that lie inside the tensor, its first ones; None if not known."""
    inside: list[ir.Expr] = []
    count: ir.Expr = tirx.const(lanes, "int32")
    for condition in move.conditions:
        if not mentions(condition, lane):
            inside.append(condition)
            continue
        bound = _bound(condition, lane, lanes, analyzer)
        if bound is None:
            return None
        if bound.is_of_all:
            inside.append(bound.condition)
        else:
            count = tirx.min(count, tirx.max(bound.left, 0))
    number = tirx.Cast("uint32", count * bytes_of(buffer_of(move.store)))
    read = analyzer.simplify(number)
    return tirx.Select(tirx.all(*inside), read, tirx.const(0, "uint32")) if inside else read


@dataclass(frozen=True)
class _LaneBound:
    """The bound that a condition on a lane index sets for a piece."""

    condition: ir.Expr
    """Of the first lane."""
    is_of_all: bool
    """The condition holds for all lanes or for none."""
    left: ir.Expr | None = None
    """For how many lanes it holds, from the first one on, if that is not less than none or more than
    there are.
    """


def _bound(condition: ir.Expr, lane: ir.Var, lanes: int, analyzer: Analyzer) -> _LaneBound | None:
    if not isinstance(condition, tirx.LT | tirx.GE):
        return None
    index, limit = condition.a, condition.b
    base = substitute(index, {lane: tirx.const(0, str(lane.ty.dtype))})
    if mentions(limit, lane):
        return None
    if not analyzer.can_prove_equal(index - base, lane):
        return None

    def is_whole(value: ir.Expr) -> bool:
        return bool(analyzer.can_prove_equal(tirx.floormod(value, lanes), 0))

    first = type(condition)(base, limit)
    if is_whole(base) and is_whole(limit):
        return _LaneBound(first, is_of_all=True)
    if isinstance(condition, tirx.GE):
        return None
    return _LaneBound(first, is_of_all=False, left=tirx.Cast("int32", limit - base))
