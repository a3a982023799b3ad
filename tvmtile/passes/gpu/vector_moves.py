"""Accesses of contiguous elements as moves of words, between memory and arrays of a thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import DataType, ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import Mutator, buffer_of, indices_of, mutated
from tvmtile.ir.calls import takes_address
from tvmtile.ir.extents import count_of, is_large, is_power_of_two, widened
from tvmtile.ir.operands import constant, offset_in_memory
from tvmtile.ir.operators import Vectorizable, operator_of
from tvmtile.ir.rewriting import mentions, seq, substitute
from tvmtile.ir.scopes import is_global, is_in_registers, is_shared
from tvmtile.ir.types import Binary
from tvmtile.layout.shared import contiguous_run, has_plain_rows

_WORD = 4
LARGEST = 16
"""Bytes that a thread moves at once at most."""
_LANES = 4
"""Lanes of the widest vector that an element operator has."""


@dataclass(frozen=True)
class _LoadedVector:
    """Contiguous elements loaded as a vector."""

    load: ir.TensorLoad
    """One of them, in an iteration."""
    array: ir.Var
    """The array that they are loaded into."""
    first: list[ir.Expr]
    """The place of the first."""
    repeats: int
    """How many iterations in a row load the same one."""


class Moves:
    """The vector moves before and after a loop over contiguous elements."""

    def __init__(
        self, variable: ir.Var, extent: int, analyzer: Analyzer, span: ir.Span | None
    ) -> None:
        self._variable = variable
        self._extent = extent
        self._analyzer = analyzer
        self._span = span
        self.loaded: list[_LoadedVector] = []
        self.before: list[tirx.Stmt] = []
        self.after: list[tirx.Stmt] = []

    def add_load(self, load: ir.TensorLoad) -> None:
        """Load the elements as a vector, if they are contiguous in memory."""
        if any(tvm_ffi.structural_equal(load, seen.load) for seen in self.loaded):
            return
        repeats, first = 1, self._first(buffer_of(load), indices_of(load))
        while first is None and repeats < self._extent and self._extent % (2 * repeats) == 0:
            repeats *= 2
            first = self._first_of_repeated(load, repeats)
        if first is None:
            return
        count = self._extent // repeats
        array = self._array(buffer_of(load), count)
        self.loaded.append(_LoadedVector(load, array, first, repeats))
        move = self._move(array, _START, buffer_of(load), first, count)
        self.before += [tirx.AllocBuffer(array), move]

    def of_operator(self, body: tirx.Stmt) -> tirx.Stmt | None:
        """The vector form of an element operator, for at most four contiguous elements."""
        if not isinstance(body, tirx.Evaluate):
            return None
        op = operator_of(body)
        if not isinstance(op, Vectorizable) or len(op.writes()) != 1 or self._extent % 2:
            return None
        (written,) = op.writes()
        first = self._first(buffer_of(written), indices_of(written))
        if first is None or len(first) != len(indices_of(written)):
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
        indices = [self._analyzer.simplify(substitute(index, split)) for index in indices_of(load)]
        if any(mentions(index, within) for index in indices):
            return None
        return contiguous_base(buffer_of(load), indices, group, count, self._analyzer)

    def _array(self, buffer: ir.Var, count: int) -> ir.Var:
        return tirx.decl_buffer(
            (count,), str(buffer.ty.dtype), name=f"{buffer.name}_vector", scope="local"
        )

    def direct(self, store: tirx.BufferStore) -> tirx.Stmt | None:
        """A move from memory to memory, where the store does nothing else."""
        (loaded,) = self.loaded
        target = self._first(buffer_of(store), indices_of(store))
        if target is None or not loaded.load.same_as(store.value) or loaded.repeats > 1:
            return None
        return self._move(
            buffer_of(store), target, buffer_of(loaded.load), loaded.first, self._extent
        )

    def with_loads_replaced(self, body: tirx.Stmt) -> tirx.Stmt:
        def replace(node: ir.TensorLoad, mutator: Mutator) -> ir.Expr:
            for loaded in self.loaded:
                if tvm_ffi.structural_equal(node, loaded.load):
                    number = tirx.floordiv(self._variable, loaded.repeats)
                    return tirx.BufferLoad(loaded.array, [number])
            return mutator.default_mutate(node)

        def call(node: ir.Call, mutator: Mutator) -> ir.Expr:
            return node if takes_places(node) else mutator.default_mutate(node)

        return mutated(body, (ir.TensorLoad, replace), (ir.Call, call))

    def with_store_replaced(self, store: tirx.BufferStore) -> tirx.Stmt:
        first = self._first(buffer_of(store), indices_of(store))
        if first is None:
            return store
        array = self._array(buffer_of(store), self._extent)
        self.before.append(tirx.AllocBuffer(array))
        self.after.append(self._move(buffer_of(store), first, array, _START, self._extent))
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
            shape = [_span(buffer)]
            place = [widened(place[0])] if is_large(buffer) else place
        is_plain = is_global(buffer) or has_plain_rows(buffer)
        *outer, last = place
        lanes = count // packed
        row = tirx.ceildiv(shape[-1], packed)
        # TVM's generator for Metal is to see that a vector begins at a multiple of its lanes.
        if outer and constant(row) is None:
            row = tirx.floordiv(shape[-1], count) * lanes
        view = tirx.decl_buffer(
            [*shape[:-1], row],
            str(buffer.ty.dtype) if packed == 1 else "uint32",
            name=f"{buffer.name}_words",
            scope=buffer.ty.storage_scope,
            layout="default" if is_plain else buffer.ty.layout.pack(packed),
        )
        first = self._analyzer.simplify(tirx.floordiv(last, packed))
        modular = Analyzer().modular_set(first)
        if int(modular.coeff) % lanes or int(modular.base) % lanes:
            first = tirx.floordiv(last, count) * lanes
        one = tirx.const(1, str(first.ty.dtype))
        return view, [*outer, tirx.Ramp(first, one, lanes) if lanes > 1 else first]


def _span(buffer: ir.Var) -> ir.Expr:
    """The number of elements from the first one of a buffer to the last one, in memory."""
    shape, strides = list(buffer.ty.shape), list(buffer.ty.strides)
    if not strides:
        return count_of(shape)
    return sum(((n - 1) * s for n, s in zip(shape, strides, strict=True)), tirx.const(1, "int32"))


_START = [tirx.const(0, "int32")]


def contiguous_base(
    buffer: ir.Var, indices: Sequence[ir.Expr], variable: ir.Var, extent: int, analyzer: Analyzer
) -> list[ir.Expr] | None:
    """The indices of the first element, if all are contiguous from an aligned address on.

    `indices` are those of the element that `variable`, from 0, counts. Where a row does not consist of
    whole vectors there is one index, of the buffer as one row.
    """
    if is_in_registers(buffer):
        return None
    size = bytes_of(buffer)
    total = size * extent
    if not _WORD <= total <= LARGEST or not is_power_of_two(total):
        return None
    if is_global(buffer) and total > int(buffer.ty.data_alignment):
        return None
    run = contiguous_run(buffer) if is_shared(buffer) else None
    if run is not None and run % extent:
        return None
    indices = [without_lane(index, variable, extent, analyzer) for index in indices]
    candidates = [[offset_in_memory(buffer, indices)]] if run is None else []
    if not buffer.ty.strides:
        candidates.insert(0, list(indices))
    for place in candidates:
        row = buffer.ty.shape[-1] if len(place) > 1 else extent
        has_whole_vectors = _is_multiple(row, extent, analyzer)
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


def without_lane(value: ir.Expr, variable: ir.Var, extent: int, analyzer: Analyzer) -> ir.Expr:
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


def _is_multiple(value: ir.Expr | int, factor: int, analyzer: Analyzer) -> bool:
    return bool(analyzer.can_prove_equal(tirx.floormod(value, factor), 0))


def takes_places(call: ir.Call) -> bool:
    """Tell whether elements among the arguments of a call are places in memory, not their values."""
    op = operator_of(call)
    if op is not None:
        return bool(op.reads() or op.writes())
    return takes_address(call)
