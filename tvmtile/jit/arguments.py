"""Arguments of a kernel: what TVM needs converted, and what is wrong with those that do not fit."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var, nodes_in
from tvmtile.errors import ArgumentError, InvalidValue, SourceLocation
from tvmtile.ir.barriers import is_grid_barrier
from tvmtile.ir.conditions import conjuncts, failure_of, is_assumption
from tvmtile.ir.extents import extent_range
from tvmtile.ir.kernels import MORE_BLOCKS_IN_X, TOO_MANY_BLOCKS, kernels_of
from tvmtile.ir.operands import constant, integer_range
from tvmtile.ir.packed import has_float4
from tvmtile.ir.rewriting import substitute, variables_of
from tvmtile.ir.spans import location_of
from tvmtile.jit.signature import KernelSignature, as_bytes, is_pointer, row_major
from tvmtile.library import strides_of


def ready(args: Sequence[object], params: Sequence[ir.Var]) -> tuple[Any, ...] | None:
    """The arguments as TVM takes them, or None where nothing needs converting.

    Only what TVM certainly refuses is converted, so that a call with it as it is ran nothing: an array
    of numpy without dimensions, or its bool, given for a number; and a tensor without elements whose
    strides are not those that TVM computes for it.
    """
    converted = tuple(map(_ready, args, params))
    if all(new is old for new, old in zip(converted, args, strict=True)):
        return None
    return converted


def _ready(arg: Any, param: ir.Var) -> Any:
    module = type(arg).__module__.partition(".")[0]
    if module == "numpy" and ir.is_prim_expr(param):
        is_refused = type(arg).__name__ in ("bool", "bool_", "ndarray") and arg.ndim == 0
        return arg.item() if is_refused else arg
    if module in ("torch", "numpy") and is_buffer_var(param) and 0 in arg.shape:
        strides = row_major(arg.shape)
        if declared := list(param.ty.strides):
            pairs = zip(declared, strides, strict=True)
            strides = [step if (n := constant(want)) is None else n for want, step in pairs]
        if strides_of(arg) != strides:
            return _with_strides(arg, strides)
    return arg


def _with_strides(tensor: Any, strides: list[int]) -> Any:
    """A tensor without elements, with strides that nobody looks at."""
    if hasattr(tensor, "as_strided"):
        return tensor.as_strided(tensor.shape, strides)
    memory = bytearray(tensor.itemsize)
    steps = [step * tensor.itemsize for step in strides]
    return type(tensor)(tensor.shape, tensor.dtype, memory, strides=steps)


def converting(function: Callable[..., object], params: Sequence[ir.Var]) -> Callable[..., object]:
    """`function`, given what TVM would not pass on as it is.

    That is the address of a tensor in place of one for a pointer, where TVM would pass that of its
    description, and a uint64 from 2^63 on as the negative number of its bits, since TVM knows int64.
    """
    conversions: dict[int, Callable[[Any], Any]] = {}
    for index, param in enumerate(params):
        if is_pointer(param):
            conversions[index] = _address
        elif ir.is_prim_expr(param) and str(param.ty.dtype) == "uint64":
            conversions[index] = partial(_signed, param.name)
    if not conversions:
        return function

    def call(*args: object) -> Any:
        converted = list(args)
        for index, convert in conversions.items():
            if index < len(args):
                converted[index] = convert(args[index])
        return function(*converted)

    return call


def _signed(name: str, number: Any) -> Any:
    """A negative number is refused here, since the host takes all of 64 bits."""
    if not isinstance(number, Integral):
        return number
    bits = int(number)
    if not 0 <= bits < 2**64:
        raise ValueError(f"{name} does not fit uint64")
    return bits - (2**64 if bits >= 2**63 else 0)


def _address(value: Any) -> Any:
    if isinstance(value, int):
        return ctypes.c_void_p(value)
    if hasattr(value, "data_ptr"):
        return ctypes.c_void_p(value.data_ptr())
    if type(value).__module__ == "numpy":
        return ctypes.c_void_p(value.ctypes.data)
    return value


def explain(
    signature: KernelSignature,
    args: Sequence[object],
    device: str = "cpu",
    failed: tuple[ir.Expr, SourceLocation | None] | None = None,
) -> ArgumentError | None:
    """Say which argument does not fit its parameter, or None if all do.

    `device` is where the tensors of a call must be; `failed` is what the kernel assumes of them at a
    line, and does not hold.
    """
    kernel, params, inputs = signature.name, signature.params, signature.inputs
    given = signature.given(len(args))
    if given is None:
        count = len(inputs)
        names = ", ".join(params[index].name for index in inputs)
        return ArgumentError(
            f"{kernel} takes {count} argument{'s' * (count != 1)} ({names}), not {len(args)}",
            help="results are allocated by the call"
            if signature.results
            else "give every parameter; out_idx makes parameters results",
        )
    args = as_bytes(args, [params[index] for index in given])
    stored = [signature.stored[index] for index in given]
    packed = (stored[at] for at, index in enumerate(given) if has_float4(params[index]))
    check = _Check(device, set(packed))
    for param, arg in zip(stored, args, strict=True):
        problem = check.tensor(param, arg) if is_buffer_var(param) else _scalar_problem(param, arg)
        if problem is not None:
            what, help_text = problem
            return ArgumentError(f"{kernel}: {param.name} {what}", help=help_text)
    if failed is None:
        return None
    condition, location = failed
    numbers = dict(zip((params[index] for index in given), args, strict=True)) | check.bound()
    values = [f"{var.name} is {numbers[var]}" for var in variables_of(condition) if var in numbers]
    return ArgumentError(
        f"{kernel} assumes that {condition}" + (f": {', '.join(values)}" if values else ""),
        help="call it with what it assumes, or compile a kernel without this T.assume for the others",
        location=location,
    )


def failed_assumption(
    func: tirx.PrimFunc, error: Exception
) -> tuple[ir.Expr, SourceLocation | None] | None:
    """The assumption of a program, and its place, that the host found not to hold."""
    said = str(error)
    assumptions = [each for each in nodes_in(func.body, tirx.Evaluate) if is_assumption(each)]
    for stmt in assumptions:
        for condition in conjuncts(stmt.value.args[0]):
            if failure_of(condition) in said:  # a cached kernel may name another line
                return condition, location_of(stmt.value)
    for stmt in assumptions:  # a comparison of floats is written in another way when it is lowered
        location = location_of(stmt.value)
        if location is not None and f"{location.file}:{location.line}" in said:
            return stmt.value.args[0], location
    return None


def launch_failure(func: tirx.PrimFunc, error: Exception) -> Exception:
    """Say what to do about a launch of more blocks than a GPU takes, or runs at once.

    Another error is returned as it is.
    """
    too_many = TOO_MANY_BLOCKS.search(str(error))
    if too_many is not None:
        return ArgumentError(
            too_many.group(), help=MORE_BLOCKS_IN_X, location=location_of_kernel(func)
        )
    if "COOPERATIVE_LAUNCH_TOO_LARGE" not in str(error):
        return error
    barriers = filter(is_grid_barrier, nodes_in(func.body, tirx.Evaluate))
    return InvalidValue(
        "T.sync_grid: all blocks of the grid wait for each other, and the GPU has no room to run "
        "all of them at once",
        help="launch fewer blocks, each of which does more of the work, or let a block use less shared "
        "memory and fewer threads",
        location=next((location_of(barrier.value) for barrier in barriers), None),
    )


def location_of_kernel(func: tirx.PrimFunc) -> SourceLocation | None:
    """The line of a program's first kernel."""
    kernel = next(kernels_of(func), None)
    return None if kernel is None else location_of(kernel)


