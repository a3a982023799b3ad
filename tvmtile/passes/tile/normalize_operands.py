"""NormalizeOperands: all operands of tile operators become explicit regions."""

from __future__ import annotations

from collections.abc import Set

from tvm import ir, tirx
from tvm_ffi import structural_equal

from tvmtile._tvm import buffer_of, mapped, nodes_in
from tvmtile.ir.annotations import NO_TENSOR_MAPS
from tvmtile.ir.kernels import bound_target, flattened, with_body
from tvmtile.ir.operators import operator_of, with_fields
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import mentions, seq, substitute
from tvmtile.ir.scopes import is_fragment


@prim_func_pass("NormalizeOperands", establishes=(Property.REGIONS,))
def NormalizeOperands(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make every operand of a tile operator an explicit region.

    Whole buffers and elements that name a tile's origin are what users write; from here on an operand
    says where it begins and how far it extends. An operator that stands for others becomes those. No
    copy goes by a tensor map where the attribute `tvmtile.no_tensor_maps` of a function says so, which
    `tl.disable_tma_lower` sets.
    """
    target = bound_target(func)
    has_maps = func.attrs is None or not func.attrs.get(NO_TENSOR_MAPS, False)

    def normalize(call: ir.Call) -> ir.Call:
        op = operator_of(call)
        if op is None:
            return call
        normal = with_fields(op.normalized(), impl=op.impl)
        if not has_maps and hasattr(op, "disable_tma"):
            normal = with_fields(normal, disable_tma=True)
        return normal.to_call(call.span)

    own: set[ir.Var] = set()

    def expand(node: tirx.Evaluate) -> tirx.Stmt:
        op = operator_of(node)
        expanded = None if op is None else op.expanded(target)
        if expanded is None:
            return node
        own.update(buffer_of(alloc) for alloc in nodes_in(expanded, tirx.AllocBuffer))
        return _with_span(expanded, node.value.span)

    body = mapped(func.body, (ir.Call, normalize))
    body = mapped(body, (tirx.Evaluate, expand))
    if own:
        body = mapped(body, (tirx.SeqStmt, lambda node: _sharing(node, own)))
    return with_body(func, body)


def _sharing(node: tirx.SeqStmt, own: Set[ir.Var]) -> tirx.Stmt:
    """A sequence in which operators that follow each other have their fragments in one.

    Where they are several, ptxas begins the second operator before the first one ends, and has not the
    registers for both.
    """
    statements = list(flattened(node))
    instead: dict[ir.Var, ir.Var] = {}
    kept: list[tirx.Stmt] = []
    free: list[ir.Var] = []
    for place, stmt in enumerate(statements):
        if not isinstance(stmt, tirx.AllocBuffer) or buffer_of(stmt) not in own:
            kept.append(stmt)
            continue
        rest = statements[place:]
        former = next((f for f in free if _could_be(f, buffer_of(stmt), rest, instead)), None)
        if former is None:
            free.append(buffer_of(stmt))
            kept.append(stmt)
        else:
            instead[buffer_of(stmt)] = former
    return substitute(seq(kept), instead) if instead else node


def _could_be(
    former: ir.Var, fragment: ir.Var, rest: list[tirx.Stmt], instead: dict[ir.Var, ir.Var]
) -> bool:
    """Tell whether a fragment could take the place of another one, which nobody uses any more."""
    users = [former, *(var for var, other in instead.items() if other.same_as(former))]
    return (
        is_fragment(former)
        and structural_equal(former.ty, fragment.ty)
        and not any(mentions(stmt, var) for stmt in rest for var in users)
    )


def _with_span(body: tirx.Stmt, span: ir.Span) -> tirx.Stmt:
    """Statements whose operators stand at a line of the user's."""

    def placed(call: ir.Call) -> ir.Call:
        op = operator_of(call)
        return call if op is None else op.to_call(span)

    return mapped(body, (ir.Call, placed))
