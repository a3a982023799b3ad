"""ReduceBehindLoops: values that a loop only accumulates are exchanged between threads behind it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tvm_ffi
from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, indices_of, mapped, mutated, ranges_of
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.effects import Effect, effects_of
from tvmtile.analysis.linearity import is_linear
from tvmtile.analysis.nests import Nest
from tvmtile.ir.combiners import COMBINERS, accumulator_dtype
from tvmtile.ir.kernels import (
    Launch,
    flattened,
    is_parallel,
    leaves_loop,
    with_kernels,
    with_launch_body,
    without,
)
from tvmtile.ir.operands import as_region, constant, dtype_of, extents_of, is_whole, region
from tvmtile.ir.operators import operator_for, operator_of, operators_in
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, for_loop, mentions, nest, seq
from tvmtile.ir.scopes import FRAGMENT_SCOPE, is_fragment
from tvmtile.ir.threads import group_of_region
from tvmtile.layout.fragment import FragmentLayout, layout_of

_COMBINED = {"abssum": "sum", "absmax": "max"}
"""How results are combined where elements are combined otherwise."""


@prim_func_pass("ReduceBehindLoops", requires=(Property.FRAGMENT_LAYOUTS,))
def ReduceBehindLoops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let each thread accumulate its part in a loop, and combine the parts behind it.

    The threads that hold the elements of a row would exchange their results in each iteration. In place
    of the fragment `total`, to which a reduction adds, is one that has an element for each of these
    threads, its partial result. Behind the last reduction they are reduced, and what follows reads
    `total`. Where sums are scaled and added up, `total[i] = total[i] * scale[i] + sum[i]`, the same is
    done to the parts of both: the scale of a row is the same in all of its threads.

    That is done if all that touches the fragments, from the first to the last reduction, is such a
    reduction or, of sums, a store of an expression that is linear in them, one of the reductions stands
    in a loop, and no `break` or `continue` between them leaves a loop around. Floats are summed in
    another order, and scaled before they are added.
    """
    return with_kernels(func, _behind_loops)


def _behind_loops(kernel: tirx.For) -> tirx.For:
    tried: set[object] = set()
    while (group := _next_group(kernel, tried)) is not None:
        rewriter = _GroupRewriter(group, kernel)
        launch = Launch(kernel)
        body = rewriter.rewrite(launch.body)
        if rewriter.found:
            allocated = [tirx.AllocBuffer(part) for part in group.parts.values()]
            kernel = with_launch_body(kernel, seq([*allocated, _without_unused(body, group)]))
    return kernel


# What is accumulated -----------------------------------------------------------------------------


class _Form(NamedTuple):
    """The properties that reductions have in common that may accumulate into the same parts."""

    kind: str
    """How parts are combined."""
    dims: tuple[int, ...]
    """The axes that are reduced."""
    layout: FragmentLayout
    """Of parts."""


@dataclass(frozen=True)
class _Group:
    """Fragments that are results of reductions of one form, or their sums."""

    op: Any
    """One of the reductions."""
    form: _Form
    is_exact: bool
    """Whether parts have the elements of whole fragments, in the threads that hold these."""
    parts: dict[ir.Var, ir.Var]
    """For each of the fragments, the one with an element for each thread along the axes."""

    def mentioned_in(self, stmt: tirx.Stmt) -> bool:
        """Tell whether a statement uses one of the fragments."""
        return any(mentions(stmt, buffer) for buffer in self.parts)

    def part_for(self, op: Any) -> ir.Var | None:
        """The parts that a reduction may accumulate into; None where it does not belong here."""
        part = self.parts.get(buffer_of(op.dst))
        if self.is_exact:
            belongs = is_whole(op.dst)
        else:
            belongs = not op.clear and tvm_ffi.structural_equal(op.dst, self.op.dst)
        return part if belongs and _form(op) == self.form else None

    def is_reduced_in(self, stmt: tirx.Stmt) -> bool:
        """Tell whether a statement has reductions of the group."""
        return any(self.part_for(op) is not None for op in _reductions_in(stmt))