_Problem = tuple[str, str | None]


def _scalar_problem(param: ir.Var, arg: object) -> _Problem | None:
    if is_pointer(param):
        return None
    dtype = str(param.ty.dtype)
    if not isinstance(arg, Real):
        return f"is {_a(dtype)}; it got {_a(type(arg).__name__)}", "pass a Python number"
    if "int" not in dtype:
        return None
    if not isinstance(arg, Integral):
        return f"is {_a(dtype)}; it got the float {arg!r}", "pass an int"
    lowest, highest = integer_range(dtype)
    if not lowest <= int(arg) <= highest:
        return f"is {_a(dtype)}; {arg} does not fit", f"it holds {lowest} to {highest}"
    return None


class _Check:
    """Compares tensors with parameters; remembers what dynamic extents and strides are bound to."""

    def __init__(self, device: str, packed: set[ir.Var]) -> None:
        self._device = device
        self._packed = packed
        self._bound: dict[ir.Var, tuple[int, str]] = {}

    def bound(self) -> dict[ir.Var, int]:
        """The extents and strides of the tensors that were compared."""
        return {variable: size for variable, (size, _) in self._bound.items()}

    def tensor(self, param: ir.Var, arg: object) -> _Problem | None:
        ty = param.ty
        wanted = f"a tensor [{', '.join(str(e) for e in ty.shape)}] of {ty.dtype}"
        if not hasattr(arg, "shape") or not hasattr(arg, "dtype"):
            return f"is {wanted}; it got {_a(type(arg).__name__)}", _as_tensor(arg)
        if "sparse" in str(getattr(arg, "layout", "")):
            return f"is {wanted}; it got a sparse tensor", "pass `x.to_dense()`"
        dtype = str(arg.dtype).removeprefix("torch.")
        if dtype != str(ty.dtype) and param in self._packed:
            pairs = "give pairs of elements, as torch.float4_e2m1fn_x2, or bytes"
            return f"is {wanted}, of which each holds two elements of 4 bits; it got {dtype}", pairs
        if dtype != str(ty.dtype):
            return f"is {wanted}; it got {dtype}", _conversion(arg, str(ty.dtype))
        shape = tuple(int(size) for size in arg.shape)
        if len(shape) != len(ty.shape):
            count = f"{len(shape)} dimension{'s' * (len(shape) != 1)}"
            return f"is {wanted}; it got {count}, {list(shape)}", "reshape it"
        for axis, (extent, size) in enumerate(zip(ty.shape, shape, strict=True)):
            problem = self._mismatch(extent, size, f"axis {axis}", param.name)
            if problem is not None:
                return f"is {wanted}; it got shape {list(shape)}: {problem}", None
        device = str(getattr(arg, "device", "cpu"))
        if not device.startswith(self._device):
            return _wrong_device(arg, device, self._device)
        if getattr(getattr(arg, "flags", None), "writeable", True) is False:
            return "is a read-only array", "pass `x.copy()`: DLPack can't pass read-only memory"
        return self._strides(param, arg, shape)

    def _mismatch(self, expected: Any, actual: int, what: str, name: str) -> str | None:
        """Compare an extent or a stride, which binds its variable where it is the first of its name."""
        unknown = variables_of(expected) if isinstance(expected, ir.Expr) else []
        lowest, highest = extent_range(str(expected.ty.dtype)) if unknown else (actual, actual)
        if not lowest <= actual <= highest:
            wider = f'T.dynamic("{unknown[0].name}", "int64") holds more'
            return (
                f"{what} is {expected}, {_a(str(expected.ty.dtype))} of at most {highest}; {wider}"
            )
        if isinstance(expected, ir.Var):
            first, where = self._bound.setdefault(expected, (actual, f"{what} of {name}"))
            if first == actual:
                return None
            return f"{what} is {expected.name}, which is {first} by {where}, not {actual}"
        known = constant(
            substitute(
                expected,
                {v: tirx.const(size, str(v.ty.dtype)) for v, (size, _) in self._bound.items()},
            )
        )
        if known is None or known == actual:
            return None
        symbolic = f" ({expected})" if constant(expected) is None else ""
        return f"{what} needs {known}{symbolic}, not {actual}"

    def _strides(self, param: ir.Var, arg: object, shape: tuple[int, ...]) -> _Problem | None:
        strides = strides_of(arg)
        if not strides:
            return None
        declared = list(param.ty.strides)
        if 0 in shape:
            return None  # numpy's strides of nothing are zeros
        expected = declared or row_major(shape)
        for axis, (size, have, want) in enumerate(zip(shape, strides, expected, strict=True)):
            if size <= 1:
                continue
            if not declared and have != want:
                return (
                    f"must be contiguous, with strides {expected}; it got strides {strides}",
                    _contiguous(arg) + ", or declare the parameter as T.StridedTensor",
                )
            problem = self._mismatch(want, have, f"the stride of axis {axis}", param.name)
            if problem is not None:
                return f"got strides {strides}: {problem}", "strides count elements, not bytes"
        return None


