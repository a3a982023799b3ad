"""Accumulations: stores that combine with their element, and values linear in some elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import tvm_ffi
from tvm import ir, tirx

from tvmtile._tvm import buffer_of, indices_of
from tvmtile.ir.combiners import Combiner
from tvmtile.ir.rewriting import contains, mentions


def contribution(store: tirx.BufferStore, combiner: Combiner) -> ir.TensorLoad | None:
    """The value that a store combines with its element; None where it does something else."""
    element = tirx.BufferLoad(buffer_of(store), list(indices_of(store)))
    value = store.value
    operands = value.args if isinstance(value, ir.Call) else [getattr(value, k, None) for k in "ab"]
    for number, operand in enumerate(operands):
        if len(operands) != 2 or not tvm_ffi.structural_equal(operand, element):
            continue
        other = operands[1 - number]
        ways = (combiner.combine(other, element), combiner.combine(element, other))
        is_pure = not mentions(other, buffer_of(store))
        if is_pure and any(tvm_ffi.structural_equal(value, way) for way in ways):
            return other
    return None


_Degrees: TypeAlias = frozenset[int]

_CONSTANT, _LINEAR, _NEITHER = frozenset({0}), frozenset({1}), frozenset[int]()
_ZERO = _CONSTANT | _LINEAR


def is_linear(value: ir.Expr, is_element: Callable[[ir.TensorLoad], bool | None]) -> bool:
    """Tell whether a value is a sum of elements, each scaled by what no element is part of.

    So the sum of such values of several elements is the value of their sums. Floats are taken for real
    numbers. What rounds, compares or divides by an element is not linear.

    `is_element` tells whether a load is one of the elements, or none; None where that is not known.
    """
    return 1 in _degrees(value, is_element)


def _degrees(value: ir.Expr, is_element: Callable[[ir.TensorLoad], bool | None]) -> _Degrees:
    """The degrees of which a value is a homogeneous polynomial of the elements: zero is of any."""
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        return _ZERO if value.value == 0 else _CONSTANT
    if isinstance(value, ir.TensorLoad) and (known := is_element(value)) is not False:
        return _LINEAR if known else _NEITHER
    if isinstance(value, tirx.Add | tirx.Sub):
        return _degrees(value.a, is_element) & _degrees(value.b, is_element)
    if isinstance(value, tirx.Mul):
        a, b = _degrees(value.a, is_element), _degrees(value.b, is_element)
        return frozenset({x + y for x in a for y in b}) & _ZERO
    if isinstance(value, tirx.Div) and "float" in str(value.ty.dtype):
        is_scaled = _degrees(value.b, is_element) == _CONSTANT
        return _degrees(value.a, is_element) if is_scaled else _NEITHER
    depends = contains(value, ir.TensorLoad, lambda load: is_element(load) is not False)
    return _NEITHER if depends else _CONSTANT