def _next_group(kernel: tirx.For, tried: set[object]) -> _Group | None:
    """The fragments around a reduction that was not looked at yet."""
    aliased = Aliases(kernel).aliased
    for op in _reductions_in(kernel):
        form, result = _form(op), buffer_of(op.dst)
        key = form, tvm_ffi.StructuralKey(op.dst)
        if form is None or key in tried or result in aliased:
            continue
        tried.add(key)
        is_exact = is_whole(op.src) and is_whole(op.dst) and _lies_along(op)
        totals = _accumulators(kernel, result) if is_exact and form.kind == "sum" else []
        found = [result, *(total for total in totals if total not in aliased)]
        return _Group(op, form, is_exact, {each: _part_of(each, form.layout) for each in found})
    return None


def _reductions_in(stmt: tirx.Stmt) -> list[Any]:
    return [op for op in operators_in(stmt) if op.role == "reduction"]


def _form(op: Any) -> _Form | None:
    """The form of a reduction; None where threads exchange nothing, or what they do is converted."""
    source, result = buffer_of(op.src), buffer_of(op.dst)
    layout = layout_of(source) if is_fragment(source) and is_fragment(result) else None
    if layout is None or layout.shape != tuple(constant(e) for e in source.ty.shape):
        return None
    is_converted = dtype_of(result) != accumulator_dtype(dtype_of(source), dtype_of(result))
    begins = [constant(r.min) for r in ranges_of(op.src)]
    is_placed = not any(begins) and all(constant(r.min) is not None for r in ranges_of(op.dst))
    along = (digit for dim in op.dims for digit in layout.axes[dim])
    if is_converted or op.nan_propagate or not is_placed or not any(d.is_thread for d in along):
        return None
    return _Form(_COMBINED.get(op.kind, op.kind), op.dims, layout.partial(*op.dims))


def _lies_along(op: Any) -> bool:
    """Tell whether the threads that hold a row of what is reduced hold its result, and no others."""
    layout = layout_of(buffer_of(op.src))
    return layout is not None and layout_of(buffer_of(op.dst)) == layout.without_axis(*op.dims)


def _part_of(buffer: ir.Var, layout: FragmentLayout) -> ir.Var:
    return tirx.decl_buffer(
        layout.shape,
        dtype_of(buffer),
        name=f"{buffer.name}_part",
        scope=FRAGMENT_SCOPE,
        layout=layout.to_tvm(),
    )


