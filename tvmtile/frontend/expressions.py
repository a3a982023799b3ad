"""A kernel's values where Python's own operators meet them: in helpers that nothing rewrites.

Helper functions ask for `x.dtype` (`assert x.dtype == T.uint8`), which TVM 0.27 gives to buffers
only, as a property of `Var`; and they compute `x & 0x7FFFFFFFFFFFFFFF`, whose number TVM takes for
int32 and cuts off, `(x > 0) + (y > 0)`, which is a bool to TVM, and `x * 0.0`, which is 0 to it.
While a kernel is traced, and only then, expressions have a dtype, and such operators lose nothing
(`operands` of `values`). Only classes can say that of TVM's nodes; what is put into them asks who
calls, so that threads that trace nothing get TVM's answers.

TVM takes the truth of `a == b`, and a key of a dictionary, for the question whether two nodes are one.
A user's line means the values, so that there the answer is an error, wherever Python asks it:
`x in table`, `[a] == [b]`, `table[x]`. TVM's own lines keep TVM's answer, as do keys of ours.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Any

from tvm import ir, tirx
from tvm.tirx.expr import ExprOp

from tvmtile._tvm import EqualOp, ExprOperand, ExprWithOp, NotEqualOp, is_buffer_var
from tvmtile.errors import SyntaxNotSupported
from tvmtile.frontend.dtypes import DType
from tvmtile.frontend.large import Sizes
from tvmtile.frontend.values import ARITHMETIC, BITWISE, FOLDED, lane_dtype, operands
from tvmtile.locks import Lock

_LOCK = Lock()
# Assigned to: TVM's classes, whose attributes the type checker knows.
_EXPR: Any = ir.Expr
_VAR: Any = ir.Var
_OF_BUFFER = vars(ir.Var)["dtype"]
_traces = 0


class _Thread(threading.local):
    traces = 0
    sizes: Sizes


_THREAD = _Thread()


@contextmanager
def expressions_of_kernels(sizes: Sizes) -> Iterator[None]:
    """Give `tvm.ir.Expr` what the module says in this context, for the thread that is in it."""
    _enter_or_leave(1)
    _THREAD.traces += 1
    outer, _THREAD.sizes = getattr(_THREAD, "sizes", sizes), sizes
    try:
        yield
    finally:
        _THREAD.sizes = outer
        _THREAD.traces -= 1
        _enter_or_leave(-1)


def _enter_or_leave(step: int) -> None:
    global _traces
    with _LOCK:
        was_traced, _traces = _traces > 0, _traces + step
        if _traces > 0 and not was_traced:
            _EXPR.dtype = property(_of_expression)
            _VAR.dtype = property(_of_variable)
            for kind, name, _, method in _METHODS:
                setattr(kind, name, method)
        elif _traces == 0:
            del _EXPR.dtype
            _VAR.dtype = _OF_BUFFER
            for kind, name, tvms, _ in _METHODS:
                setattr(kind, name, tvms)


def _of_expression(value: Any) -> DType:
    if not _THREAD.traces:
        raise AttributeError(f"{type(value).__name__!r} object has no attribute 'dtype'")
    if not ir.is_prim_expr(value):
        raise AttributeError(f"a {type(value).__name__} that is no value has no dtype")
    return DType(str(value.ty.dtype))


def _of_variable(var: Any) -> Any:
    is_value = _THREAD.traces and ir.is_prim_expr(var)
    return _of_expression(var) if is_value else _OF_BUFFER.fget(var)


def _method(op: str, tvms: Callable[[Any, Any], Any], is_reflected: bool) -> Any:
    def method(self: Any, other: Any) -> Any:
        if _THREAD.traces and is_reflected:
            other, self = operands(op, other, self)
        elif _THREAD.traces:
            self, other = operands(op, self, other)
        result = tvms(self, other)
        if _THREAD.traces:
            _THREAD.sizes.note(result)
        return result

    return method


def _negation(tvms: Callable[[Any], Any]) -> Any:
    def method(self: Any) -> Any:
        if not _THREAD.traces:
            return tvms(self)
        is_unsigned = (lane_dtype(self) or "").startswith("uint")  # TVM multiplies by -1
        return 0 - self if is_unsigned else tvms(operands("sub", self, False)[0])

    return method


_TVM = {"tvm", "tvm_ffi"}
_FOR_ANOTHER = {"tvmtile.frontend.operations"}
"""Modules of ours that do what a line of the user's says."""


def _is_asked_by_user(libraries: Set[str]) -> bool:
    """Tell whether the innermost code that is no library of Python's is none of some others'."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__"))
        package = module.partition(".")[0]
        if module not in _FOR_ANOTHER and package not in sys.stdlib_module_names:
            return package not in libraries
        frame = frame.f_back
    return True


def _truth(tvms: Callable[[Any], bool]) -> Any:
    """Of `a == b` and `a != b`."""

    def method(self: Any) -> bool:
        # What our functions ask is an argument of the user's: `clear=k == 0`.
        if not _THREAD.traces or not _is_asked_by_user(_TVM):
            return tvms(self)
        if self.a.same_as(self.b) and "int" in str(self.a.ty.dtype):
            return tvms(self)
        value = self.asobject()
        return bool(value.value if isinstance(value, tirx.IntImm) else value)

    return method


def _hash(tvms: Callable[[Any], int]) -> Any:
    def method(self: Any) -> int:
        is_value = _THREAD.traces and ir.is_prim_expr(self) and not is_buffer_var(self)
        if is_value and _is_asked_by_user(_TVM | {"tvmtile"}):
            raise SyntaxNotSupported(
                "a value that only the running kernel has is a key of a dictionary, an element of a "
                "set or an argument of a function that caches",
                help="compare it with each key, `if x == key:`, or pass the table as a tensor",
            )
        return tvms(self)

    return method


def _methods(kind: type) -> Iterator[tuple[type, str, Any, Any]]:
    """A class, the name of a method, TVM's and ours."""
    for op in sorted(ARITHMETIC | BITWISE | FOLDED):
        for side in ("", "r"):
            name = f"__{side}{op.rstrip('_')}__"
            tvms = vars(kind)[name]
            yield kind, name, tvms, _method(op, tvms, side == "r")
    tvms = vars(kind)["__neg__"]
    yield kind, "__neg__", tvms, _negation(tvms)


# Of expressions, and of `a == b` and `a != b`, which TVM makes expressions where they are used.
_METHODS = [method for kind in (ExprOperand, ExprOp) for method in _methods(kind)]
_METHODS += [
    (kind, name, vars(kind)[name], make(vars(kind)[name]))
    for kind, name, make in (
        (EqualOp, "__bool__", _truth),
        (NotEqualOp, "__bool__", _truth),
        (ExprWithOp, "__hash__", _hash),
    )
]
