"""SerializeVectors: a vectorized loop with dependent iterations becomes a serial one."""

from __future__ import annotations

from itertools import combinations_with_replacement
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import is_buffer_var, mapped, walk
from tvmtile.analysis.accesses import accesses_of
from tvmtile.analysis.aliases import Aliases
from tvmtile.ir.extents import linear_in
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains, replace_loop, substitute

__all__ = ["SerializeVectors"]


@prim_func_pass("SerializeVectors")
def SerializeVectors(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Turn `T.vectorized` into a serial loop, unless its iterations are known to be independent.

    A vector reads all its elements before it writes the first: a sum over the loop would keep one
    addend. Iterations are independent where each element that one of them writes is touched by no
    other, which is known if along some axis all indices of its buffer are `c * i + r` with distances
    that are no other iteration's.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in T.vectorized(4):
                B[0] = B[0] + A[i]
            for i in T.vectorized(4):
                B[i] = B[i] + A[i]
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in range(4):
                B[0] = B[0] + A[i]
            for i in T.vectorized(4):
                B[i] = B[i] + A[i]
    ```
    """
    aliased = Aliases(func.body).aliased

    def serialize(loop: tirx.For) -> tirx.For:
        if loop.kind != tirx.ForKind.VECTORIZED or _Iterations(loop, aliased).are_independent():
            return loop
        return replace_loop(loop, kind=tirx.ForKind.SERIAL)

    return func.with_body(mapped(func.body, (tirx.For, serialize)))


class _Iterations:
    """What the iterations of a loop access."""

    def __init__(self, loop: tirx.For, aliased: set[ir.Var]) -> None:
        self._loop = loop
        self._aliased = aliased
        self._own: set[ir.Var] = set()
        self._names: dict[ir.Var, Any] = {}
        self._inner: set[ir.Var] = set()
        self._stored: set[ir.Var] = set()
        self._accesses: dict[ir.Var, list[Any]] = {}
        walk(
            loop.body,
            (tirx.AllocBuffer, lambda node: self._own.add(node.buffer)),
            (tirx.For, lambda node: self._inner.add(node.loop_var)),
            (tirx.Bind, self._bind),
            order="pre",
        )
        for access in accesses_of(loop.body):
            if access.indices:
                written = [substitute(index, self._names) for index in access.indices]
                self._accesses.setdefault(access.buffer, []).append(written)
            if access.value is not None:
                self._stored.add(access.buffer)

    def _bind(self, bind: tirx.Bind) -> None:
        self._names[bind.var] = substitute(bind.value, self._names)

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
            return node.source in self._stored
        return node in self._inner or (is_buffer_var(node) and node in self._own)

    def _apart(self, first: tuple[int, Any], other: tuple[int, Any]) -> bool:
        distance = constant(Analyzer().simplify(other[1] - first[1]))
        if distance is None or first[0] != other[0]:
            return False
        iterations, rest = divmod(distance, first[0])
        extent = constant(self._loop.extent)
        is_same = iterations == 0
        return bool(rest) or is_same or (extent is not None and abs(iterations) >= extent)
