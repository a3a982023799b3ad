"""The unrolling of loops: how far, and by TVM, the compiler of the source, or nothing.

The cost of a loop is what it is written out as, in statements or in operations (`written_out`). Three
passes act on it: PlanUnrolling on what a program asks for, LimitUnrolling when it is known which loops
index registers, DeferUnrolling when all operators are instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tvm import ir, tirx

from tvmtile._tvm import (
    OPAQUE,
    Mutator,
    buffer_of,
    indices_of,
    is_buffer_var,
    mapped,
    mutated,
    nodes_in,
    walk,
)
from tvmtile.ir.annotations import UNROLL_BY_TVM, UNROLL_FACTOR
from tvmtile.ir.calls import effect_of, is_if_then_else
from tvmtile.ir.extents import count_of
from tvmtile.ir.kernels import Launch, leaves_loop, statements_of, with_body, with_kernels
from tvmtile.ir.operands import constant
from tvmtile.ir.operators import operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import (
    contains,
    defined_in,
    for_loop,
    has_effect,
    replace_loop,
    substitute,
    variables_of,
)
from tvmtile.ir.scopes import is_private, is_tensor
from tvmtile.ir.threads import WARP_SIZE

_HINTS = (tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED)

_MOST_ASKED_FOR = 4096
"""Statements of what a program unrolls: compilers take minutes for several times as many."""
_MOST_STATEMENTS = 1024
"""Statements of a nest: more than fit into an instruction cache gain nothing."""
_MOST_OF_FEW_THREADS = 64
"""Where a block has less than a warp: each thread goes through whole tiles, one after the other."""
_MOST_ITERATIONS = 64
"""Iterations of a thread over memory alone."""
_MOST_WITH_LOOPS = 8
"""The same of a loop with loops inside, whose text is long and where there is little to gain."""
_MOST_OVER_MEMORY = 256
"""The statements that the iterations of a loop without loops inside are written out as."""
_FEW_STATEMENTS = 16
"""Statements of a nest that TVM unrolls in any case: as short as a loop."""
_MOST_OPERATIONS = 56 * 1024
"""Operations of a kernel's nests that TVM unrolls: with as many, each pass of TVM takes a second."""
_MOST_REGISTERS = 512
"""Elements of an array that may be held in registers, packed ones among them."""


def written_out(stmt: tirx.Stmt, cost: Callable[[tirx.Stmt], int] | None = None) -> int:
    """The number of statements with unrolled loops written out, or what they cost.

    The cost of a statement is without that of the statements in it.
    """
    children = statements_of(stmt)
    total = sum(written_out(child, cost) for child in children)
    if isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.UNROLLED:
        extent = constant(stmt.extent)
        return total if extent is None else extent * total
    return max(1, total) if cost is None else total + cost(stmt)


