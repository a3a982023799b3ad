"""CheckBounds: elements of a kernel's own tiles lie inside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import DataType, ir, tirx

from tvmtile._tvm import Mutator, buffer_of, mutated
from tvmtile.errors import OutOfBounds, SourceLocation
from tvmtile.ir.calls import op_name
from tvmtile.ir.operands import constant, describe
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains, substitute
from tvmtile.ir.scopes import is_global
from tvmtile.ir.spans import location_of

_EXITS = ("tirx.break_loop", "tirx.continue_loop")


@prim_func_pass("CheckBounds")
def CheckBounds(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Refuse an element of a tile that the first or the last iteration of its loops puts outside it.

    Tensors are guarded; tiles are not, so that such a store would overwrite what lies beside the tile.
    What stands under a condition, or in a loop that may not run, is taken to be right. The program
    is not changed.

    ```
    row_max = T.alloc_fragment((32,), "float32")
    for i in T.Parallel(64):
        row_max[i] = 0             # refused: i reaches 63
    ```

    Raises
    ------
    OutOfBounds
        For such an element.
    """
    _Bounds().check(func.body)
    return func


class _Bounds:
    def __init__(self) -> None:
        self._tiles: set[ir.Var] = set()
        self._first: dict[ir.Var, ir.Expr] = {}
        self._last: dict[ir.Var, ir.Expr] = {}
        self._is_certain = True
        self._location: SourceLocation | None = None

    def check(self, body: tirx.Stmt) -> None:
        mutated(
            body,
            (tirx.AllocBuffer, self._alloc),
            (tirx.Bind, self._bind),
            (tirx.For, self._loop),
            ((tirx.IfThenElse, tirx.While, tirx.Select), self._uncertain),
            (ir.Call, self._call),
            (tirx.BufferStore, self._store),
            (ir.TensorLoad, self._load),
        )

    def _alloc(self, node: tirx.AllocBuffer, mutator: Mutator) -> tirx.Stmt:
        if not is_global(node.buffer):
            self._tiles.add(node.buffer)
        return mutator.default_mutate(node)

    def _bind(self, node: tirx.Bind, mutator: Mutator) -> tirx.Stmt:
        if ir.is_prim_expr(node.value) and not contains(node.value, ir.TensorLoad):
            self._first[node.var] = substitute(node.value, self._first)
            self._last[node.var] = substitute(node.value, self._last)
        return mutator.default_mutate(node)

    def _loop(self, loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        low, extent = constant(loop.min), constant(loop.extent)
        if low is not None and extent is not None and extent > 0:
            dtype = str(loop.loop_var.ty.dtype)
            self._first[loop.loop_var] = tirx.const(low, dtype)
            self._last[loop.loop_var] = tirx.const(low + extent - 1, dtype)
        runs = loop.thread_binding is not None or (extent is not None and extent > 0)
        if runs and not contains(loop.body, ir.Call, lambda call: op_name(call) in _EXITS):
            return mutator.default_mutate(loop)
        return self._uncertain(loop, mutator)

    def _uncertain(self, node: ir.Call | tirx.Stmt, mutator: Mutator) -> Any:
        """Visit what may not be reached."""
        outer, self._is_certain = self._is_certain, False
        mutator.default_mutate(node)
        self._is_certain = outer
        return node

    def _call(self, call: ir.Call, mutator: Mutator) -> ir.Expr:
        name = op_name(call)
        if name in ("prim.if_then_else", "tirx.address_of"):
            return self._uncertain(call, mutator)
        outer, self._location = self._location, location_of(call) or self._location
        mutator.default_mutate(call)
        self._location = outer
        return call

    def _store(self, store: tirx.BufferStore, mutator: Mutator) -> tirx.Stmt:
        self._location = location_of(store)
        self._check(store.buffer, store.indices)
        mutator.default_mutate(store)
        self._location = None
        return store

    def _load(self, load: ir.TensorLoad, mutator: Mutator) -> ir.Expr:
        self._check(buffer_of(load), load.indices)
        return mutator.default_mutate(load)

    def _check(self, buffer: ir.Var, indices: Sequence[ir.Expr]) -> None:
        if not self._is_certain or buffer not in self._tiles:
            return
        for axis, (index, size) in enumerate(zip(indices, buffer.ty.shape, strict=True)):
            limit = constant(size)
            if contains(index, tirx.Cast, _narrows):
                continue  # its largest value is not that of the last iteration
            for place in _ends(index):
                for values in (self._first, self._last):
                    reached = constant(substitute(place, values))
                    if reached is None or limit is None or 0 <= reached < limit:
                        continue
                    raise OutOfBounds(
                        f"{describe(buffer)} has {limit} elements along axis {axis}, and the index "
                        f"`{index}` reaches {reached}",
                        help="allocate the tile as large as the loops over it",
                        location=self._location,
                    )


def _ends(index: ir.Expr) -> tuple[ir.Expr, ...]:
    if isinstance(index, tirx.Ramp):
        return index.base, index.base + (index.lanes - 1) * index.stride
    return (index,)


def _narrows(cast: tirx.Cast) -> bool:
    source, target = (DataType(str(each.ty.dtype)) for each in (cast.value, cast))
    return int(target.bits) < int(source.bits)
