"""The values of a kernel as its code sees them: TVM's nodes, under classes of ours.

Python's own operators meet them in helpers that nothing rewrites. Helper functions ask for `x.dtype`
(`assert x.dtype == T.uint8`), which TVM 0.27 gives to buffers only; and they compute
`x & 0x7FFFFFFFFFFFFFFF`, whose number TVM takes for int32 and cuts off, `(x > 0) + (y > 0)`, which is a
bool to TVM, and `x * 0.0`, which is 0 to it. A view is the same node, of a class that derives from
TVM's: it has a dtype, and its operators lose nothing (`operands` of `values`) and make views. Views are
what names, loops, elements and the functions of the language give the code of a kernel (`traced`).
TVM's classes stay as they are.

TVM takes the truth of `a == b`, and a key of a dictionary, for the question whether two nodes are one.
A user's line means the values, so that there the answer is an error, wherever Python asks it:
`x in table`, `[a] == [b]`, `table[x]`. TVM's own lines keep TVM's answer, as do keys of ours.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Any, TypeGuard

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx.expr import ExprOp

from tvmtile._tvm import (
    VIEWS,
    EqualOp,
    ExprOperand,
    ExprWithOp,
    NotEqualOp,
    add_view,
    is_buffer_var,
    traced,
)
from tvmtile.errors import SyntaxNotSupported
from tvmtile.frontend.dtypes import DType
from tvmtile.frontend.large import Sizes
from tvmtile.frontend.proxy import is_scalar_variable
from tvmtile.frontend.values import ARITHMETIC, BITWISE, FOLDED, lane_dtype, operands


class _Thread(threading.local):
    sizes: Sizes | None = None


_THREAD = _Thread()


@contextmanager
def expressions_of_kernels(sizes: Sizes) -> Iterator[None]:
    """Trace a kernel in this context: note the sizes of what operators make, and refuse keys."""
    outer, _THREAD.sizes = _THREAD.sizes, sizes
    try:
        yield
    finally:
        _THREAD.sizes = outer


def seen_by_kernels(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the language, whose values are views."""

    @functools.wraps(function)
    def function_of_language(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if _THREAD.sizes is not None:
            _THREAD.sizes.note(result)
        return type(result)(map(traced, result)) if type(result) in _SEVERAL else traced(result)

    return function_of_language


_SEVERAL = (tuple, list)
OF_LANGUAGE = seen_by_kernels(min).__code__
"""Of the functions around those of the language: what they raise is raised by the line that calls."""


_shape: Any = vars(ir.Var)["shape"].fget
_dtype_of_buffer: Any = vars(ir.Var)["dtype"].fget


def _dtype(value: Any) -> Any:
    """The dtype of the language for an expression; TVM's for a buffer."""
    if ir.is_prim_expr(value):
        return DType(str(value.ty.dtype))
    if is_buffer_var(value):
        return _dtype_of_buffer(value)
    raise AttributeError(f"a {type(value).__name__} that is no value has no dtype")


def _operator(op: str, tvms: Callable[[Any, Any], Any], is_reflected: bool) -> Any:
    def method(self: Any, other: Any) -> Any:
        if is_reflected:
            other, self = operands(op, other, self)
        else:
            self, other = operands(op, self, other)
        return _made(tvms(self, other))

    return method


def _made(result: Any) -> Any:
    """The result of an operator, as a view."""
    if _THREAD.sizes is not None:
        _THREAD.sizes.note(result)
    return traced(result)


def _comparison(tvms: Callable[[Any, Any], Any]) -> Any:
    return lambda self, other: traced(tvms(self, other))


def _inverted(tvms: Callable[[Any], Any]) -> Any:
    return lambda self: traced(tvms(self))


def _negation(tvms: Callable[[Any], Any]) -> Any:
    def method(self: Any) -> Any:
        is_unsigned = (lane_dtype(self) or "").startswith("uint")  # TVM multiplies by -1
        return 0 - self if is_unsigned else _made(tvms(operands("sub", self, False)[0]))

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


def _truth(self: Any) -> bool:
    """The truth value of `a == b` and `a != b`."""
    tvms = EqualOp if isinstance(self, EqualOp) else NotEqualOp
    # What our functions ask is an argument of the user's: `clear=k == 0`.
    if _THREAD.sizes is None or not _is_asked_by_user(_TVM):
        return tvms.__bool__(self)
    if self.a.same_as(self.b) and "int" in str(self.a.ty.dtype):
        return tvms.__bool__(self)
    value = self.asobject()
    return bool(value.value if isinstance(value, tirx.IntImm) else value)


def _hash(self: Any) -> int:
    is_value = _THREAD.sizes is not None and ir.is_prim_expr(self) and not is_buffer_var(self)
    if is_value and _is_asked_by_user(_TVM | {"tvmtile"}):
        raise SyntaxNotSupported(
            "a value that only the running kernel has is a key of a dictionary, an element of a "
            "set or an argument of a function that caches",
            help="compare it with each key, `if x == key:`, or pass the table as a tensor",
        )
    return ExprWithOp.__hash__(self)


def _operators(of: type) -> dict[str, Any]:
    """The operators of a view of a class of TVM's that has its own."""
    tvms = vars(of)
    methods = {
        name: _operator(op, tvms[name], bool(side))
        for op in sorted(ARITHMETIC | BITWISE | FOLDED)
        for side in ("", "r")
        for name in [f"__{side}{op.rstrip('_')}__"]
    }
    methods |= {name: _comparison(tvms[name]) for name in ("__lt__", "__le__", "__gt__", "__ge__")}
    methods |= {"__neg__": _negation(tvms["__neg__"]), "__invert__": _inverted(tvms["__invert__"])}
    return {"__slots__": (), **methods}


_equal = type("EqualOp", (EqualOp,), {**_operators(ExprOp), "__bool__": _truth})
_not_equal = type("NotEqualOp", (NotEqualOp,), {**_operators(ExprOp), "__bool__": _truth})


_OF_NODES = _operators(ExprOperand)


def _equality(tvms: Callable[[Any, Any], Any]) -> Any:
    def method(self: Any, other: Any) -> Any:
        result = tvms(self, other)
        of_values = _EQUALITIES.get(type(result))
        return result if of_values is None else of_values(result.a, result.b, result.span)

    return method


_EQUALITIES: dict[type, Any] = {EqualOp: _equal, NotEqualOp: _not_equal}


def _view_of(kind: Any) -> type:
    """The class of the views of nodes of a class, by the same name: Python's messages show it."""
    methods = {
        **_OF_NODES,
        "__eq__": _equality(kind.__eq__),
        "__ne__": _equality(kind.__ne__),
        "__hash__": _hash if kind.__hash__ is ExprWithOp.__hash__ else kind.__hash__,
        "__getitem__": lambda self, index: traced(kind.__getitem__(self, index)),
        "dtype": property(_dtype),
    }
    if kind is ir.Var:
        methods["shape"] = property(lambda self: traced(_shape(self)))
    return type(kind.__name__, (kind,), {**methods, "__module__": kind.__module__})


class _Extents(ir.Array):
    """The extents of a buffer."""

    def __getitem__(self, index: Any) -> Any:
        return traced(super().__getitem__(index))

    def __iter__(self) -> Iterator[Any]:
        return map(traced, super().__iter__())


_NODES = (
    ir.Var, ir.Call, ir.TensorLoad, tirx.IntImm, tirx.FloatImm, tirx.Cast, tirx.Select, tirx.Let,
    tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max,
    tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or, tirx.Not,
    tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor, tirx.BitwiseNot, tirx.LShift, tirx.RShift,
    tirx.Ramp, tirx.Broadcast, tirx.Shuffle,
)  # fmt: skip
for _kind in _NODES:
    add_view(_kind, _view_of(_kind))
add_view(tvm_ffi.Array, _Extents)
del _kind

_ELEMENT: Any = VIEWS[ir.TensorLoad]


class Reference(_ELEMENT):
    """An element of a buffer passed to a macro by reference: it is stored into as `x = value`."""

    def __getitem__(self, index: int) -> Any:
        if index != 0:
            raise IndexError("a reference is one element: use `x[0]` or `x = value`")
        return self


add_view(ir.TensorLoad, Reference)


def is_variable(value: object) -> TypeGuard[Any]:
    """Tell whether what is assigned to a name of this value is stored into it."""
    return isinstance(value, Reference) or is_scalar_variable(value)