def _accumulators(kernel: tirx.For, result: ir.Var) -> list[ir.Var]:
    """The fragments like a result that nests add it to."""
    found: dict[ir.Var, None] = {}

    def note(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        store = _store_of(loop)
        if store is None:
            return loop if is_parallel(loop) else mutator.default_mutate(loop)
        total = buffer_of(store)
        is_alike = layout_of(total) == layout_of(result) and dtype_of(total) == dtype_of(result)
        if is_alike and all(mentions(store.value, each) for each in (total, result)):
            found[total] = None
        return loop

    mutated(kernel, (tirx.For, note))
    return [total for total in found if not total.same_as(result)]


def _store_of(loop: tirx.For) -> tirx.BufferStore | None:
    """The only statement of a nest, if it stores one element an iteration, in order."""
    nest_ = Nest(loop) if is_parallel(loop) else None
    if nest_ is None or not isinstance(nest_.body, tirx.BufferStore):
        return None
    store = nest_.body
    shape = [constant(extent) for extent in buffer_of(store).ty.shape]
    at_zero = all(constant(each.min) == 0 for each in nest_.loops)
    if not at_zero or nest_.extents != shape or len(indices_of(store)) != len(shape):
        return None
    pairs = zip(indices_of(store), nest_.variables, strict=True)
    return store if all(index.same_as(variable) for index, variable in pairs) else None


# Parts in place of fragments ---------------------------------------------------------------------


class _GroupRewriter:
    """Puts the parts in place of the buffers of a group, from a first sum to a last one."""

    def __init__(self, group: _Group, kernel: tirx.For) -> None:
        self._group = group
        self._form = group.form
        self._kernel = kernel
        self._before: list[tirx.Stmt] = []
        self._is_repeated = False
        self.found = False

    def rewrite(self, body: tirx.Stmt) -> tirx.Stmt:
        loops = (tirx.For, tirx.While)
        return mutated(body, (tirx.SeqStmt, self._sequence), (loops, self._loop))

    def _loop(self, loop: tirx.For | tirx.While, mutator: Mutator) -> tirx.Stmt:
        if is_parallel(loop):
            return loop
        is_launch = isinstance(loop, tirx.For) and loop.thread_binding is not None
        outer, self._is_repeated = self._is_repeated, not is_launch
        try:
            return mutator.default_mutate(loop)
        finally:
            self._is_repeated = outer

    def _sequence(self, node: tirx.SeqStmt, mutator: Mutator) -> tirx.Stmt:
        rest = list(flattened(node))
        known = len(self._before)
        result: list[tirx.Stmt] = []
        while rest:
            inside = self._run(rest)
            whole = self._apart(rest[: len(inside)], inside) if inside else None
            if whole is None:
                inside = [mutator.mutate(rest[0])]
            self.found = self.found or whole is not None
            result += whole or inside
            self._before += rest[: len(inside)]
            del rest[: len(inside)]
        del self._before[known:]
        return seq(result)

    def _run(self, statements: Sequence[tirx.Stmt]) -> list[tirx.Stmt]:
        """The first statements, with parts: the first one has a sum, and the last one touches parts.

        Nothing where there is no sum to be had from a loop.
        """
        found: list[tirx.Stmt] = []
        last, is_looped = 0, False
        if not self._group.is_reduced_in(statements[0]):
            return []
        for number, stmt in enumerate(statements, 1):
            if leaves_loop(stmt):  # it would skip what puts the parts together
                break
            if self._group.mentioned_in(stmt):
                rewritten = self._with_parts(stmt)
                if self._group.mentioned_in(rewritten) or contains(
                    stmt, tirx.AttrStmt, lambda node: group_of_region(node) is not None
                ):
                    break
                last = number
                is_looped = is_looped or contains(stmt, (tirx.For, tirx.While), self._adds_up)
                found.append(rewritten)
            else:
                found.append(stmt)
        return found[:last] if is_looped else []

    def _adds_up(self, loop: tirx.For | tirx.While) -> bool:
        return not is_parallel(loop) and self._group.is_reduced_in(loop)

    def _apart(
        self, statements: Sequence[tirx.Stmt], inside: Sequence[tirx.Stmt]
    ) -> list[tirx.Stmt] | None:
        """Statements with parts, between what sets the parts and what puts them together."""
        begin: list[tirx.Stmt] = []
        end: list[tirx.Stmt] = []
        for buffer, part in self._group.parts.items():
            if not self._group.is_exact:
                begin.append(self._first(buffer, part))
                end.append(self._together(buffer, part))
                continue
            within = sum(len(_accesses(stmt, buffer)) for stmt in statements)
            before = sum(len(_accesses(stmt, buffer)) for stmt in self._before)
            behind = len(_accesses(self._kernel, buffer)) - within - before
            if before:
                begin.append(self._first(buffer, part))
            elif self._is_repeated and behind and not _is_set_by(statements, buffer):
                return None  # what it holds may be of the iteration before
            if behind or (before and self._is_repeated):
                end.append(self._together(buffer, part))
        return [*begin, *inside, *end]

    def _first(self, buffer: ir.Var, part: ir.Var) -> tirx.Stmt:
        """The parts are nothing, but one of them is what the fragment holds, where that may be."""
        nothing = COMBINERS[self._form.kind].identity(dtype_of(buffer))
        dims = self._form.dims

        def body(indices: list[ir.Var]) -> tirx.Stmt:
            if not self._group.is_exact:
                return tirx.BufferStore(part, nothing, indices)
            own = tirx.BufferLoad(buffer, [i for n, i in enumerate(indices) if n not in dims])
            is_first = tirx.all(*(tirx.EQ(indices[dim], tirx.const(0, "int32")) for dim in dims))
            return tirx.BufferStore(part, tirx.Select(is_first, own, nothing), indices)

        return nest(part.ty.shape, body)

    def _together(self, buffer: ir.Var, part: ir.Var) -> tirx.Stmt:
        op, is_exact = self._group.op, self._group.is_exact
        extents = zip(part.ty.shape, extents_of(op.src) or [], strict=True)
        held = [own if n in op.dims else all_ for n, (own, all_) in enumerate(extents)]
        parts = region(part, [0] * len(held), held)
        target = as_region(buffer) if is_exact else op.dst
        reduce = operator_for("reduction")(parts, target, self._form.kind, op.dim, is_exact)
        return tirx.Evaluate(reduce.to_call())

    # Statements with parts ----------------------------------------------------------------------

    def _with_parts(self, stmt: tirx.Stmt) -> tirx.Stmt:
        """A statement in which parts stand for buffers where that is the same."""

        def evaluate(node: tirx.Evaluate, _: Mutator) -> tirx.Stmt:
            op = operator_of(node)
            if op is None or not self._group.mentioned_in(node):
                return node
            if op.role == "reduction":
                return self._partial(op, node)
            loops = op.as_loops() if op.is_tile else None
            return node if loops is None or not is_parallel(loops) else self._nest(loops) or node

        def loop(node: tirx.For, mutator: Mutator) -> tirx.Stmt:
            if is_parallel(node):
                return self._nest(node) or node
            return mutator.default_mutate(node)

        return mutated(stmt, (tirx.Evaluate, evaluate), (tirx.For, loop))

    def _partial(self, op: Any, node: tirx.Evaluate) -> tirx.Stmt:
        part = self._group.part_for(op)
        if part is None:
            return node
        call = operator_for("partial reduction")(op.src, as_region(part), op.kind, op.dim, op.clear)
        return tirx.Evaluate(call.to_call(node.span), node.span)

    def _nest(self, loop: tirx.For) -> tirx.Stmt | None:
        """A nest that stores to parts what it stores to a buffer, if that is linear."""
        store = _store_of(loop) if self._group.is_exact and self._form.kind == "sum" else None
        if store is None or buffer_of(store) not in self._group.parts:
            return None
        variables = Nest(loop).variables

        def is_element(load: ir.TensorLoad) -> bool | None:
            if buffer_of(load) not in self._group.parts:
                return False
            pairs = zip(indices_of(load), variables, strict=True)
            return all(index.same_as(variable) for index, variable in pairs) or None

        if not is_linear(store.value, is_element):
            return None
        kept, dims = iter(variables), self._form.dims
        axes = range(len(self._form.layout.axes))
        indices = [ir.Var("part", "int32") if axis in dims else next(kept) for axis in axes]

        def load_part(load: ir.TensorLoad) -> ir.Expr:
            part = self._group.parts.get(buffer_of(load))
            return load if part is None else tirx.BufferLoad(part, indices)

        part = self._group.parts[buffer_of(store)]
        value = mapped(store.value, (ir.TensorLoad, load_part))
        body: tirx.Stmt = tirx.BufferStore(part, value, indices, store.span)
        for variable, extent in reversed(list(zip(indices, part.ty.shape, strict=True))):
            body = for_loop(variable, extent, body, tirx.ForKind.PARALLEL)
        return body


def _accesses(stmt: tirx.Stmt, buffer: ir.Var) -> list[Effect]:
    return [access for access in effects_of(stmt) if access.root.same_as(buffer)]


def _is_set_by(statements: Iterable[tirx.Stmt], buffer: ir.Var) -> bool:
    """Tell whether the first of the statements that use a buffer certainly comes to set all of it."""
    stmt = next((stmt for stmt in statements if _accesses(stmt, buffer)), None)
    if stmt is None:
        return False
    if is_parallel(stmt) or isinstance(stmt, tirx.Evaluate):
        first = _accesses(stmt, buffer)[0]
        return not (first.reads or first.conditions)
    if not isinstance(stmt, tirx.For) or (constant(stmt.extent) or 0) < 1 or leaves_loop(stmt.body):
        return False
    return _is_set_by(flattened(stmt.body), buffer)


def _without_unused(body: tirx.Stmt, group: _Group) -> tirx.Stmt:
    """A statement without the allocations of buffers that are not used any more."""
    unused = {buffer for buffer in group.parts if not _accesses(body, buffer)}

    return without(
        body, lambda each: isinstance(each, tirx.AllocBuffer) and buffer_of(each) in unused
    )
