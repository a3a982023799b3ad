"""FragmentToSimdgroup: operands of Apple's matrix units are held in simdgroup matrices."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile.ir.kernels import target_of
from tvmtile.ir.operators import operators_in
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import retyped, substitute
from tvmtile.ir.scopes import FRAGMENT_SCOPE
from tvmtile.tileop.registry import fragments_of, implementation_of


@prim_func_pass("FragmentToSimdgroup", requires=(Property.IMPLEMENTATIONS,))
def FragmentToSimdgroup(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Move fragments to the registers in which the implementations of operators hold them.

    These are simdgroup matrices where the chosen instruction multiplies such. The layout that the
    fragments get later has whole 8x8 matrices, and a simdgroup allocates its own share of them only.
    """
    kind = target_of(func).kind.name
    moved: dict[ir.Var, ir.Var] = {}
    for op in operators_in(func.body):
        chosen = implementation_of(op, kind)
        scope = (
            FRAGMENT_SCOPE if chosen is None or chosen.fragments is None else chosen.fragments.scope
        )
        if scope == FRAGMENT_SCOPE:
            continue
        for fragment in fragments_of(op):
            moved.setdefault(fragment, retyped(fragment, scope=scope))
    return func.with_body(substitute(func.body, moved)) if moved else func
