"""InterchangeLoopsOnCpu: a serial loop moves out of T.Parallel, which LLVM can vectorize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvmtile._tvm import mapped, nodes_in
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.effects import effects_of
from tvmtile.ir.extents import linear_in
from tvmtile.ir.kernels import flattened, is_parallel, with_body
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import (
    contains,
    has_effect,
    mentions,
    replace_loop,
    seq,
    with_fresh_variables,
)

_FEWEST = 8
"""Iterations that are worth a vector."""


@prim_func_pass("InterchangeLoopsOnCpu", requires=(Property.NO_TILE_OPERATORS,))
def InterchangeLoopsOnCpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Move the innermost loop of T.Parallel into the serial loops of its body.

    An iteration that sums in a serial loop, as a product of matrices written by hand does, is a chain
    of additions that LLVM can't vectorise. With the loops interchanged, neighbouring iterations add
    to neighbouring elements. What stands beside the serial loop gets a loop of its own.

    Each element sees the same operations in the same order, because every element that is stored
    belongs to one iteration: all accesses to its buffer have the same last index, which grows by one
    with the iteration and with nothing else in it. Where that is not so, or where an access strides
    over memory, nothing changes.
    """
    aliased = Aliases(func.body).aliased

    def interchange(loop: tirx.For) -> tirx.Stmt:
        return _distributed(loop, loop.body) if _is_legal(loop, aliased) else loop

    return with_body(func, mapped(func.body, (tirx.For, interchange)))


def _is_legal(loop: tirx.For, aliased: set[ir.Var]) -> bool:
    extent = constant(loop.extent)
    if not is_parallel(loop) or (extent is not None and extent < _FEWEST):
        return False
    if not any(isinstance(stmt, tirx.For) for stmt in flattened(loop.body)):
        return False
    if not _is_plain(loop.body, loop.loop_var) or has_effect(loop.body):
        return False
    accesses: dict[ir.Var, list[Any]] = {}
    stored: set[ir.Var] = set()

    for access in effects_of(loop.body):
        accesses.setdefault(access.root, []).append(access.indices)
        if access.value is not None:
            stored.add(access.root)
    inner = [inside.loop_var for inside in nodes_in(loop.body, tirx.For)]
    if stored & aliased or not all(_is_owned(accesses[b], loop.loop_var, inner) for b in stored):
        return False
    return all(_is_contiguous(i, loop.loop_var) for found in accesses.values() for i in found)


def _is_plain(stmt: tirx.Stmt, var: ir.Var) -> bool:
    """Tell whether a statement is made of stores, and of serial loops that are alike for all."""
    if isinstance(stmt, tirx.SeqStmt):
        return all(_is_plain(child, var) for child in stmt.seq)
    if isinstance(stmt, tirx.For):
        bounds = [stmt.min, stmt.extent]
        depends = contains(bounds, (ir.Var, ir.TensorLoad), lambda node: _varies(node, var))
        return stmt.kind == tirx.ForKind.SERIAL and not depends and _is_plain(stmt.body, var)
    return isinstance(stmt, tirx.BufferStore)


def _varies(node: ir.Expr, var: ir.Var) -> bool:
    return isinstance(node, ir.TensorLoad) or node.same_as(var)


def _is_owned(accesses: list[Any], var: ir.Var, inner: list[ir.Var]) -> bool:
    """Tell whether all accesses share their last index, and it alone tells the iteration."""
    first = accesses[0][-1]
    if _step(first, var) != 1 or contains(first, ir.Var, lambda used: used in inner):
        return False
    return all(tvm_ffi.structural_equal(indices[-1], first) for indices in accesses)


def _is_contiguous(indices: Sequence[ir.Expr], var: ir.Var) -> bool:
    """Tell whether the next iteration accesses the same element, or the next one."""
    *outer, last = indices
    fixed = not any(mentions(index, var) for index in outer)
    return fixed and _step(last, var) in (0, 1)


def _step(index: ir.Expr, var: ir.Var) -> int | None:
    """The growth of an index with the iteration; None where that is not one number."""
    if not mentions(index, var):
        return 0
    if contains(index, (ir.TensorLoad, ir.Call, tirx.Ramp)):
        return None
    linear = linear_in(index, var)
    return None if linear is None else linear[0]


def _distributed(loop: tirx.For, body: tirx.Stmt) -> tirx.Stmt:
    """The loop around each of the statements, inside of the serial ones."""
    parts: list[tirx.Stmt] = []
    together: list[tirx.Stmt] = []

    def close() -> None:
        if together:
            around = replace_loop(
                loop, body=seq(together), kind=tirx.ForKind.SERIAL, annotations={}
            )
            parts.append(with_fresh_variables(around))
            together.clear()

    for stmt in flattened(body):
        if isinstance(stmt, tirx.For):
            close()
            parts.append(replace_loop(stmt, body=_distributed(loop, stmt.body)))
        else:
            together.append(stmt)
    close()
    return seq(parts)