def most_iterations(body: tirx.Stmt) -> int:
    """The most iterations of a loop over memory alone that are written out one by one."""
    if contains(body, tirx.For, lambda loop: bool(loop.kind == tirx.ForKind.SERIAL)):
        return _MOST_WITH_LOOPS
    return min(_MOST_ITERATIONS, _MOST_OVER_MEMORY // written_out(body))


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
        return _within_limit(loop)
    factor = int(loop.annotations[UNROLL_FACTOR])
    others = {key: value for key, value in loop.annotations.items() if key != UNROLL_FACTOR}
    plain = replace_loop(loop, annotations=others)
    count = constant(loop.extent)
    is_whole = count is not None and count <= factor
    return _within_limit(plain) if is_whole or leaves_loop(loop.body) else _split(plain, factor)


def _within_limit(loop: tirx.For) -> tirx.For:
    """The loop, which is serial if it asks for more copies than can be compiled."""
    is_long = loop.kind == tirx.ForKind.UNROLLED and written_out(loop) > _MOST_ASKED_FOR
    return replace_loop(loop, kind=tirx.ForKind.SERIAL, annotations={}) if is_long else loop


def _split(loop: tirx.For, factor: int) -> tirx.For:
    """A serial loop over unrolled ones, of which the last may have fewer iterations."""
    var = loop.loop_var
    outer, inner = tirx.Var(var.name, var.ty), tirx.Var(f"{var.name}_unrolled", var.ty)
    place = outer * factor + inner
    body = substitute(loop.body, {var: loop.min + place})
    count = constant(loop.extent)
    if count is None or count % factor:
        body = tirx.IfThenElse(place < loop.extent, body, None)
    unrolled = _within_limit(for_loop(inner, factor, body, tirx.ForKind.UNROLLED))
    rounds = tirx.ceildiv(loop.extent, factor)
    return replace_loop(
        for_loop(outer, rounds, unrolled), annotations=loop.annotations, span=loop.span
    )


@prim_func_pass("LimitUnrolling", requires=(Property.NO_FRAGMENTS,))
def LimitUnrolling(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make serial loops of unrolled ones whose statements are too many, from the outermost on.

    A loop whose variable says which registers an iteration uses, or what an instruction gets, stays
    unrolled: an array that is indexed at run time lies in memory. An array of more than 512 elements
    does so anyway, as the tiles of a block with few threads do. Where there is not a whole warp, fewer
    statements are written out.
    """

    def limited(kernel: tirx.For) -> tirx.Stmt:
        has_warps = Launch(kernel).num_threads >= WARP_SIZE
        return _limited(kernel, _MOST_STATEMENTS if has_warps else _MOST_OF_FEW_THREADS)

    return with_kernels(func, limited)


def _limited(stmt: tirx.Stmt, most: int) -> tirx.Stmt:
    def visit(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        if loop.kind != tirx.ForKind.UNROLLED:
            return mutator.default_mutate(loop)
        if written_out(loop) <= most:
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

    def access(node: ir.TensorLoad | tirx.BufferStore) -> None:
        nonlocal found
        is_register = _is_in_registers(buffer_of(node))
        found = found or (is_register and any(map(depends, indices_of(node))))

    def call(node: ir.Call) -> None:
        nonlocal found
        is_instruction = operator_of(node) is None and has_effect(node)
        found = found or (is_instruction and depends(node))

    walk(
        loop.body,
        (tirx.Bind, bind),
        ((tirx.BufferStore, ir.TensorLoad), access),
        (ir.Call, call),
        order="pre",
    )
    return found


def _is_in_registers(buffer: ir.Var) -> bool:
    count = constant(count_of(buffer.ty.shape)) if is_private(buffer) else None
    return count is not None and count <= _MOST_REGISTERS


@prim_func_pass("DeferUnrolling", requires=(Property.NO_PARALLEL, Property.NO_FRAGMENTS))
def DeferUnrolling(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Leave nests whose accesses dynamic extents guard to the compiler of the source to unroll.

    A guard per element makes a branch of each, and TVM simplifies every one of them several times. As
    a loop that the source asks to be unrolled, a nest costs as much as one iteration until it comes to
    that compiler, which unrolls it before it decides what is held in registers. Nests of instructions
    are written out: their operands may have to be constants in the source. So are those that are short.
    The longest nests of a kernel that would be too long are left, too.
    """
    shapes = [param.ty.shape for param in func.params if is_buffer_var(param)]
    extents = {var for shape in shapes for extent in shape for var in variables_of(extent)}

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
        if written_out(stmt) <= _FEW_STATEMENTS:
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
    operations = {nest.loop_var: written_out(nest, _operations) for nest in nests}
    total = sum(operations.values())
    left = set()
    for var in sorted(operations, key=operations.__getitem__, reverse=True):
        if total <= _MOST_OPERATIONS:
            break
        left.add(var)
        total -= operations[var]
    return left


def _operations(stmt: tirx.Stmt) -> int:
    """The number of expressions of a statement, without those of the statements in it."""
    if isinstance(stmt, tirx.IfThenElse):
        return len(nodes_in(stmt.condition, ir.Expr))
    return 0 if statements_of(stmt) else len(nodes_in(stmt, ir.Expr))


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
