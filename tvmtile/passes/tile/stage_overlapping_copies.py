"""StageOverlappingCopies: operators within one buffer read all that they need before they write."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.analysis.aliases import Aliases
from tvmtile.errors import InvalidOperand
from tvmtile.ir.kernels import with_body
from tvmtile.ir.operands import as_region, constant, describe, dtype_of
from tvmtile.ir.operators import TileOp, operator_for, operator_of, with_fields
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import nest, seq
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.scopes import FRAGMENT_SCOPE, SHARED_SCOPE, is_fragment, is_private
from tvmtile.ir.spans import location_of


@prim_func_pass("StageOverlappingCopies", requires=(Property.REGIONS,))
def StageOverlappingCopies(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Copy by way of a tile where source and target may have elements in common.

    The threads of a block move elements in no order. The tile is a fragment; between two parts of a
    fragment, it is shared; between those of a thread's own tile, its own. An operator of another kind
    gets such a tile in place of what it reads, if that is another view of what it writes.

    Raises
    ------
    InvalidOperand
        If the extents of such a copy are not constants, so that there is no tile for it.
    """
    return with_body(func, _Stage(Aliases(func.body)).rewrite(func.body))


class _Stage(ScopedRewriter):
    def __init__(self, aliases: Aliases) -> None:
        super().__init__()
        self._aliases = aliases

    def visit_evaluate(self, node: tirx.Evaluate) -> tirx.Stmt:
        op = operator_of(node)
        if op is None or op.role != "copy":
            return node if op is None or not op.is_tile else self._apart(node, op)
        (source,), (target,) = op.reads(), op.writes()
        if not self._overlap(source, target):
            return node
        tile = _tile_for(source, location_of(node.value))
        whole = as_region(tile)
        span = node.value.span
        steps = [operator_for("copy")(*ends) for ends in ((source, whole), (whole, target))]
        return seq([tirx.AllocBuffer(tile), *(tirx.Evaluate(step.to_call(span)) for step in steps)])

    def _apart(self, node: tirx.Evaluate, op: TileOp) -> tirx.Stmt:
        """An operator that writes by another name what it reads, with copies of what it reads."""
        written = [buffer_of(o) for o in op.writes() if isinstance(o, ir.TensorRegion)]
        roots = set(map(self._aliases.root, written))
        before: list[tirx.Stmt] = []
        for operand in op.reads():
            source = buffer_of(operand) if isinstance(operand, ir.TensorRegion) else None
            if source is None or source in written or self._aliases.root(source) not in roots:
                continue
            tile = _tile_for(operand, location_of(node.value), SHARED_SCOPE)
            before += [tirx.AllocBuffer(tile), _copied(operand, tile)]
            for name in (item.name for item in fields(op) if getattr(op, item.name) is operand):
                op = with_fields(op, **{name: as_region(tile)})
        if not before:
            return node
        return seq([*before, tirx.Evaluate(op.to_call(node.value.span), node.span)])

    def _overlap(self, source: ir.TensorRegion, target: ir.TensorRegion) -> bool:
        """Tell whether an element that is read may be another one that is written."""
        if not self._aliases.root(buffer_of(source)).same_as(self._aliases.root(buffer_of(target))):
            return False
        if not buffer_of(source).same_as(buffer_of(target)):
            return True
        same = all(
            self.analyzer.can_prove_equal(a.min, b.min)
            for a, b in zip(ranges_of(source), ranges_of(target), strict=True)
        )
        return not same and not any(
            self.analyzer.can_prove(tirx.any(a.min + a.extent <= b.min, b.min + b.extent <= a.min))
            for a, b in zip(ranges_of(source), ranges_of(target), strict=True)
        )


def _copied(source: ir.TensorRegion, tile: ir.Var) -> tirx.Stmt:
    def element(indices: list[ir.Var]) -> tirx.Stmt:
        place = [r.min + index for r, index in zip(ranges_of(source), indices, strict=True)]
        return tirx.BufferStore(tile, tirx.BufferLoad(buffer_of(source), place), indices)

    return nest(tile.ty.shape, element)


def _tile_for(source: ir.TensorRegion, location: Any, scope: str = "") -> ir.Var:
    buffer = buffer_of(source)
    extents = [constant(r.extent) for r in ranges_of(source)]
    if None in extents:
        raise InvalidOperand(
            f"copy: {describe(source)} may overlap what it is copied to, and its extents are not "
            "constants",
            help="copy it to a tile first, and that to its place",
            location=location,
        )
    if is_private(buffer):
        scope = buffer.ty.storage_scope
    elif not scope:
        scope = SHARED_SCOPE if is_fragment(buffer) else FRAGMENT_SCOPE
    return tirx.decl_buffer(extents, dtype_of(source), name=f"{buffer.name}_read", scope=scope)
