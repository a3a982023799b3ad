"""Vectorized moves of contiguous elements, 4, 8 or 16 bytes a thread.

Elements narrower than 4 bytes move as words: TVM's generators for GPUs have vectors of at most four
lanes, and none of bfloat16. What is computed with them is computed element by element, in registers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import DataType, ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import Mutator, mutated
from tvmtile.analysis.conflicts.expressions import conjuncts
from tvmtile.ir.calls import is_if_then_else, takes_address
from tvmtile.ir.extents import is_power_of_two
from tvmtile.ir.index_width import count_of, is_large, widened
from tvmtile.ir.kernels import flattened
from tvmtile.ir.operands import constant, offset_in_memory
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import (
    contains,
    for_loop,
    mentions,
    reads_no_memory,
    seq,
    substitute,
    with_fresh_variables,
)
from tvmtile.ir.scopes import is_fragment, is_private, is_shared
from tvmtile.ir.spans import span_within
from tvmtile.ir.types import Binary
from tvmtile.layout.shared import contiguous_run, has_plain_rows

__all__ = ["LARGEST", "bytes_of", "contiguous_base", "vectorized", "without_invariant"]

_WORD = 4
LARGEST = 16
"""Bytes that a thread moves at once at most."""
_LANES = 4
"""Lanes of the widest vector that an element operator has."""


def vectorized(variable: ir.Var, extent: int, body: tirx.Stmt, analyzer: Analyzer) -> tirx.Stmt:
    """A loop over contiguous elements as vector moves around an unrolled loop that computes."""
    body = _with_places_inlined(body)
    condition, body = without_invariant(variable, extent, body, analyzer)
    if condition is not None:
        return tirx.IfThenElse(condition, vectorized(variable, extent, body, analyzer), None)
    choice = _choice(body)
    if choice is not None:
        condition = _same_for_all(choice.condition, variable, extent, analyzer)
    if choice is not None and condition is not None:
        assert choice.else_case is not None, "without_invariant has taken the others"
        then_case = vectorized(variable, extent, choice.then_case, analyzer)
        else_case = vectorized(variable, extent, choice.else_case, analyzer)
        return tirx.IfThenElse(condition, then_case, with_fresh_variables(else_case), choice.span)
    moves = _Moves(variable, extent, analyzer, span_within(body))
    together = moves.of_operator(body)
    if together is not None:
        return together
    for load in _loads_in(body):
        moves.add_load(load)
    if isinstance(body, tirx.BufferStore) and len(moves.loaded) == 1:
        direct = moves.direct(body)
        if direct is not None:
            return direct
    *names, last = flattened(moves.with_loads_replaced(body))
    if isinstance(last, tirx.BufferStore) and _is_stored_once(body):
        last = moves.with_store_replaced(last)
    loop = for_loop(variable, extent, seq([*names, last]), tirx.ForKind.UNROLLED)
    return seq([*moves.before, loop, *moves.after])


def without_invariant(
    variable: ir.Var, extent: int, body: tirx.Stmt, analyzer: Analyzer
) -> tuple[Any, tirx.Stmt]:
    """The loop-invariant condition of an iteration, or None, and the rest of it."""
    if not isinstance(body, tirx.IfThenElse) or body.else_case is not None:
        return None, body
    outside: list[ir.Expr] = []
    inside: list[ir.Expr] = []
    for part in conjuncts(body.condition):
        invariant = _same_for_all(part, variable, extent, analyzer)
        (inside if invariant is None else outside).append(part if invariant is None else invariant)
    if not outside:
        return None, body
    if not inside:
        return tirx.all(*outside), body.then_case
    return tirx.all(*outside), tirx.IfThenElse(tirx.all(*inside), body.then_case, None, body.span)


def _same_for_all(
    condition: ir.Expr, variable: ir.Var, extent: int, analyzer: Analyzer
) -> ir.Expr | None:
    """A condition without the variable, if it is the same for all its values; None otherwise.

    `tx % 8 * 8 + i < 16` is `tx % 8 < 2` for eight elements in a row.
    """
    if not reads_no_memory(condition):
        return None
    condition = _without_lane(condition, variable, extent, analyzer)
    if not mentions(condition, variable):
        return condition
    if extent > LARGEST:
        return None
    dtype = str(variable.ty.dtype)

    def at(value: int) -> ir.Expr:
        return analyzer.simplify(substitute(condition, {variable: tirx.const(value, dtype)}))

    first = at(0)
    # The last one is the likeliest to differ.
    others = (at(value) for value in range(extent - 1, 0, -1))
    return first if all(tvm_ffi.structural_equal(first, other) for other in others) else None


def _without_lane(value: ir.Expr, variable: ir.Var, extent: int, analyzer: Analyzer) -> ir.Expr:
    """A value whose quotients and remainders are those of the first of the lanes.

    `(x + lane) // c` is `x // c`, and `(x + lane) % c` is `x % c + lane`, where `x` and `c` are
    multiples of the number of lanes.
    """
    if not mentions(value, variable):
        return value

    def first_lane(node: Binary) -> ir.Expr | None:
        divisor = constant(node.b) or 0
        if not mentions(node, variable) or divisor <= 0 or divisor % extent:
            return None
        first = substitute(node.a, {variable: tirx.const(0, str(variable.ty.dtype))})
        counts = analyzer.can_prove_equal(node.a - first, variable)
        return first if counts and _is_multiple(first, extent, analyzer) else None

    def quotient(node: tirx.FloorDiv, mutator: Mutator) -> ir.Expr:
        result = mutator.default_mutate(node)
        first = first_lane(result)
        return result if first is None else tirx.floordiv(first, result.b)

    def remainder(node: tirx.FloorMod, mutator: Mutator) -> ir.Expr:
        result = mutator.default_mutate(node)
        first = first_lane(result)
        return result if first is None else tirx.floormod(first, result.b) + variable

    return mutated(value, (tirx.FloorDiv, quotient), (tirx.FloorMod, remainder))


def _is_multiple(value: ir.Expr, factor: int, analyzer: Analyzer) -> bool:
    return bool(analyzer.can_prove_equal(tirx.floormod(value, factor), 0))


def _choice(body: tirx.Stmt) -> tirx.IfThenElse | None:
    """An iteration that stores one of two values, as a branch with two stores."""
    if isinstance(body, tirx.IfThenElse):
        return body
    if not isinstance(body, tirx.BufferStore) or not is_if_then_else(body.value):
        return None
    condition, *values = body.value.args
    then_case, else_case = (
        tirx.BufferStore(body.buffer, value, body.indices, span=body.span) for value in values
    )
    return tirx.IfThenElse(condition, then_case, else_case)


def _with_places_inlined(body: tirx.Stmt) -> tirx.Stmt:
    """An iteration with the names of computed integers and conditions inlined."""
    values: dict[ir.Var, ir.Expr] = {}
    rest: list[tirx.Stmt] = []
    for stmt in flattened(body):
        written = substitute(stmt, values)
        if isinstance(written, tirx.Bind) and _is_place(written.value):
            values[written.var] = written.value
        else:
            rest.append(written)
    return seq(rest)


def _is_place(value: ir.Expr) -> bool:
    dtype = str(value.ty.dtype)
    return dtype.startswith(("int", "bool")) and not contains(value, (ir.TensorLoad, ir.Call))


def _is_stored_once(body: tirx.Stmt) -> bool:
    """Tell whether an iteration is one store, after names of values that it needs."""
    *names, last = flattened(body)
    return isinstance(last, tirx.BufferStore) and all(isinstance(x, tirx.Bind) for x in names)


def _stores_registers(body: tirx.Stmt) -> bool:
    """Tell whether an iteration is names and stores to registers that it does not load."""
    statements = list(flattened(body))
    if not all(isinstance(x, tirx.Bind | tirx.BufferStore) for x in statements):
        return False
    stored = {x.buffer for x in statements if isinstance(x, tirx.BufferStore)}
    return all(is_private(b) or is_fragment(b) for b in stored) and not contains(
        body, ir.TensorLoad, lambda load: load.source in stored
    )


def _loads_in(body: tirx.Stmt) -> list[ir.TensorLoad]:
    """The unconditional loads of an iteration, at addresses known before the loop.

    None where the body stores to memory more than once: what a later statement loads may be what an
    earlier one has stored.
    """
    if not _is_stored_once(body) and not _stores_registers(body):
        return []
    found: list[ir.TensorLoad] = []

    def call(node: ir.Call, mutator: Mutator) -> ir.Expr:
        is_certain = not is_if_then_else(node) and not _takes_places(node)
        return mutator.default_mutate(node) if is_certain else node

    def load(node: ir.TensorLoad, mutator: Mutator) -> ir.Expr:
        found.append(node)
        return mutator.default_mutate(node)

    names: set[ir.Var] = set()
    statements: Iterable[Any] = flattened(body)
    for stmt in statements:
        mutated(stmt.value, (ir.Call, call), (ir.TensorLoad, load))
        if isinstance(stmt, tirx.Bind):
            names.add(stmt.var)
    return [
        node
        for node in found
        if not any(contains(index, ir.Var, names.__contains__) for index in node.indices)
    ]


def _takes_places(call: ir.Call) -> bool:
    """Tell whether elements among the arguments of a call are places in memory, not their values."""
    op = operator_of(call)
    if op is not None:
        return bool(op.reads() or op.writes())
    return takes_address(call)


@dataclass(frozen=True)
class _Loaded:
    """Contiguous elements loaded as a vector."""

    load: ir.TensorLoad
    """One of them, in an iteration."""
    array: ir.Var
    """What they are loaded into."""
    first: list[ir.Expr]
    """The place of the first."""
    repeats: int
    """How many iterations in a row load the same one."""


class _Moves:
    """The vector moves before and after a loop over contiguous elements."""

    def __init__(
        self, variable: ir.Var, extent: int, analyzer: Analyzer, span: ir.Span | None
    ) -> None:
        self._variable = variable
        self._extent = extent
        self._analyzer = analyzer
        self._span = span
        self.loaded: list[_Loaded] = []
        self.before: list[tirx.Stmt] = []
        self.after: list[tirx.Stmt] = []

    def add_load(self, load: ir.TensorLoad) -> None:
        """Load the elements as a vector, if they are contiguous in memory."""
        if any(tvm_ffi.structural_equal(load, seen.load) for seen in self.loaded):
            return
        repeats, first = 1, self._first(load.source, load.indices)
        while first is None and repeats < self._extent and self._extent % (2 * repeats) == 0:
            repeats *= 2
            first = self._first_of_repeated(load, repeats)
        if first is None:
            return
        count = self._extent // repeats
        array = self._array(load.source, count)
        self.loaded.append(_Loaded(load, array, first, repeats))
        move = self._move(array, _START, load.source, first, count)
        self.before += [tirx.AllocBuffer(array), move]

    def of_operator(self, body: tirx.Stmt) -> tirx.Stmt | None:
        """The vector form of an element operator, for at most four contiguous elements."""
        if not isinstance(body, tirx.Evaluate):
            return None
        op = operator_of(body.value)
        if op is None or op.is_tile or len(op.writes()) != 1 or self._extent % 2:
            return None
        (written,) = op.writes()
        first = self._first(written.source, written.indices)
        if first is None or len(first) != len(written.indices):
            return None
        *outer, last = first
        lanes = min(self._extent, _LANES)
        vector = op.vectorized(self._variable, lanes, [*outer, last + self._variable])
        if vector is None:
            return None
        together = tirx.Evaluate(vector.to_call(body.value.span), body.span)
        starts = [tirx.const(n, "int32") for n in range(0, self._extent, lanes)]
        return seq([substitute(together, {self._variable: start}) for start in starts])

    def _first_of_repeated(self, load: ir.TensorLoad, repeats: int) -> list[ir.Expr] | None:
        """The first of contiguous elements that some iterations in a row each load, as `x[i // 2]`."""
        count = self._extent // repeats
        dtype = str(self._variable.ty.dtype)
        group, within = tirx.Var("group", dtype), tirx.Var("within", dtype)
        self._analyzer.bind(group, ir.Range(0, count))
        self._analyzer.bind(within, ir.Range(0, repeats))
        split = {self._variable: group * repeats + within}
        indices = [self._analyzer.simplify(substitute(index, split)) for index in load.indices]
        if any(mentions(index, within) for index in indices):
            return None
        return contiguous_base(load.source, indices, group, count, self._analyzer)

    def _array(self, buffer: ir.Var, count: int) -> ir.Var:
        return tirx.decl_buffer(
            (count,), str(buffer.ty.dtype), name=f"{buffer.name}_vector", scope="local"
        )

    def direct(self, store: tirx.BufferStore) -> tirx.Stmt | None:
        """A move from memory to memory, where the store does nothing else."""
        (loaded,) = self.loaded
        target = self._first(store.buffer, store.indices)
        if target is None or not loaded.load.same_as(store.value) or loaded.repeats > 1:
            return None
        return self._move(store.buffer, target, loaded.load.source, loaded.first, self._extent)

    def with_loads_replaced(self, body: tirx.Stmt) -> tirx.Stmt:
        def replace(node: ir.TensorLoad, mutator: Mutator) -> ir.Expr:
            for loaded in self.loaded:
                if tvm_ffi.structural_equal(node, loaded.load):
                    number = tirx.floordiv(self._variable, loaded.repeats)
                    return tirx.BufferLoad(loaded.array, [number])
            return mutator.default_mutate(node)

        def call(node: ir.Call, mutator: Mutator) -> ir.Expr:
            return node if _takes_places(node) else mutator.default_mutate(node)

        return mutated(body, (ir.TensorLoad, replace), (ir.Call, call))

    def with_store_replaced(self, store: tirx.BufferStore) -> tirx.Stmt:
        first = self._first(store.buffer, store.indices)
        if first is None:
            return store
        array = self._array(store.buffer, self._extent)
        self.before.append(tirx.AllocBuffer(array))
        self.after.append(self._move(store.buffer, first, array, _START, self._extent))
        return tirx.BufferStore(array, store.value, [self._variable], span=store.span)

    def _first(self, buffer: ir.Var, indices: Sequence[ir.Expr]) -> list[ir.Expr] | None:
        """The indices of the first element, in the buffer or in the buffer as one row."""
        return contiguous_base(buffer, indices, self._variable, self._extent, self._analyzer)

    def _move(
        self, target: ir.Var, to: list[ir.Expr], source: ir.Var, origin: list[ir.Expr], count: int
    ) -> tirx.Stmt:
        target_view, target_indices = self._words(target, to, count)
        source_view, source_indices = self._words(source, origin, count)
        load = tirx.BufferLoad(source_view, source_indices)
        return seq(
            [
                tirx.DeclBuffer(target_view, data=target.data),
                tirx.DeclBuffer(source_view, data=source.data),
                tirx.BufferStore(target_view, load, target_indices, span=self._span),
            ]
        )

    def _words(
        self, buffer: ir.Var, place: list[ir.Expr], count: int
    ) -> tuple[ir.Var, list[ir.Expr]]:
        """A buffer as an array of words, and the place of the elements in it."""
        packed = max(1, _WORD // bytes_of(buffer))
        shape = list(buffer.ty.shape)
        if len(place) != len(shape):
            shape = [count_of(shape)]
            place = [widened(place[0])] if is_large(buffer) else place
        *outer, last = place
        view = tirx.decl_buffer(
            [*shape[:-1], tirx.ceildiv(shape[-1], packed)],
            str(buffer.ty.dtype) if packed == 1 else "uint32",
            name=f"{buffer.name}_words",
            scope=buffer.ty.storage_scope,
            layout=buffer.ty.layout.pack(packed) if not has_plain_rows(buffer) else "default",
        )
        first = self._analyzer.simplify(tirx.floordiv(last, packed))
        lanes = count // packed
        one = tirx.const(1, str(first.ty.dtype))
        return view, [*outer, tirx.Ramp(first, one, lanes) if lanes > 1 else first]


_START = [tirx.const(0, "int32")]


def contiguous_base(
    buffer: ir.Var, indices: Sequence[ir.Expr], variable: ir.Var, extent: int, analyzer: Analyzer
) -> list[ir.Expr] | None:
    """The indices of the first element, if all are contiguous from an aligned address on.

    `indices` are those of the element that `variable`, from 0, counts. Where a row does not consist of
    whole vectors there is one index, of the buffer as one row.
    """
    if is_private(buffer) or is_fragment(buffer):
        return None
    size = bytes_of(buffer)
    total = size * extent
    if not _WORD <= total <= LARGEST or not is_power_of_two(total):
        return None
    run = contiguous_run(buffer) if is_shared(buffer) else None
    if run is not None and run % extent:
        return None
    indices = [_without_lane(index, variable, extent, analyzer) for index in indices]
    candidates = [[offset_in_memory(buffer, indices)]] if run is None else []
    if not buffer.ty.strides:
        candidates.insert(0, list(indices))
    for place in candidates:
        row = buffer.ty.shape[-1] if len(place) > 1 else extent
        has_whole_vectors = constant(tirx.floormod(row, extent)) == 0
        first = _aligned(place, variable, extent, analyzer) if has_whole_vectors else None
        if first is not None:
            return first
    return None


def _aligned(
    place: list[ir.Expr], variable: ir.Var, extent: int, analyzer: Analyzer
) -> list[ir.Expr] | None:
    """The indices of the first element, if the last one counts on from an aligned value."""
    zero = {variable: tirx.const(0, str(variable.ty.dtype))}
    *outer, last = place
    if any(mentions(index, variable) for index in outer):
        return None
    first = substitute(last, zero)
    step = analyzer.simplify(last - first - variable)
    if not (isinstance(step, tirx.IntImm) and int(step) == 0):
        return None
    if not _is_multiple(first, extent, analyzer):
        return None
    return [*outer, analyzer.simplify(first)]


def bytes_of(buffer: ir.Var) -> int:
    """Bytes of an element; 0 where elements are no whole bytes."""
    dtype = DataType(str(buffer.ty.dtype))
    return 0 if dtype.bits % 8 or str(dtype) == "bool" else int(dtype.bits) // 8
