"""PlanUnrolling: how many iterations of a loop are unrolled."""

from __future__ import annotations

from tvm import tirx

from tvmtile._tvm import mapped
from tvmtile.ir.annotations import UNROLL_FACTOR
from tvmtile.ir.kernels import leaves_loop, unrolled_statement_count, with_body
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import for_loop, replace_loop, substitute

_HINTS = (tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED)
_MOST_WRITTEN_OUT = 4096
"""Statements: compilers of machine code take minutes for several times as many."""


@prim_func_pass(
    "PlanUnrolling",
    requires=(Property.EXITS_ARE_BRANCHES,),
    establishes=(Property.LOOPS_WITH_BREAK_ARE_SERIAL,),
)
def PlanUnrolling(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Split loops by their unroll factors, and keep loops with `break` or `continue` rolled.

    TVM would copy the bodies of loops that `break` or `continue` leaves, in which there is no loop to
    leave any more; so they become serial ones, and so do loops whose copies are too many to compile.
    Unrolling and vectorising are hints.
    """
    return with_body(func, mapped(func.body, (tirx.For, _planned)))


def _planned(loop: tirx.For) -> tirx.For:
    if loop.kind in _HINTS and leaves_loop(loop.body):
        return replace_loop(loop, kind=tirx.ForKind.SERIAL, annotations={})
    if UNROLL_FACTOR not in loop.annotations:
        is_unrolled = loop.kind == tirx.ForKind.UNROLLED
        is_long = is_unrolled and unrolled_statement_count(loop) > _MOST_WRITTEN_OUT
        return replace_loop(loop, kind=tirx.ForKind.SERIAL, annotations={}) if is_long else loop
    factor = int(loop.annotations[UNROLL_FACTOR])
    plain = replace_loop(loop, annotations=_without_factor(loop))
    count = constant(loop.extent)
    is_whole = count is not None and count <= factor
    return plain if is_whole or leaves_loop(loop.body) else _split(plain, factor)


def _split(loop: tirx.For, factor: int) -> tirx.For:
    """A serial loop over unrolled ones, of which the last may have fewer iterations."""
    var = loop.loop_var
    outer, inner = tirx.Var(var.name, var.ty), tirx.Var(f"{var.name}_unrolled", var.ty)
    place = outer * factor + inner
    body = substitute(loop.body, {var: loop.min + place})
    count = constant(loop.extent)
    if count is None or count % factor:
        body = tirx.IfThenElse(place < loop.extent, body, None)
    unrolled = for_loop(inner, factor, body, tirx.ForKind.UNROLLED)
    rounds = tirx.ceildiv(loop.extent, factor)
    return replace_loop(
        for_loop(outer, rounds, unrolled), annotations=loop.annotations, span=loop.span
    )


def _without_factor(loop: tirx.For) -> dict[str, object]:
    return {key: value for key, value in loop.annotations.items() if key != UNROLL_FACTOR}
