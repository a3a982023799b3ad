"""ReduceAccumulations: accumulations of a nest into a fragment become reductions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import DataType, ir, tirx

from tvmtile._tvm import Mutator, buffer_of, indices_of, mutated, nodes_in
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.linearity import contribution
from tvmtile.analysis.nests import Nest
from tvmtile.ir.combiners import COMBINERS, Combiner
from tvmtile.ir.kernels import Launch, is_parallel, with_kernels, with_launch_body
from tvmtile.ir.operands import as_region, constant, region
from tvmtile.ir.operators import operator_for
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains, for_loop, replace_loop, seq, substitute
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.scopes import FRAGMENT_SCOPE, is_by_elements

_KINDS = ("sum", "max", "min")
_KINDS_OF_BITS = ("bitand", "bitor", "bitxor")
_FEW = 8
"""Terms of a sum that one thread may as well take, if there are sums for all threads."""
_MOST_TERMS = 512
"""Terms of a thread from which on it does not hold them all: they would lie in memory."""
_PIECE = 32
"""Terms that it holds then, those of a piece of the nest."""
_MENTIONS = 2
"""How often `total[i] += x[i, j]` mentions `total`."""


@prim_func_pass("ReduceAccumulations")
def ReduceAccumulations(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write `total[i] += x[i, j]` in `T.Parallel(i, j)` as the reduction that it is.

    All iterations that add to an element would otherwise run in the thread that holds it. The terms
    become a fragment of the nest's shape, which a reduction adds up, in registers and across threads;
    out of loops, ReduceBehindLoops takes the exchange. That is done for sums, maxima and minima of
    integers and of floats of 32 bits or more, and for bits of integers, if the fragment's indices are
    loop variables and constants and nothing else in the nest touches it. Where a thread would hold
    many terms, a serial loop reduces the nest piece by piece.
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
    """The contribution of an iteration."""
    combiner: Combiner
    """How."""
    axes: tuple[int, ...]
    """The loops of the nest over which terms are combined, outermost first."""
    target: ir.TensorRegion
    """The elements that all iterations store to."""


class _Reducer(ScopedRewriter):
    def __init__(self, threads: int, aliases: Aliases) -> None:
        super().__init__()
        self._threads = threads
        self._aliases = aliases
        self.allocated: list[ir.Var] = []

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        return self._nest(loop) if is_parallel(loop) else super().visit_for(loop)

    def _nest(self, loop: tirx.For) -> tirx.Stmt:
        nest = Nest(loop)
        found = accumulations_in(nest, self._threads, self._aliases)
        if not found:
            return loop
        pieces = _in_pieces(nest, found, self._threads)
        if pieces is not None:
            return self.visit_for(pieces)
        terms = {each.store: self._terms(each, nest) for each in found}
        reductions = (_reduction(each, terms[each.store]) for each in found)
        return seq([_storing(nest, found, terms), *reductions])

    def _terms(self, each: _Accumulation, nest: Nest) -> ir.Var:
        buffer = buffer_of(each.store)
        dtype, name = str(buffer.ty.dtype), f"{buffer.name}_terms"
        terms = tirx.decl_buffer(nest.extents, dtype, name=name, scope=FRAGMENT_SCOPE)
        self.allocated.append(terms)
        return terms


def accumulations_in(nest: Nest, threads: int, aliases: Aliases) -> list[_Accumulation]:
    """The stores of a nest that are worth a reduction."""
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
    buffer, indices = buffer_of(store), indices_of(store)
    dtype = DataType(str(buffer.ty.dtype))
    is_integer = str(dtype).startswith(("int", "uint"))
    if not is_by_elements(buffer) or not (is_integer or dtype.bits >= 32):
        return None
    counting = [
        next((n for n, v in enumerate(nest.variables) if i.same_as(v)), None) for i in indices
    ]
    kept = [n for n in counting if n is not None]
    others = [index for index, n in zip(indices, counting, strict=True) if n is None]
    axes = tuple(n for n in range(len(nest.loops)) if n not in kept)
    if not axes or kept != sorted(set(kept)) or any(constant(index) is None for index in others):
        return None
    origin = [i if n is None else 0 for i, n in zip(indices, counting, strict=True)]
    target = region(buffer, origin, [1 if n is None else nest.extents[n] for n in counting])
    for name in _KINDS + _KINDS_OF_BITS if is_integer else _KINDS:
        term = contribution(store, COMBINERS[name])
        if term is not None:
            return _Accumulation(store, term, COMBINERS[name], axes, target)
    return None


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
    """The number of times that a statement names the memory of a buffer."""
    mentioned = nodes_in(body, ir.Var)
    mentioned += [buffer_of(node) for node in nodes_in(body, tirx.AllocBuffer)]
    return sum(aliases.root(buffer).same_as(aliases.root(var)) for var in mentioned)


def _reduction(each: _Accumulation, terms: ir.Var) -> tirx.Stmt:
    """The reduction of terms over the axes of the nest that the accumulation does not keep."""
    axes = each.axes if len(each.axes) > 1 else each.axes[0]
    make = operator_for("reduction")
    op = make(as_region(terms), each.target, each.combiner.name, axes, clear=False)
    return tirx.Evaluate(op.to_call(each.store.span), each.store.span)


def _in_pieces(nest: Nest, found: list[_Accumulation], threads: int) -> tirx.For | None:
    """A serial loop over shorter nests, where a thread would hold too many terms."""
    count = math.prod(extent or 1 for extent in nest.extents)
    common = set.intersection(*(set(each.axes) for each in found))
    fragments = {a.buffer for a in nest.accesses if is_by_elements(a.buffer)}
    if count <= _MOST_TERMS * threads or len(fragments) > len(found):
        return None
    for axis in sorted(common):
        extent, whole = nest.extents[axis] or 1, nest.variables[axis]
        beside = count // extent
        most = min(extent - 1, _PIECE * threads // beside)
        held = max((n for n in range(1, most + 1) if extent % n == 0), default=0)
        if held * beside < threads:
            continue
        piece, within = (tirx.Var(whole.name + name, whole.ty) for name in ("_piece", ""))
        body = substitute(nest.body, {whole: piece * held + within})
        for n, loop in reversed(list(enumerate(nest.loops))):
            shorter = {"loop_var": within, "extent": held} if n == axis else {}
            body = replace_loop(loop, body=body, **shorter)
        return for_loop(piece, extent // held, body)
    return None


def _storing(
    nest: Nest, found: list[_Accumulation], terms: dict[tirx.BufferStore, ir.Var]
) -> tirx.Stmt:
    """The nest that stores terms; iterations without one store the identity."""
    values = {each.store: each.term for each in found}

    def visit(store: tirx.BufferStore, mutator: Mutator) -> tirx.Stmt:
        if store not in terms:
            return mutator.default_mutate(store)
        return tirx.BufferStore(terms[store], values[store], nest.variables, store.span)

    body = mutated(nest.body, (tirx.BufferStore, visit))
    if contains(nest.body, tirx.IfThenElse):
        nothing = (each.combiner.identity(str(terms[each.store].ty.dtype)) for each in found)
        stores = zip(terms.values(), nothing, strict=True)
        body = seq([*(tirx.BufferStore(t, value, nest.variables) for t, value in stores), body])
    for loop in reversed(nest.loops):
        body = replace_loop(loop, body=body)
    return body
