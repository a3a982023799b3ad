"""LimitUnrolling: loops are unrolled for the sake of registers, not beyond."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, mutated, walk
from tvmtile.ir.index_width import count_of
from tvmtile.ir.kernels import Launch, unrolled_statement_count, with_kernels
from tvmtile.ir.operands import constant
from tvmtile.ir.operators import operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, has_effect, replace_loop
from tvmtile.ir.scopes import is_private
from tvmtile.ir.threads import WARP_SIZE

_MOST_REGISTERS = 512
"""Elements of an array that may be held in registers, packed ones among them."""
_MOST_STATEMENTS = 1024
"""Statements that a nest is written out as: more than fit into an instruction cache gain nothing."""
_MOST_OF_FEW_THREADS = 64
"""Where a block has less than a warp: each thread goes through whole tiles, one after the other."""


@prim_func_pass("LimitUnrolling", requires=(Property.NO_FRAGMENTS,))
def LimitUnrolling(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make serial loops of unrolled ones whose statements are too many, from the outermost on.

    A loop whose variable says which registers an iteration uses, or what an instruction gets, stays
    unrolled: an array that is indexed at run time lies in memory. An array of more than 512 elements
    does so anyway, as the tiles of a block with few threads do. Where there is
    not a whole warp, fewer statements are written out.
    """

    def limited(kernel: tirx.For) -> tirx.Stmt:
        has_warps = Launch(kernel).num_threads >= WARP_SIZE
        return _limited(kernel, _MOST_STATEMENTS if has_warps else _MOST_OF_FEW_THREADS)

    return with_kernels(func, limited)


def _limited(stmt: tirx.Stmt, most: int) -> tirx.Stmt:
    def visit(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        if loop.kind != tirx.ForKind.UNROLLED:
            return mutator.default_mutate(loop)
        if unrolled_statement_count(loop) <= most:
            return loop
        if _indexes_registers(loop):
            inside = _limited(loop.body, most // (constant(loop.extent) or 1))
            return replace_loop(loop, body=inside)
        return replace_loop(loop, kind=tirx.ForKind.SERIAL, body=_limited(loop.body, most))

    return mutated(stmt, (tirx.For, visit))


def _indexes_registers(loop: tirx.For) -> bool:
    """Tell whether which registers an iteration uses depends on the loop variable."""
    depending = {loop.loop_var}
    found = False

    def depends(node: ir.Expr) -> bool:
        return contains(node, ir.Var, depending.__contains__)

    def bind(node: tirx.Bind) -> None:
        if depends(node.value):
            depending.add(node.var)

    def access(buffer: ir.Var, indices: Sequence[ir.Expr]) -> None:
        nonlocal found
        found = found or (_is_in_registers(buffer) and any(map(depends, indices)))

    def call(node: ir.Call) -> None:
        nonlocal found
        is_instruction = operator_of(node) is None and has_effect(node)
        found = found or (is_instruction and depends(node))

    walk(
        loop.body,
        (tirx.Bind, bind),
        (tirx.BufferStore, lambda node: access(node.buffer, node.indices)),
        (ir.TensorLoad, lambda node: access(buffer_of(node), node.indices)),
        (ir.Call, call),
        order="pre",
    )
    return found


def _is_in_registers(buffer: ir.Var) -> bool:
    count = constant(count_of(buffer.ty.shape)) if is_private(buffer) else None
    return count is not None and count <= _MOST_REGISTERS
