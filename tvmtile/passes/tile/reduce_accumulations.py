"""ReduceAccumulations: accumulations of a nest into a fragment become reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import DataType, ir, tirx

from tvmtile._tvm import Mutator, Replacement, buffer_of, indices_of, mutated, nodes_in
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.contributions import contribution
from tvmtile.analysis.nests import Nest
from tvmtile.ir.combiners import COMBINERS, Combiner
from tvmtile.ir.kernels import Launch, is_parallel, with_kernels, with_launch_body
from tvmtile.ir.operands import as_region, constant, region
from tvmtile.ir.operators import operator_for
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains, for_loop, seq, substitute
from tvmtile.ir.rewriting import nest as nested
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.scopes import FRAGMENT_SCOPE

_FEW = 8
"""Terms of a sum that one thread may as well take, if there are sums for all threads."""
_MOST_TERMS = 512
"""Terms of a thread from which on it does not hold them all: they would lie in memory."""
_PIECE = 32
"""Terms that it holds then: into each of them it accumulates those of the pieces of the nest."""
_MENTIONS = 2
"""How often `total[i] += x[i, j]` mentions `total`."""
_MOST_CARRIED = 128
"""Terms of a thread that stay in registers from one iteration of a serial loop to the next."""


@prim_func_pass("ReduceAccumulations")
def ReduceAccumulations(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write `total[i] += x[i, j]` in `T.Parallel(i, j)` as the reduction that it is.

    All iterations that add to an element would otherwise run in the thread that holds it. The terms
    become a fragment of the nest's shape, which `T.reduce` adds up, in registers and across threads.
    That is done for sums, maxima and minima of integers and of floats of 32 bits or more, if the
    fragment's indices are loop variables and constants and nothing else in the nest touches it. Where
    a thread would hold many terms, a serial loop accumulates pieces of the nest into fewer. Where
    nothing else in the loops around touches the fragment, each term accumulates over their iterations
    too, and they are reduced once, behind the loops.
    """

    def reduced(kernel: tirx.For) -> tirx.For:
        launch = Launch(kernel)
        rewriter = _Reducer(launch.num_threads, Aliases(launch.body))
        body = rewriter.rewrite(launch.body)
        if not rewriter.allocated:
            return kernel
        allocations = [tirx.AllocBuffer(buffer) for buffer in rewriter.allocated]
        return with_launch_body(kernel, seq([*allocations, body]))

    return with_kernels(func, reduced)


@dataclass(frozen=True)
class _Accumulation:
    """A store that combines terms of several iterations into one element."""

    store: tirx.BufferStore
    term: ir.Expr
    """What an iteration contributes."""
    combiner: Combiner
    """How."""
    axes: tuple[int, ...]
    """The loops of the nest over which terms are combined, outermost first."""


@dataclass
class _Carrying:
    """A serial loop that terms are carried through."""

    loop: tirx.For
    terms: int = 0
    """Those that a thread holds meanwhile."""
    before: list[tirx.Stmt] = field(default_factory=list)
    behind: list[tirx.Stmt] = field(default_factory=list)
    """What sets the terms and what reduces them."""


