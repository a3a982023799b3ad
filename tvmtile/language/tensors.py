"""Tensors of a signature, and memory of a kernel."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of
from tvmtile.errors import (
    InvalidOperand,
    NestingError,
)
from tvmtile.frontend.dtypes import DType, DTypeLike, Shape, as_dtype
from tvmtile.frontend.emit import require_program
from tvmtile.frontend.kernel import OF_BLOCKS, Tile, allocate, checked_shape, kernel_of
from tvmtile.frontend.parameters import OutputTensor, TensorSpec
from tvmtile.frontend.tracer import current_tracer
from tvmtile.frontend.values import converted
from tvmtile.ir.scopes import FRAGMENT_SCOPE, SHARED_SCOPE
from tvmtile.ir.types import Value

__all__ = [
    "Buffer",
    "FragmentBuffer",
    "LocalBuffer",
    "SharedBuffer",
    "StridedTensor",
    "Tensor",
    "alloc_fragment",
    "alloc_global",
    "alloc_local",
    "alloc_shared",
    "alloc_var",
    "const",
    "dynamic",
    "empty",
    "let",
    "symbolic",
]


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
    return _for_each(name, lambda each: tirx.Var(each, str(as_dtype(dtype))))


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
    tracer = current_tracer()
    if tracer is None or tracer.constants is None:
        raise NestingError(
            "T.const stands outside a kernel in the eager style",
            help="use it in a function under @tvmtile.jit, or T.dynamic in a T.prim_func",
        )
    values, variables = tracer.constants, tracer.variables

    def constant(name: str) -> Any:
        if name in values:
            return values[name]
        # Where no tensor gave it a value, the description of a parameter says which one should have.
        return variables.setdefault(name, tirx.Var(name, str(as_dtype(dtype))))

    return _for_each(names, constant)


def _for_each(names: str, make: Callable[[str], Any]) -> Any:
    """The results for each name; for a single one, its own alone."""
    made = tuple(make(name) for name in re.split(r"[,\s]+", names.strip()) if name)
    return made[0] if len(made) == 1 else made


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


def alloc_shared(shape: Shape, dtype: DTypeLike, scope: str = SHARED_SCOPE) -> Tile:
    """Allocate a tile that the threads of a block share.

    Parameters
    ----------
    shape : sequence of int
        Extents.
    dtype : dtype
        Element dtype.
    scope : str
        `shared.dyn`, or `shared` for memory of a size fixed at compile time.
    """
    return allocate("T.alloc_shared", shape, dtype, scope)


def alloc_fragment(shape: Shape, dtype: DTypeLike, scope: str = FRAGMENT_SCOPE) -> Tile:
    """Allocate a tile in the registers of a block's threads, laid out by the compiler.

    Parameters
    ----------
    shape : sequence of int
        Extents of the whole tile.
    dtype : dtype
        Element dtype.
    scope : str
        `local.fragment`.
    """
    return allocate("T.alloc_fragment", shape, dtype, scope)


def alloc_local(shape: Shape, dtype: DTypeLike, scope: str = "local") -> Tile:
    """Allocate an array that every thread has for itself.

    Parameters
    ----------
    shape : sequence of int
        Extents.
    dtype : dtype
        Element dtype.
    scope : str
        `local`.
    """
    return allocate("T.alloc_local", shape, dtype, scope)


def alloc_global(shape: Shape, dtype: DTypeLike) -> Tile:
    """Allocate a scratch tensor in global memory, for one call of the kernel.

    Parameters
    ----------
    shape : sequence of int
        Extents.
    dtype : dtype
        Element dtype.
    """
    require_program("alloc_global")
    return T.alloc_buffer(
        checked_shape("T.alloc_global", shape), str(as_dtype(dtype)), scope="global"
    )


def alloc_var(
    dtype: DTypeLike, *args: object, init: Value | None = None, scope: str | None = None
) -> Any:
    """Allocate a scalar variable: assignments to its name store into it, also inside loops.

    Parameters
    ----------
    dtype : dtype
        Its dtype.
    *args
        The initial value may be given by position; a string is TileLang's scope and has no effect.
    init : number or Expr, optional
        Initial value, 0 where absent.
    scope : str, optional
        Accepted for TileLang's kernels.

    Examples
    --------
    ```
    total = T.alloc_var("float32", init=0)
    for i in T.serial(n):
        total += A[i]
    ```
    """
    del scope
    values = [arg for arg in args if not isinstance(arg, str)]
    if init is not None:
        values.append(init)
    if len(values) > 1:
        raise InvalidOperand("T.alloc_var: the initial value is given twice")
    kernel_of("T.alloc_var", OF_BLOCKS)
    name = as_dtype(dtype)
    variable = T.local_scalar(str(name))
    T.buffer_store(buffer_of(variable.scalar), converted(values[0] if values else 0, name), [0])
    return variable


class _Let(type(T.let)):  # type: ignore[misc]
    """`T.let`: TVM's annotation of a binding, and a binding of a variable made before."""

    def __call__(self, var: ir.Var, value: Any) -> None:
        """Bind a variable to a value, from here on.

        The variable has no value yet, as `T.int32()` makes it; the value is converted to its dtype.
        """
        from tvmtile.frontend.dtypes import cast

        T.Bind(cast(value, DType(str(var.ty.dtype))), var=var)


let = _Let()
