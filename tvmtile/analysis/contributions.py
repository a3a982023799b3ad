"""Stores that combine something with the element that they store to: `total[i] += x`."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from tvmtile._tvm import buffer_of, indices_of
from tvmtile.ir.combiners import Combiner
from tvmtile.ir.rewriting import mentions


def contribution(store: tirx.BufferStore, combiner: Combiner) -> ir.TensorLoad | None:
    """What a store combines with the element that it stores to; None where it does something else."""
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
