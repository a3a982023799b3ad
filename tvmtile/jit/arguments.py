"""Arguments of a kernel: what TVM needs converted, and what is wrong with those that do not fit."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, tirx
from tvm.runtime import from_dlpack

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import ArgumentError
from tvmtile.tileop.operands import constant

__all__ = ["explain", "ready", "with_addresses"]


def ready(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The arguments as TVM takes them, or None where nothing needs converting.

    A numpy array is passed through DLPack; a torch tensor that requires a gradient is detached. Both
    keep their memory. A torch tensor without elements gets the strides that TVM computes for it.
    """
    converted = tuple(_ready(arg) for arg in args)
    if all(new is old for new, old in zip(converted, args, strict=True)):
        return None
    return converted


def _ready(arg: Any) -> Any:
    module = type(arg).__module__.partition(".")[0]
    if module == "numpy":
        return from_dlpack(arg) if hasattr(arg, "__dlpack__") and arg.ndim else arg.item()
    if module != "torch" or not hasattr(arg, "numel"):
        return arg
    if arg.requires_grad:
        arg = arg.detach()
    if arg.numel() == 0:
        return arg.as_strided(arg.shape, _row_major(arg.shape))
    return arg


def _row_major(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return strides


def with_addresses(function: Callable[..., Any], params: Sequence[ir.Var]) -> Callable[..., Any]:
    """`function`, with the address of a tensor in place of one that is given for a pointer.

    TVM would pass the address of the tensor's description instead.

    Parameters
    ----------
    function : callable
        A compiled kernel.
    params : sequence of Var
        Its parameters.
    """
    pointers = [i for i, param in enumerate(params) if _is_pointer(param)]
    if not pointers:
        return function

    def call(*args: Any) -> Any:
        converted = list(args)
        for index in pointers:
            if index < len(args):
                converted[index] = _address(args[index])
        return function(*converted)

    return call


def _is_pointer(param: ir.Var) -> bool:
    return not is_buffer_var(param) and (
        not ir.is_prim_expr(param) or str(param.ty.dtype) == "handle"
    )


def _address(value: Any) -> Any:
    if isinstance(value, int):
        return ctypes.c_void_p(value)
    if hasattr(value, "data_ptr"):
        return ctypes.c_void_p(value.data_ptr())
    if type(value).__module__ == "numpy":
        return ctypes.c_void_p(value.ctypes.data)
    return value


def explain(
    kernel: str, params: Sequence[ir.Var], args: Sequence[Any], input_count: int
) -> ArgumentError | None:
    """Say which argument does not fit its parameter, or None if all do.

    Parameters
    ----------
    kernel : str
        The kernel's name.
    params : sequence of Var
        Its parameters.
    args : sequence
        What it was called with.
    input_count : int
        How many of the parameters are not results.
    """
    if len(args) not in (len(params), input_count):
        names = ", ".join(param.name for param in params[:input_count])
        return ArgumentError(
            f"{kernel} takes {input_count} arguments ({names}), not {len(args)}",
            help="results are allocated by the call"
            if input_count != len(params)
            else "give every parameter; out_idx makes parameters results",
        )
    bound: dict[str, tuple[int, str]] = {}
    for param, arg in zip(params, args, strict=False):
        problem = (
            _tensor_problem(param, arg, bound)
            if is_buffer_var(param)
            else _scalar_problem(param, arg)
        )
        if problem is not None:
            what, help_text = problem
            return ArgumentError(f"{kernel}: {param.name} {what}", help=help_text)
    return None


def _scalar_problem(param: ir.Var, arg: Any) -> tuple[str, str] | None:
    if _is_pointer(param):
        return None
    dtype = str(param.ty.dtype)
    if isinstance(arg, bool | int | float):
        if isinstance(arg, float) and "int" in dtype:
            return f"is a {dtype}; {arg!r} is a float", "pass an int"
        return None
    return f"is a {dtype}; it got {_a(arg)}", "pass a Python number"


def _tensor_problem(
    param: ir.Var, arg: Any, bound: dict[str, tuple[int, str]]
) -> tuple[str, str | None] | None:
    ty = param.ty
    wanted = f"a tensor [{', '.join(str(e) for e in ty.shape)}] of {ty.dtype}"
    if not hasattr(arg, "shape") or not hasattr(arg, "dtype"):
        return f"is {wanted}; it got {_a(arg)}", "pass a tensor"
    dtype = str(arg.dtype).removeprefix("torch.")
    if dtype != str(ty.dtype):
        return f"is {wanted}; it got {dtype}", f"convert it, e.g. `x.to(torch.{ty.dtype})`"
    shape = tuple(int(size) for size in arg.shape)
    if len(shape) != len(ty.shape):
        return f"is {wanted}; it got {len(shape)} dimensions, {list(shape)}", "reshape it"
    for axis, (extent, size) in enumerate(zip(ty.shape, shape, strict=True)):
        problem = _extent_problem(param.name, axis, extent, size, bound)
        if problem is not None:
            return f"is {wanted}; it got shape {list(shape)}: {problem}", None
    device = str(getattr(arg, "device", "cpu"))
    if not device.startswith("cpu"):
        return f"must be on the CPU; it is on {device}", "move it with `.cpu()`"
    return _stride_problem(param, arg, shape)


def _extent_problem(
    name: str, axis: int, extent: Any, size: int, bound: dict[str, tuple[int, str]]
) -> str | None:
    known = constant(extent) if isinstance(extent, tirx.IntImm | int) else None
    if known is not None:
        return None if known == size else f"axis {axis} needs {known}, not {size}"
    if isinstance(extent, ir.Var):
        first, where = bound.setdefault(extent.name, (size, f"axis {axis} of {name}"))
        if first != size:
            return f"axis {axis} is {extent.name}, which is {first} by {where}, not {size}"
    return None


def _stride_problem(param: ir.Var, arg: Any, shape: tuple[int, ...]) -> tuple[str, str] | None:
    stride = getattr(arg, "stride", None)
    if not callable(stride):
        itemsize = getattr(arg, "itemsize", 1)
        strides = [s // itemsize for s in getattr(arg, "strides", ()) or ()]
    else:
        strides = list(stride())
    if not strides or len(param.ty.strides) > 0:
        return None
    expected = _row_major(shape)
    for size, have, want in zip(shape, strides, expected, strict=True):
        if size > 1 and have != want:
            return (
                f"must be contiguous, with strides {expected}; it got strides {strides}",
                "pass `x.contiguous()`, or declare the parameter as T.StridedTensor",
            )
    return None


def _a(value: Any) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