def _as_tensor(arg: object) -> str:
    return "pass `torch.tensor(x)`" if isinstance(arg, list | tuple) else "pass a tensor"


def _wrong_device(arg: object, actual: str, needed: str) -> _Problem:
    if actual == "meta":
        return "is a tensor without memory", (
            "@tvmtile.torch_op over the kernel, or kernel.as_torch_op(name), makes an operator that "
            "computes the shapes of its results"
        )
    if needed == "cpu":
        return f"must be on the CPU; it is on {actual}", "move it with `.cpu()`"
    if needed == "metal":
        return f"must be a TVM tensor on metal; it is on {actual}", (
            "pass `tvm.runtime.tensor(x, tvm.metal())`, or use execution_backend='torch'"
        )
    tensor = "x" if hasattr(arg, "data_ptr") else "torch.from_numpy(x)"
    return (
        f"must be a torch tensor on {needed}; it is on {actual}",
        f'pass `{tensor}.to("{needed}")`',
    )


def _conversion(arg: object, dtype: str) -> str:
    if type(arg).__module__ == "numpy":
        return f'convert it, e.g. `x.astype("{dtype}")`'
    return f"convert it, e.g. `x.to(torch.{dtype})`"


def _contiguous(arg: object) -> str:
    if type(arg).__module__ == "numpy":
        return "pass `numpy.ascontiguousarray(x)`"
    return "pass `x.contiguous()`"


def _a(name: str) -> str:
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
