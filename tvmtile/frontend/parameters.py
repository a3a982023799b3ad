"""The parameters of a function that is being traced, and the annotations that describe them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import traced
from tvmtile.errors import SyntaxNotSupported, UnsupportedDtype
from tvmtile.frontend.dtypes import DType, DTypeLike, as_dtype
from tvmtile.frontend.proxy import Unusable
from tvmtile.frontend.syntax import parameter_location


@dataclass(frozen=True, eq=False)
class TensorSpec:
    """The annotation of a tensor parameter."""

    shape: tuple[Any, ...]
    """Extents; a `T.dynamic` variable stands for an extent known at the call."""
    dtype: DType
    """Element dtype."""
    strides: tuple[Any, ...] | None = None
    """In elements; None for a contiguous, row-major tensor."""
    scope: str = "global"
    """Storage scope."""

    def __call__(self) -> ir.Var:
        """The buffer variable that the annotation describes."""
        return T.buffer(self.shape, str(self.dtype), strides=self.strides or None, scope=self.scope)


@dataclass(frozen=True, eq=False)
class OutputTensor:
    """The result of `T.empty`, until the assignment gives it a name."""

    shape: tuple[Any, ...]
    dtype: DType


class _Pointer:
    """`T.ptr`: the annotation of a pointer parameter, and the dtype of a table of addresses.

    `T.ptr(dtype, scope)` is TVM's typed pointer.
    """

    name = "int64"
    """How an address is stored in a tensor, as of `T.Tensor((n,), T.ptr)`."""

    def __call__(self, dtype: DTypeLike | None = None, storage_scope: str = "global") -> ir.Var:
        """A pointer variable; what it points to is unknown where `dtype` is absent."""
        if dtype is None:
            return tirx.Var("", "handle")
        return T.ptr(str(as_dtype(dtype)), storage_scope)


ptr = _Pointer()


_FLOATS = ("float16", "float32", "float64")
"""The dtypes of floats that TVM's `MakePackedAPI` reads from a call."""


class Parameters:
    """Declares parameters: those with an annotation in the signature, the others in the body.

    Attributes
    ----------
    declared : dict of str to Var
        Buffers, scalars and pointers by the names of their parameters.
    """

    def __init__(self, func: Callable[..., object]) -> None:
        self._func = func
        self._signature = inspect.signature(func).parameters
        self.declared: dict[str, ir.Var] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._signature

    def declare(self, name: str, annotation: object) -> Any:
        """Add the parameter to the program, once."""
        if name not in self.declared:
            self.declared[name] = T.arg(name, as_parameter(name, annotation))
        return traced(self.declared[name])

    def undeclared(self, name: str) -> Any:
        """The value of a parameter without an annotation until the body declares it, if it does."""
        default = self._signature[name].default
        return (
            Unusable(lambda: self._missing(name)) if default is inspect.Parameter.empty else default
        )

    def _missing(self, name: str) -> SyntaxNotSupported:
        if name == "self":
            return SyntaxNotSupported(
                f"{self._func.__name__} is traced where it is defined, when there is no self yet",
                help="define the kernel in a method that returns it, or decorate the method with "
                "@tvmtile.jit",
                location=parameter_location(self._func.__code__, name),
            )
        return SyntaxNotSupported(
            f"the parameter {name!r} of {self._func.__name__} has no annotation",
            help=f"write `{name}: T.Tensor((M, N), T.float16)` in the signature or as a statement, "
            "or a dtype for a scalar",
            location=parameter_location(self._func.__code__, name),
        )

    def require_all(self) -> None:
        """Raise where a parameter was declared nowhere."""
        for name, parameter in self._signature.items():
            if name not in self.declared and parameter.default is inspect.Parameter.empty:
                raise self._missing(name)

    def in_order(self, func: tirx.PrimFunc) -> tirx.PrimFunc:
        """The program with its parameters in the order of the signature, and its outputs after them."""
        inputs = [self.declared[name] for name in self._signature if name in self.declared]
        return _with_inputs_first(func, inputs)


def _with_inputs_first(func: tirx.PrimFunc, inputs: list[ir.Var]) -> tirx.PrimFunc:
    outputs = [p for p in func.params if not any(p.same_as(i) for i in inputs)]
    # T.match_buffer puts a buffer where its pointer stood: such parameters keep their places.
    if len(inputs) + len(outputs) != len(func.params):
        return func
    return tirx.PrimFunc([*inputs, *outputs], func.body, func.ret_type, func.attrs, func.span)


def is_run_time(annotation: object) -> bool:
    """Tell whether an annotation declares a parameter of the program, rather than a constant of it."""
    return (
        isinstance(annotation, TensorSpec | DType | ir.Var)
        or annotation is ptr
        or annotation is T.handle
    )


def as_parameter(name: str, annotation: object) -> ir.Var:
    """The variable that an annotation stands for: a buffer, a scalar or a pointer."""
    if isinstance(annotation, TensorSpec):
        return annotation()
    if isinstance(annotation, DType):
        if "float" in str(annotation) and str(annotation) not in _FLOATS:
            raise UnsupportedDtype(
                f"{name}: a number of {annotation} can't be passed to a kernel",
                help="pass a wider one and convert it with T.cast, or a tensor with one element",
            )
        return tirx.Var(name, str(annotation))
    if isinstance(annotation, ir.Var):
        return annotation
    if isinstance(annotation, type) and annotation in (int, float, bool):
        return tirx.Var(name, {int: "int32", float: "float32", bool: "bool"}[annotation])
    if callable(annotation):
        result = annotation()
        if isinstance(result, ir.Var):
            return result
    raise SyntaxNotSupported(
        f"the annotation of the parameter {name!r} is not a type of the language: {annotation!r}",
        help="use T.Tensor(shape, dtype), a dtype such as T.int32, or T.handle",
    )
