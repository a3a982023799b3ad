"""FoldClearIntoFirstGemm: the first of a loop's products begins the sums that were cleared before."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import buffer_of, mapped, ranges_of
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.effects import effects_of
from tvmtile.ir.kernels import leaves_loop, with_kernels
from tvmtile.ir.operands import constant, region
from tvmtile.ir.operators import TileOp, filled, operator_of, with_fields
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import mentions, replace_loop, seq, substitute


@prim_func_pass("FoldClearIntoFirstGemm", requires=(Property.IMPLEMENTATIONS,))
def FoldClearIntoFirstGemm(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let the first product of a loop set a tile that was cleared for the loop.

    The sums of a product begin in registers then: they are neither stored as zeros nor loaded, which
    took a twelfth of a product of bytes in two steps along K. The first iteration stands before the
    loop, so this is done where one operator is all of an iteration, and the number of iterations is
    known. What stands between does not use the tile, whose memory has no other name, and does not leave
    a loop around. Functions whose tensors may share memory stay as they are.
    """
    aliased = Aliases(func.body).aliased

    def without_clears(node: tirx.SeqStmt) -> tirx.Stmt:
        return _without_clears(node, aliased)

    return with_kernels(func, lambda kernel: mapped(kernel, (tirx.SeqStmt, without_clears)))


def _without_clears(node: tirx.SeqStmt, aliased: set[ir.Var]) -> tirx.Stmt:
    statements, left_out = list(node.seq), []
    for position, statement in enumerate(statements):
        cleared = _cleared(statement)
        if cleared is None or buffer_of(cleared) in aliased:
            continue
        for user in range(position + 1, len(statements)):
            if leaves_loop(statements[user]):
                break
            if not _uses(statements[user], cleared):
                continue
            begun = _begun(statements[user], cleared)
            if begun is not None:
                statements[user] = begun
                left_out.append(position)
            break
    return seq([s for number, s in enumerate(statements) if number not in left_out])


def _cleared(statement: tirx.Stmt) -> ir.TensorRegion | None:
    """The tile that a statement sets to zero."""
    fill = filled(operator_of(statement))
    if fill is None or not isinstance(fill[1], tirx.IntImm | tirx.FloatImm):
        return None
    value = float(fill[1].value)
    return fill[0] if value == 0 and math.copysign(1, value) > 0 else None


def _uses(statement: tirx.Stmt, tile: ir.TensorRegion) -> bool:
    return any(access.root.same_as(buffer_of(tile)) for access in effects_of(statement))


def _begun(loop: tirx.Stmt, tile: ir.TensorRegion) -> tirx.Stmt | None:
    """A loop that adds to a cleared tile, with a first iteration that sets it; None for any other."""
    if not isinstance(loop, tirx.For) or loop.kind != tirx.ForKind.SERIAL:
        return None
    extent, body = constant(loop.extent), loop.body
    if not isinstance(body, tirx.Evaluate) or not extent or extent < 1:
        return None
    op = operator_of(body)
    if op is None or not _adds_to(op, tile):
        return None
    setting = _at(with_fields(op, clear_accum=True), loop.loop_var, loop.min)
    first = tirx.Evaluate(setting.to_call(body.value.span), body.span)
    others = replace_loop(loop, min=loop.min + 1, extent=loop.extent - 1)
    if mentions(first, loop.loop_var):
        return None
    return first if extent == 1 else seq([first, others])


def _at(op: TileOp, variable: ir.Var, value: ir.Expr) -> TileOp:
    """An operator, with the value of a variable in its operands."""
    simplify = Analyzer().simplify
    for item in fields(op):
        operand = getattr(op, item.name)
        if isinstance(operand, ir.TensorRegion):
            origin = [simplify(substitute(r.min, {variable: value})) for r in ranges_of(operand)]
            extents = [
                simplify(substitute(r.extent, {variable: value})) for r in ranges_of(operand)
            ]
            op = with_fields(op, **{item.name: region(buffer_of(operand), origin, extents)})
    return op


def _adds_to(op: TileOp, tile: ir.TensorRegion) -> bool:
    """Tell whether an operator adds to all of a tile, and uses it for nothing else."""

    def is_it(operand: Any) -> bool:
        return bool(tvm_ffi.structural_equal(operand, tile))

    reads = [o for o in op.reads() if isinstance(o, (ir.TensorRegion, ir.TensorLoad))]
    mine = [o for o in reads if buffer_of(o).same_as(buffer_of(tile))]
    writes = op.writes()
    is_sum = op.role == "product" and len(mine) == 1 and len(writes) == 1
    return is_sum and is_it(mine[0]) and is_it(writes[0])
