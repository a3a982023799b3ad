"""ShareFragments: fragments that threads have computed together are copied for all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, indices_of, mutated
from tvmtile.analysis.effects import Effect, effects_of
from tvmtile.analysis.kernel_info import info_of
from tvmtile.ir.kernels import Launch, is_parallel, with_kernels, with_launch_body
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import nest, replace_loop, retyped, seq
from tvmtile.ir.scopes import SHARED_SCOPE, is_fragment

_FEW = 8
"""Elements that each thread may as well compute."""


@prim_func_pass("ShareFragments", requires=(Property.REGIONS,))
def ShareFragments(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Hand the result of a loop over nests to code outside of nests, in shared memory.

    Every thread holds a fragment whose elements are read outside of `T.Parallel`, and computes all of
    it. Where a serial loop computes it, in nests that count its elements, and nothing writes it once
    it is read, each thread computes its share, and what follows reads a copy.
    """

    def shared(kernel: tirx.For) -> tirx.For:
        body = Launch(kernel).body
        for fragment in _computed_in_loops(body):
            body = _with_copy(body, fragment) or body
        return with_launch_body(kernel, body)

    return with_kernels(func, shared)


@dataclass
class _FragmentUses:
    """The accesses to a fragment: in nests and operators, and by single statements."""

    together: list[Effect]
    alone: list[Effect]


def _computed_in_loops(body: tirx.Stmt) -> list[ir.Var]:
    """The fragments that serial loops compute, and that statements outside of them read."""
    info = info_of(body)
    uses: dict[ir.Var, _FragmentUses] = {}
    for access in info.effects:
        if is_fragment(access.root) and access.root not in info.aliased:
            of_buffer = uses.setdefault(access.root, _FragmentUses([], []))
            is_alone = access.operator is None and not any(map(is_parallel, access.around))
            (of_buffer.alone if is_alone else of_buffer.together).append(access)
    return [fragment for fragment, each in uses.items() if _is_worth_it(fragment, each)]


def _is_worth_it(fragment: ir.Var, uses: _FragmentUses) -> bool:
    extents = [constant(extent) for extent in fragment.ty.shape]
    if None in extents or math.prod(e or 1 for e in extents) < _FEW or not uses.alone:
        return False
    if any(access.writes for access in uses.alone) or not all(map(_counts, uses.together)):
        return False
    around = uses.alone[0].around
    return any(
        access.writes and any(_is_serial(loop) and loop not in around for loop in access.around)
        for access in uses.together
    )


def _is_serial(loop: tirx.For) -> bool:
    return not is_parallel(loop) and loop.thread_binding is None


def _counts(access: Effect) -> bool:
    """Tell whether an operator goes through a fragment, or a nest counts all of its elements.

    What else is in the nest is in memory: where it lies in registers is not for this pass to change.
    """
    if access.operator is not None:
        return access.operator.as_loops() is not None
    loops = [loop for loop in access.around if is_parallel(loop)]
    counted = [
        any(index.same_as(loop.loop_var) for loop in loops)
        for index, extent in zip(access.indices or (), access.root.ty.shape, strict=True)
        if constant(extent) != 1
    ]
    others = (a.root for a in effects_of(loops[0]) if not a.root.same_as(access.root))
    return all(counted) and not any(map(is_fragment, others))


def _with_copy(stmt: tirx.Stmt, fragment: ir.Var) -> tirx.Stmt | None:
    """A statement with a copy of a fragment between those that write and those that read alone."""
    if isinstance(stmt, tirx.For) and _is_serial(stmt):
        body = _with_copy(stmt.body, fragment)
        return None if body is None else replace_loop(stmt, body=body)
    if not isinstance(stmt, tirx.SeqStmt):
        return None
    parts = list(stmt.seq)
    reading = [n for n, part in enumerate(parts) if _reads_alone(part, fragment)]
    writing = [n for n, part in enumerate(parts) if _writes(part, fragment)]
    if len(reading) == 1 and reading == writing[-1:]:
        part = _with_copy(parts[reading[0]], fragment)
        return None if part is None else seq([*parts[: reading[0]], part, *parts[reading[0] + 1 :]])
    if not reading or not writing or writing[-1] >= reading[0]:
        return None
    first = reading[0]
    return seq([*parts[:first], *_copied(parts[first:], fragment)])


def _copied(statements: Sequence[tirx.Stmt], fragment: ir.Var) -> list[tirx.Stmt]:
    whole, copying = copied_to_shared(fragment, f"{fragment.name}_whole")

    def load(node: ir.TensorLoad, mutator: Mutator) -> ir.Expr:
        result = mutator.default_mutate(node)
        if not buffer_of(node).same_as(fragment):
            return result
        return tirx.BufferLoad(whole, list(indices_of(result)))

    def loop(node: tirx.For, mutator: Mutator) -> tirx.Stmt:
        return node if is_parallel(node) else mutator.default_mutate(node)

    rest = [mutated(s, (tirx.For, loop), (ir.TensorLoad, load)) for s in statements]
    return [*copying, *rest]


def copied_to_shared(fragment: ir.Var, name: str) -> tuple[ir.Var, list[tirx.Stmt]]:
    """A shared tile for the elements of a fragment, and the statements that copy them."""
    tile = retyped(fragment, name=name, scope=SHARED_SCOPE)

    def element(indices: list[ir.Var]) -> tirx.Stmt:
        return tirx.BufferStore(tile, tirx.BufferLoad(fragment, indices), indices)

    return tile, [tirx.AllocBuffer(tile), nest(fragment.ty.shape, element)]


def _reads_alone(stmt: tirx.Stmt, fragment: ir.Var) -> bool:
    return any(
        access.root.same_as(fragment)
        and access.operator is None
        and not any(map(is_parallel, access.around))
        for access in effects_of(stmt)
    )


def _writes(stmt: tirx.Stmt, fragment: ir.Var) -> bool:
    return any(a.writes and a.root.same_as(fragment) for a in effects_of(stmt))
