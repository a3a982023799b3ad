"""`x.dtype` of a kernel's values.

Helper functions ask for it (`assert x.dtype == T.uint8`). TVM 0.27 gives it to buffers only, as a
property of `Var`. While a kernel is traced, and only then, expressions have it too.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm import ir

from tvmtile.frontend.dtypes import DType

__all__ = ["dtype_of_expressions"]

_LOCK = threading.Lock()
# Assigned to: TVM's classes, whose attributes the type checker knows.
_EXPR: Any = ir.Expr
_VAR: Any = ir.Var
_OF_BUFFER = vars(ir.Var)["dtype"]
_traces = 0


@contextmanager
def dtype_of_expressions() -> Iterator[None]:
    """Give `tvm.ir.Expr` a property `dtype` in this context, in all threads that are in one."""
    _enter_or_leave(1)
    try:
        yield
    finally:
        _enter_or_leave(-1)


def _enter_or_leave(step: int) -> None:
    global _traces
    with _LOCK:
        was_traced, _traces = _traces > 0, _traces + step
        if _traces > 0 and not was_traced:
            _EXPR.dtype = property(_of_expression)
            _VAR.dtype = property(_of_variable)
        elif _traces == 0:
            del _EXPR.dtype
            _VAR.dtype = _OF_BUFFER


def _of_expression(value: Any) -> DType:
    if not ir.is_prim_expr(value):
        raise AttributeError(f"a {type(value).__name__} that is no value has no dtype")
    return DType(str(value.ty.dtype))


def _of_variable(var: Any) -> Any:
    return _of_expression(var) if ir.is_prim_expr(var) else _OF_BUFFER.fget(var)
