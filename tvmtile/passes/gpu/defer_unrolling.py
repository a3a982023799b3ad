"""DeferUnrolling: the compiler of a kernel's source unrolls what is guarded, or very long."""

from __future__ import annotations

from collections.abc import Iterator

from tvm import ir, tirx

from tvmtile._tvm import OPAQUE, Mutator, is_buffer_var, mutated, nodes_in
from tvmtile.ir.annotations import UNROLL_BY_TVM
from tvmtile.ir.calls import effect_of, is_if_then_else
from tvmtile.ir.kernels import statements_of, unrolled_statement_count, with_kernels
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, defined_in, replace_loop, variables_of
from tvmtile.ir.scopes import is_tensor

_FEW_STATEMENTS = 16
"""Of a nest that is written out here: as short as a loop."""
_MOST_OPERATIONS = 56 * 1024
"""Of a kernel's nests that are written out here: with as many, each pass of TVM takes a second."""


@prim_func_pass("DeferUnrolling", requires=(Property.NO_PARALLEL, Property.NO_FRAGMENTS))
def DeferUnrolling(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Leave nests whose accesses dynamic extents guard to the compiler of the source to unroll.

    A guard per element makes a branch of each, and TVM simplifies every one of them several times. As
    a loop that the source asks to be unrolled, a nest costs as much as one iteration until it comes to
    that compiler, which unrolls it before it decides what is held in registers. Nests of instructions
    are written out: their operands may have to be constants in the source. So are those that are short.
    """
    extents = _dynamic_extents(func)

    def with_loops(kernel: tirx.For) -> tirx.Stmt:
        nests = list(_nests(kernel))
        left = {nest.loop_var for nest in nests if extents and _has_guards(nest, extents)}
        left |= _beyond_budget([nest for nest in nests if nest.loop_var not in left])

        def visit(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
            if loop.loop_var not in left:
                return mutator.default_mutate(loop)
            return replace_loop(loop, annotations={**loop.annotations, UNROLL_BY_TVM: False})

        return mutated(kernel, (tirx.For, visit)) if left else kernel

    return with_kernels(func, with_loops)


def _nests(stmt: tirx.Stmt) -> Iterator[tirx.For]:
    """The outermost unrolled loops that are long, and may be loops in the source."""
    if isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.UNROLLED:
        if unrolled_statement_count(stmt) <= _FEW_STATEMENTS:
            return
        if not _has_operands(stmt):
            yield stmt
            return
    for child in statements_of(stmt):
        yield from _nests(child)


def _has_operands(nest: tirx.For) -> bool:
    """Tell whether iterations give instructions operands that differ between them, unlike barriers."""
    inside = defined_in(nest)

    def differs(call: ir.Call) -> bool:
        return effect_of(call) == OPAQUE and contains(call, ir.Var, inside.__contains__)

    return contains(nest.body, ir.Call, differs)


def _beyond_budget(nests: list[tirx.For]) -> set[ir.Var]:
    """The variables of the longest nests, without which the others are not too many operations."""
    operations = {nest.loop_var: _operations(nest) for nest in nests}
    total = sum(operations.values())
    left = set()
    for var in sorted(operations, key=operations.__getitem__, reverse=True):
        if total <= _MOST_OPERATIONS:
            break
        left.add(var)
        total -= operations[var]
    return left


def _operations(stmt: tirx.Stmt) -> int:
    """How many expressions a statement consists of, with its unrolled loops written out."""
    if isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.UNROLLED:
        return (constant(stmt.extent) or 1) * _operations(stmt.body)
    inside = statements_of(stmt)
    own = stmt.condition if isinstance(stmt, tirx.IfThenElse) else None if inside else stmt
    return sum(map(_operations, inside)) + (0 if own is None else len(nodes_in(own, ir.Expr)))


def _dynamic_extents(func: tirx.PrimFunc) -> set[ir.Var]:
    """What a call's tensors say of their shapes."""
    shapes = [param.ty.shape for param in func.params if is_buffer_var(param)]
    return {var for shape in shapes for extent in shape for var in variables_of(extent)}


def _has_guards(loop: tirx.For, extents: set[ir.Var]) -> bool:
    """Tell whether iterations compare what differs between them with extents, to access tensors."""
    inside = defined_in(loop)

    def guards(node: tirx.IfThenElse | ir.Call) -> bool:
        if isinstance(node, tirx.IfThenElse):
            condition, guarded = node.condition, node.then_case
        elif is_if_then_else(node):
            condition, guarded = node.args[:2]
        else:
            return False
        names = variables_of(condition)
        differs = any(name in inside for name in names) and any(name in extents for name in names)
        return differs and contains(guarded, ir.Var, is_tensor)

    return contains(loop.body, (tirx.IfThenElse, ir.Call), guards)
