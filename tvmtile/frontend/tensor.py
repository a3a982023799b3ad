"""Tensors of a kernel's signature: `T.Tensor`, `T.StridedTensor`, dynamic dimensions, outputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile.errors import InvalidOperand, NestingError
from tvmtile.frontend.dtypes import DType, DTypeLike, Shape, as_dtype
from tvmtile.frontend.tile import Tile

__all__ = [
    "Buffer",
    "FragmentBuffer",
    "LocalBuffer",
    "OutputTensor",
    "SharedBuffer",
    "StridedTensor",
    "Tensor",
    "TensorSpec",
    "const",
    "dynamic",
    "empty",
    "symbolic",
]


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
    """What `T.empty` returns, until the assignment gives it a name."""

    shape: tuple[Any, ...]
    dtype: DType


class _TensorAnnotation:
    """`T.Tensor(shape, dtype)`, `T.Tensor[shape, dtype]` and `T.Tensor[M, N]`."""

    def __init__(self, scope: str) -> None:
        self._scope = scope

    def __call__(
        self,
        shape: Shape,
        dtype: DTypeLike = "float32",
        data: Any = None,
        strides: Any = None,
        scope: str | None = None,
        **buffer_options: object,
    ) -> Any:
        """Describe a tensor.

        Parameters
        ----------
        shape : int, Expr or sequence of them
            Extents. `T.dynamic` variables are bound by the arguments of a call.
        dtype : dtype
            Element dtype.
        data : Expr, optional
            A pointer: then the result is a buffer that views its memory, inside a kernel.
        strides : sequence, optional
            Strides in elements; contiguous where absent.
        scope : str, optional
            Storage scope.
        """
        extents = _as_shape(shape)
        scope = scope or self._scope
        if data is not None:
            return T.decl_buffer(
                extents, str(as_dtype(dtype)), data=data, strides=strides, scope=scope,
                **buffer_options,
            )  # fmt: skip
        spec_strides = tuple(strides) if strides is not None else None
        return TensorSpec(extents, as_dtype(dtype), spec_strides, scope)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, tuple):
            return self((key,))
        if isinstance(key[0], tuple | list) or _is_dtype_like(key[-1]):
            return self(*key)
        return self(key)

    def from_ptr(
        self, pointer: Any, shape: Shape, dtype: DTypeLike = "float32", strides: Any = None
    ) -> Tile:
        """A buffer over the memory of a pointer parameter (`T.handle` or `T.ptr`)."""
        return T.match_buffer(pointer, _as_shape(shape), str(as_dtype(dtype)), strides=strides)


class _StridedTensorAnnotation(_TensorAnnotation):
    """`T.StridedTensor(shape, strides, dtype)`."""

    def __call__(  # type: ignore[override]
        self, shape: Shape, strides: Any, dtype: DTypeLike = "float32", **options: Any
    ) -> Any:
        """Describe a tensor with strides of its own, in elements.

        Raises
        ------
        InvalidOperand
            If there are not as many strides as extents.
        """
        steps = _as_tuple(strides)
        if len(_as_tuple(shape)) != len(steps):
            raise InvalidOperand(
                f"StridedTensor: {len(steps)} strides for {len(_as_tuple(shape))} extents",
                help="give one stride, in elements, for every extent",
            )
        return super().__call__(shape, dtype, strides=steps, **options)


def _as_shape(shape: Shape) -> tuple[Any, ...]:
    extents = _as_tuple(shape)
    for extent in extents:
        _check_extent(extent)
    return extents


def _as_tuple(values: Any) -> tuple[Any, ...]:
    if isinstance(values, Sequence | ir.Array) and not isinstance(values, str):
        return tuple(values)
    return (values,)


def _check_extent(extent: object) -> None:
    if hasattr(extent, "shape") and hasattr(extent, "dtype"):
        raise InvalidOperand(
            "an extent of a tensor is an integer; it got a tensor",
            help="a function that returns a T.prim_func takes its numbers, `make(M, N)`; the kernel "
            "that it returns takes tensors, `make(M, N)(x)`",
        )
    if not isinstance(extent, int | Integral | ir.Expr):
        raise InvalidOperand(
            f"an extent of a tensor is an integer; it got the {type(extent).__name__} {extent!r}",
            help="use an int, T.dynamic(...) for one that a call gives, or T.const(...)",
        )
    if isinstance(extent, int | Integral) and extent < 0:
        raise InvalidOperand(f"the extent {extent} of a tensor is negative")


def _is_dtype_like(value: Any) -> bool:
    return isinstance(value, str) or type(value).__module__ in ("torch", "numpy")


Tensor = _TensorAnnotation("global")
Buffer = Tensor
StridedTensor = _StridedTensorAnnotation("global")
SharedBuffer = _TensorAnnotation("shared.dyn")
FragmentBuffer = _TensorAnnotation("local.fragment")
LocalBuffer = _TensorAnnotation("local")


def dynamic(name: str, dtype: DTypeLike = "int32") -> Any:
    """Name extents that are known only when the kernel is called.

    Parameters
    ----------
    name : str
        One name, or several separated by commas or spaces.
    dtype : dtype
        Integer dtype of the extents.

    Returns
    -------
    Var or tuple of Var
        One variable a name.

    Examples
    --------
    >>> M, N = dynamic("M, N")
    """
    parts = [part for part in re.split(r"[,\s]+", name.strip()) if part]
    variables = tuple(tirx.Var(part, str(as_dtype(dtype))) for part in parts)
    return variables[0] if len(variables) == 1 else variables


symbolic = dynamic


def const(names: str, dtype: DTypeLike = "int32") -> Any:
    """Name extents of an eager kernel's arguments; each value is a constant of the compiled kernel.

    Parameters
    ----------
    names : str
        One name, or several separated by commas or spaces.
    dtype : dtype
        Integer dtype of the extents.

    Raises
    ------
    NestingError
        Outside a kernel in the eager style.
    """
    from tvmtile.frontend.eager import current_eager

    eager = current_eager()
    if eager is None:
        raise NestingError(
            "T.const stands outside a kernel in the eager style",
            help="use it in a function under @tvmtile.jit, or T.dynamic in a T.prim_func",
        )
    parts = [name for name in re.split(r"[,\s]+", names.strip()) if name]
    values = tuple(eager.constant(name, as_dtype(dtype)) for name in parts)
    return values[0] if len(values) == 1 else values


def empty(*shape: Any, dtype: DTypeLike = "float32") -> Tile:
    """Declare a tensor that the kernel allocates and returns.

    Parameters
    ----------
    *shape : int or Expr, or one sequence of them, or a sequence and a dtype
        `T.empty((M, N), T.float16)`, `T.empty(M, N, dtype=T.float16)`.
    dtype : dtype
        Element dtype.
    """
    extents: Sequence[Any] = shape
    if len(shape) == 2 and isinstance(shape[0], tuple | list):
        extents, dtype = shape
    elif len(shape) == 1:
        extents = _as_shape(shape[0])
    output: Any = OutputTensor(tuple(extents), as_dtype(dtype))
    return output  # a tile once it has a name
