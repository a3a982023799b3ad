"""NarrowSums: sums of 64-bit indices are computed in 32 bits where they fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, indices_of
from tvmtile.codegen.device import device_pass
from tvmtile.ir.kernels import with_body
from tvmtile.ir.rewriting import contains
from tvmtile.ir.scoped_rewriter import ScopedRewriter

_WIDE = "int64"
_LIMIT = 2**31
_UNKNOWN = 2**63


@device_pass("NarrowSums")
def NarrowSums(func: tirx.PrimFunc, kind: str) -> tirx.PrimFunc:
    """Convert sums to 64 bits, where what is summed was converted: the indices of large tensors.

    TVM's simplifier moves conversions to the variables, so this comes when nothing simplifies any
    more. A part of an index is computed in 32 bits if the ranges of its variables show that it fits.
    """
    del kind
    if not contains(func.body, tirx.Cast, _is_conversion):
        return func
    return with_body(func, _Narrow().rewrite(func.body))


class _Narrow(ScopedRewriter):
    def __init__(self) -> None:
        super().__init__()
        self._known: dict[Any, tuple[int, int]] = {}

    def visit_attribute(self, node: tirx.AttrStmt) -> tirx.Stmt:
        if node.attr_key == "thread_extent":
            bounds = ir.Range(tirx.const(0, str(node.value.ty.dtype)), node.value)
            self.analyzer.bind(node.node.var, bounds, allow_override=True)
        return self.descend(node)

    def visit_if(self, branch: tirx.IfThenElse) -> tirx.Stmt:
        return self.descend(branch)  # what is known of a variable holds everywhere

    def visit_load(self, node: ir.TensorLoad) -> ir.Expr:
        load = self.descend(node)
        if not any(map(_is_wide, indices_of(load))):
            return load
        return tirx.BufferLoad(buffer_of(load), list(map(self._index, indices_of(load))), load.span)

    def visit_store(self, node: tirx.BufferStore) -> tirx.Stmt:
        store = self.descend(node)
        if not any(map(_is_wide, indices_of(store))):
            return store
        indices = list(map(self._index, indices_of(store)))
        return tirx.BufferStore(buffer_of(store), store.value, indices, span=store.span)

    def _index(self, index: ir.Expr) -> ir.Expr:
        if isinstance(index, tirx.Ramp):
            return tirx.Ramp(self._index(index.base), index.stride, index.lanes, index.span)
        return self._parts(index).wide if _is_wide(index) else index

    def _parts(self, value: Any) -> _Narrowed:
        if isinstance(value, tirx.IntImm):
            number = int(value)
            is_small = -_LIMIT <= number < _LIMIT
            return _Narrowed(
                tirx.const(number, "int32") if is_small else None, value, number, number
            )
        if _is_conversion(value):
            return _Narrowed(value.value, value, *self._bounds(value.value))
        combine = _BOUNDS.get(type(value))
        if combine is None:
            return _Narrowed(None, value, -_UNKNOWN, _UNKNOWN)
        a, b = self._parts(value.a), self._parts(value.b)
        low, high = combine(a, b)
        if a.narrow is None or b.narrow is None or low < -_LIMIT or high >= _LIMIT:
            return _Narrowed(None, type(value)(a.wide, b.wide), low, high)
        narrow = type(value)(a.narrow, b.narrow)
        return _Narrowed(narrow, tirx.Cast(_WIDE, narrow), low, high)

    def _bounds(self, value: ir.Expr) -> tuple[int, int]:
        if value not in self._known:
            bound = self.analyzer.const_int_bound(value)
            self._known[value] = int(bound.min_value), int(bound.max_value)
        return self._known[value]


@dataclass
class _Narrowed:
    """A value in 32 bits, or None if it may not fit; the same in 64; and its bounds."""

    narrow: Any
    wide: Any
    low: int
    high: int


def _of_product(a: _Narrowed, b: _Narrowed) -> tuple[int, int]:
    corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(corners), max(corners)


def _of_common_bits(a: _Narrowed, b: _Narrowed) -> tuple[int, int]:
    positive = [each.high for each in (a, b) if each.low >= 0]
    return (0, min(positive)) if positive else (-_UNKNOWN, _UNKNOWN)


def _of_shifted(a: _Narrowed, b: _Narrowed) -> tuple[int, int]:
    if b.low != b.high or b.low < 0:
        return -_UNKNOWN, _UNKNOWN
    return a.low >> b.low, a.high >> b.low


_BOUNDS: dict[type, Callable[[_Narrowed, _Narrowed], tuple[int, int]]] = {
    tirx.Add: lambda a, b: (a.low + b.low, a.high + b.high),
    tirx.Sub: lambda a, b: (a.low - b.high, a.high - b.low),
    tirx.Mul: _of_product,
    ir.prim.BitwiseAnd: _of_common_bits,
    ir.prim.RShift: _of_shifted,
}


def _is_wide(index: ir.Expr) -> bool:
    return str(index.ty.dtype).startswith(_WIDE)


def _is_conversion(value: ir.Expr) -> bool:
    """Tell whether a value is one of 32 bits, in 64."""
    if not isinstance(value, tirx.Cast) or str(value.ty.dtype) != _WIDE:
        return False
    return str(value.value.ty.dtype) == "int32"