class _Reducer(ScopedRewriter):
    def __init__(self, threads: int, aliases: Aliases) -> None:
        super().__init__()
        self._threads = threads
        self._aliases = aliases
        self._around: list[_Carrying] = []  # the serial loops with no condition inside
        self.allocated: list[ir.Var] = []

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        if is_parallel(loop):
            return self._nest(loop)
        self._around.append(_Carrying(loop))
        inside = super().visit_for(loop)
        carrying = self._around.pop()
        return seq([*carrying.before, inside, *carrying.behind])

    def others(self) -> list[Replacement]:
        return [(tirx.While, lambda node: self._apart(node, self.descend))]

    def visit_if(self, node: tirx.IfThenElse) -> tirx.Stmt:
        return self._apart(node, super().visit_if)

    def visit_attribute(self, node: tirx.AttrStmt) -> tirx.Stmt:
        return self._apart(node, super().visit_attribute)

    def _apart(self, node: tirx.Stmt, visit: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
        """Visit what not all threads, or not all iterations, may come to: it carries nothing out."""
        around, self._around = self._around, []
        try:
            return visit(node)
        finally:
            self._around = around

    def _nest(self, loop: tirx.For) -> tirx.Stmt:
        nest = Nest(loop)
        found = _accumulations(nest, self._threads, self._aliases)
        if not found:
            return loop
        extents = _extents_held(nest, found, self._threads)
        terms = {each.store: self._new(each, extents, "terms") for each in found}
        reductions = [
            call for each in found for call in self._reduced(each, nest, terms[each.store])
        ]
        carrying = self._carrying(found, extents)
        if carrying is None and extents == nest.extents:
            return seq([_at_once(nest, found, terms), *reductions])
        start = nested(extents, lambda indices: _identities(found, terms, indices))
        body = (_accumulated if extents == nest.extents else _in_pieces)(nest, found, terms)
        if carrying is None:
            return seq([start, body, *reductions])
        carrying.before.append(start)
        carrying.behind += reductions
        return body

    def _carrying(self, found: list[_Accumulation], extents: list[int | None]) -> _Carrying | None:
        """The outermost loop around a nest in which nothing else touches what it accumulates into."""
        held = math.prod(extent or 1 for extent in extents)
        held = len(found) * -(-held // self._threads)
        for carrying in self._around:
            if carrying.terms + held <= _MOST_CARRIED and all(
                _times_mentioned(carrying.loop, buffer_of(each.store), self._aliases) == _MENTIONS
                for each in found
            ):
                carrying.terms += held
                return carrying
        return None

    def _new(self, each: _Accumulation, shape: Any, role: str) -> ir.Var:
        buffer = buffer_of(each.store)
        name = f"{buffer.name}_{role}"
        dtype = str(buffer.ty.dtype)
        self.allocated.append(tirx.decl_buffer(shape, dtype, name=name, scope=FRAGMENT_SCOPE))
        return self.allocated[-1]

    def _reduced(self, each: _Accumulation, nest: Nest, terms: ir.Var) -> list[tirx.Stmt]:
        """One reduction an axis, the innermost first; the last one adds to the fragment."""
        calls: list[tirx.Stmt] = []
        *outer, innermost = each.axes
        extents = list(terms.ty.shape)
        for axis, is_last in [
            (innermost, not outer),
            *((a, a is outer[0]) for a in reversed(outer)),
        ]:
            del extents[axis]
            target: Any = _place(each.store, nest) if is_last else self._new(each, extents, "part")
            part = target if is_last else as_region(target)
            op = operator_for("reduction")(
                as_region(terms), part, each.combiner.name, axis, clear=not is_last
            )
            calls.append(tirx.Evaluate(op.to_call(each.store.span), each.store.span))
            terms = target
        return calls


def _accumulations(nest: Nest, threads: int, aliases: Aliases) -> list[_Accumulation]:
    """Those of a nest's stores that are worth a reduction."""
    if None in nest.extents:
        return []
    found = []
    for store in _stores_of_an_iteration(nest.body):
        each = _accumulation(store, nest)
        if each is None or _times_mentioned(nest.body, buffer_of(store), aliases) != _MENTIONS:
            continue
        terms = math.prod(nest.extents[axis] or 1 for axis in each.axes)
        sums = math.prod(extent or 1 for extent in nest.extents) // terms
        if terms > 1 and (sums < threads or terms > _FEW):
            found.append(each)
    return found


def _accumulation(store: tirx.BufferStore, nest: Nest) -> _Accumulation | None:
    dtype = DataType(str(buffer_of(store).ty.dtype))
    is_narrow_float = not str(dtype).startswith(("int", "uint")) and dtype.bits < 32
    if buffer_of(store).ty.storage_scope != FRAGMENT_SCOPE or is_narrow_float:
        return None
    kept = _loops_of(indices_of(store), nest)
    axes = tuple(n for n in range(len(nest.loops)) if kept is not None and n not in kept)
    if not axes:
        return None
    for name in ("sum", "max", "min"):
        term = contribution(store, COMBINERS[name])
        if term is not None:
            return _Accumulation(store, term, COMBINERS[name], axes)
    return None


def _loops_of(indices: Sequence[ir.Expr], nest: Nest) -> list[int] | None:
    """The loops that indices count, in order; None where they are more than variables and constants."""
    found: list[int] = []
    for index in indices:
        if constant(index) is not None:
            continue
        numbers = [n for n, variable in enumerate(nest.variables) if index.same_as(variable)]
        if not numbers or (found and numbers[0] <= found[-1]):
            return None
        found += numbers
    return found


def _stores_of_an_iteration(body: tirx.Stmt) -> list[tirx.BufferStore]:
    """The stores that an iteration does once at most."""
    found: list[tirx.BufferStore] = []

    def note(store: tirx.BufferStore, _: Mutator) -> tirx.Stmt:
        found.append(store)
        return store

    def skip(loop: tirx.For, _: Mutator) -> tirx.For:
        return loop

    mutated(body, (tirx.BufferStore, note), ((tirx.For, tirx.While), skip))
    return found


def _times_mentioned(body: tirx.Stmt, buffer: ir.Var, aliases: Aliases) -> int:
    """How often a statement names the memory of a buffer."""
    mentioned = nodes_in(body, ir.Var)
    mentioned += [buffer_of(node) for node in nodes_in(body, tirx.AllocBuffer)]
    return sum(aliases.root(buffer).same_as(aliases.root(var)) for var in mentioned)


def _place(store: tirx.BufferStore, nest: Nest) -> ir.TensorRegion:
    """The elements that all iterations of a nest store to."""
    extents = []
    origin = []
    for index in indices_of(store):
        is_constant = constant(index) is not None
        origin.append(index if is_constant else tirx.const(0, str(index.ty.dtype)))
        number = None if is_constant else _loops_of([index], nest)
        extents.append(1 if number is None else nest.extents[number[0]])
    return region(buffer_of(store), origin, extents)


def _extents_held(nest: Nest, found: list[_Accumulation], threads: int) -> list[int | None]:
    """Of the terms: the nest's, or a piece of them where a thread would hold too many."""
    count = math.prod(extent or 1 for extent in nest.extents)
    common = set.intersection(*(set(each.axes) for each in found))
    fragments = {a.buffer for a in nest.accesses if a.buffer.ty.storage_scope == FRAGMENT_SCOPE}
    if count <= _MOST_TERMS * threads or len(fragments) > len(found):
        return nest.extents
    for axis in sorted(common):
        extent = nest.extents[axis] or 1
        beside = count // extent
        most = min(extent - 1, _PIECE * threads // beside)
        held = max((n for n in range(1, most + 1) if extent % n == 0), default=0)
        if held * beside >= threads:
            return [*nest.extents[:axis], held, *nest.extents[axis + 1 :]]
    return nest.extents


def _at_once(
    nest: Nest, found: list[_Accumulation], terms: dict[tirx.BufferStore, ir.Var]
) -> tirx.Stmt:
    """The nest that stores terms; iterations without one store the identity."""
    values = {each.store: each.term for each in found}
    body = _storing(nest, terms, nest.variables, values)
    if contains(nest.body, tirx.IfThenElse):
        body = seq([_identities(found, terms, nest.variables), body])
    for loop in reversed(nest.loops):
        body = for_loop(loop.loop_var, constant(loop.extent), body, tirx.ForKind.PARALLEL)
    return body


def _in_pieces(
    nest: Nest, found: list[_Accumulation], terms: dict[tirx.BufferStore, ir.Var]
) -> tirx.Stmt:
    """A serial loop over the nest's pieces, which accumulates into the terms of one."""
    extents = [constant(extent) or 1 for extent in terms[found[0].store].ty.shape]
    axis = next(n for n, extent in enumerate(extents) if extent != nest.extents[n])
    whole = nest.variables[axis]
    piece, within = tirx.Var(f"{whole.name}_piece", whole.ty), tirx.Var(whole.name, whole.ty)
    variables = [*nest.variables[:axis], within, *nest.variables[axis + 1 :]]
    body = _accumulated(nest, found, terms, variables)
    body = substitute(body, {whole: piece * extents[axis] + within})
    count = (nest.extents[axis] or 1) // extents[axis]
    return for_loop(piece, count, body)


def _accumulated(
    nest: Nest,
    found: list[_Accumulation],
    terms: dict[tirx.BufferStore, ir.Var],
    variables: list[ir.Var] | None = None,
) -> tirx.Stmt:
    """The nest, with variables of its own for terms of its own, accumulating into the terms."""
    extents = [constant(extent) or 1 for extent in terms[found[0].store].ty.shape]
    variables = variables or nest.variables
    values = {
        each.store: each.combiner.combine(
            each.term, tirx.BufferLoad(terms[each.store], list(variables))
        )
        for each in found
    }
    body = _storing(nest, terms, variables, values)
    for variable, extent in reversed(list(zip(variables, extents, strict=True))):
        body = for_loop(variable, extent, body, tirx.ForKind.PARALLEL)
    return body


def _identities(
    found: list[_Accumulation], terms: dict[tirx.BufferStore, ir.Var], indices: list[ir.Var]
) -> tirx.Stmt:
    return seq(
        [
            tirx.BufferStore(buffer, each.combiner.identity(str(buffer.ty.dtype)), list(indices))
            for each, buffer in zip(found, terms.values(), strict=True)
        ]
    )


def _storing(
    nest: Nest,
    terms: dict[tirx.BufferStore, ir.Var],
    indices: list[ir.Var],
    values: dict[tirx.BufferStore, Any],
) -> tirx.Stmt:
    """The body of a nest that stores values into the terms."""

    def visit(store: tirx.BufferStore, mutator: Mutator) -> tirx.Stmt:
        if store not in terms:
            return mutator.default_mutate(store)
        return tirx.BufferStore(terms[store], values[store], list(indices), store.span)

    return mutated(nest.body, (tirx.BufferStore, visit))
