"""Comparisons of floats as a user wrote them, in the source that TVM's generators for GPUs print."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvmtile._tvm import mapped
from tvmtile.codegen.device import device_pass
from tvmtile.ir.operands import constant

__all__ = ["ShowComparisons"]


@device_pass("ShowComparisons")
def ShowComparisons(func: tirx.PrimFunc, kind: str) -> tirx.PrimFunc:
    """Undo `KeepComparisons`, when nothing simplifies any more."""
    del kind
    tests = (tirx.EQ, tirx.NE, tirx.LT)
    return func.with_body(mapped(func.body, (tests, _shown)))


def _shown(test: Any) -> Any:
    """The comparison whose conversion to an integer is tested; TVM makes `0 < x` of `x != 0`."""
    zero, converted = (test.a, test.b) if isinstance(test, tirx.LT) else (test.b, test.a)
    if not isinstance(converted, tirx.Cast) or constant(zero) != 0:
        return test
    comparison = converted.value
    if not isinstance(comparison, tirx.LT | tirx.LE | tirx.GT | tirx.GE | tirx.EQ | tirx.NE):
        return test
    return tirx.Not(comparison) if isinstance(test, tirx.EQ) else comparison
