"""SerializeVectors: vectors of dependent iterations, or wider than a GPU's, become loops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import Any

from tvm import DataType, ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import buffer_of, indices_of, is_buffer_var, mapped, walk
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.effects import effects_of
from tvmtile.analysis.kernel_info import let_values
from tvmtile.ir.extents import linear_in
from tvmtile.ir.kernels import bound_target, with_body
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains, replace_loop, substitute
from tvmtile.target import gpu


@prim_func_pass("SerializeVectors")
def SerializeVectors(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Turn `T.vectorized` into a serial loop, unless its iterations are known to be independent.

    A vector reads all its elements before it writes the first: a sum over the loop would keep one
    addend. Iterations are independent where each element that one of them writes is touched by no
    other, which is known if along some axis all indices of its buffer are `c * i + r` with distances
    that are no other iteration's.

    A store of more elements than a vector of the GPU has becomes such a loop, which is split into
    vectors later: `A[0:64] = B[0:64]`. One that reads what it writes elsewhere stays as it is.
    """
    aliased = Aliases(func.body).aliased

    def serialize(loop: tirx.For) -> tirx.For:
        if loop.kind != tirx.ForKind.VECTORIZED or _Iterations(loop, aliased).are_independent():
            return loop
        return replace_loop(loop, kind=tirx.ForKind.SERIAL)

    widest = dict(getattr(gpu(bound_target(func)), "vectors", ()))

    def split(store: tirx.BufferStore) -> tirx.Stmt:
        dtype = DataType(str(store.value.ty.dtype))
        if dtype.lanes <= widest.get(dtype.bits, dtype.lanes):
            return store
        lane = tirx.Var("lane", "int32")
        loop = _by_lanes(store, lane, dtype.lanes)
        return store if loop is None or not _Iterations(loop, aliased).are_independent() else loop

    return with_body(func, mapped(func.body, (tirx.For, serialize), (tirx.BufferStore, split)))


def _by_lanes(store: tirx.BufferStore, lane: ir.Var, lanes: int) -> tirx.For | None:
    """A store of a vector as a loop; None where an element of it is not known."""
    value, places = _lane_of(store.value, lane), _lanes_of(indices_of(store), lane)
    if value is None or places is None:
        return None
    element = tirx.BufferStore(buffer_of(store), value, places, span=store.span)
    return tirx.For(lane, 0, lanes, tirx.ForKind.VECTORIZED, element)


def _lane_of(vector: ir.Expr, lane: ir.Var) -> ir.Expr | None:
    """An element of a vector; None of what is not known to be computed lane by lane."""
    dtype = DataType(str(vector.ty.dtype))
    if dtype.lanes == 1:
        return vector
    if isinstance(vector, tirx.Broadcast):
        return vector.value
    if isinstance(vector, tirx.Ramp):
        return vector.base + lane * vector.stride
    if isinstance(vector, ir.TensorLoad):
        places = _lanes_of(indices_of(vector), lane)
        return None if places is None else tirx.BufferLoad(buffer_of(vector), places)
    if isinstance(vector, tirx.Cast):
        value = _lane_of(vector.value, lane)
        return None if value is None else tirx.Cast(str(dtype).rpartition("x")[0], value)
    if isinstance(vector, _ELEMENTWISE):
        sides = _lanes_of([vector.a, vector.b], lane)
        return None if sides is None else type(vector)(*sides)
    return None


def _lanes_of(vectors: Sequence[ir.Expr], lane: ir.Var) -> list[ir.Expr] | None:
    elements = [_lane_of(vector, lane) for vector in vectors]
    known = [element for element in elements if element is not None]
    return known if len(known) == len(elements) else None


_ELEMENTWISE = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min),
    *(tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor),
)


class _Iterations:
    """The accesses of a loop's iterations."""

    def __init__(self, loop: tirx.For, aliased: set[ir.Var]) -> None:
        self._loop = loop
        self._aliased = aliased
        self._own: set[ir.Var] = set()
        self._inner: set[ir.Var] = set()
        self._stored: set[ir.Var] = set()
        self._accesses: dict[ir.Var, list[Any]] = {}
        walk(
            loop.body,
            (tirx.AllocBuffer, lambda node: self._own.add(buffer_of(node))),
            (tirx.For, lambda node: self._inner.add(node.loop_var)),
            order="pre",
        )
        names = let_values(loop.body)
        for access in effects_of(loop.body):
            if access.indices:
                written = [substitute(index, names) for index in access.indices]
                self._accesses.setdefault(access.root, []).append(written)
            if access.value is not None:
                self._stored.add(access.root)

    def are_independent(self) -> bool:
        """Tell whether no iteration touches what another one writes."""
        if self._stored & self._aliased:
            return False
        return all(self._has_own_elements(buffer) for buffer in self._stored - self._own)

    def _has_own_elements(self, buffer: ir.Var) -> bool:
        return any(map(self._tells_iterations_apart, zip(*self._accesses[buffer], strict=True)))

    def _tells_iterations_apart(self, indices: tuple[ir.Expr, ...]) -> bool:
        """Tell whether the indices along one axis are never those of another iteration."""
        if any(contains(index, (ir.Var, ir.TensorLoad), self._is_unknown) for index in indices):
            return False
        places = [linear_in(index, self._loop.loop_var) for index in indices]
        return all(
            a is not None and b is not None and self._apart(a, b)
            for a, b in combinations_with_replacement(places, 2)
        )

    def _is_unknown(self, node: ir.Expr) -> bool:
        """Tell whether another iteration may see another value, the loop's variable apart."""
        if isinstance(node, ir.TensorLoad):
            return buffer_of(node) in self._stored
        return node in self._inner or (is_buffer_var(node) and node in self._own)

    def _apart(self, first: tuple[int, Any], other: tuple[int, Any]) -> bool:
        distance = constant(Analyzer().simplify(other[1] - first[1]))
        if distance is None or first[0] != other[0]:
            return False
        iterations, rest = divmod(distance, first[0])
        extent = constant(self._loop.extent)
        is_same = iterations == 0
        return bool(rest) or is_same or (extent is not None and abs(iterations) >= extent)
