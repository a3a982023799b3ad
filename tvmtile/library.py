"""Kernels that were exported as libraries, called where nothing but TVM's runtime is.

`tvmtile.load` needs neither TVM's compiler nor tvmtile's: this module imports none of them. What a call
needs to know of a kernel beside its code stands in the library itself (see `tvmtile.jit.export`).
"""

from __future__ import annotations

import json
import operator
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from tvmtile.errors import ArgumentError, InvalidValue

__all__ = [
    "OPERATIONS",
    "SIGNATURE",
    "SIGNATURE_LENGTH",
    "ExportedKernel",
    "Program",
    "Strides",
    "allocator",
    "compute",
    "load",
]

SIGNATURE, SIGNATURE_LENGTH = "tvmtile_signature", "tvmtile_signature_length"
"""Functions of a library that write its signature's bytes into a tensor, and how many there are."""

Strides: TypeAlias = tuple[int, ...] | None
_Allocate: TypeAlias = Callable[[tuple[int, ...], str, Strides], Any]

Program: TypeAlias = int | list[Any]
"""A program of an extent: a number, `[argument, axis]`, with "stride" for that of the axis, or
`[operation, *operands]`.
"""

OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "FloorMod": operator.mod,
    "Div": lambda a, b: a // b if a * b >= 0 else -(-a // b),
    "Mod": lambda a, b: a % b if a * b >= 0 else -(-a % b),
    "Max": max,
    "Min": min,
    "EQ": operator.eq,
    "NE": operator.ne,
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "And": lambda a, b: a and b,
    "Or": lambda a, b: a or b,
    "Not": operator.not_,
    "Select": lambda condition, a, b: a if condition else b,
    "prim.if_then_else": lambda condition, a, b: a if condition else b,
    "LShift": operator.lshift,
    "RShift": operator.rshift,
    "BitwiseAnd": operator.and_,
    "BitwiseOr": operator.or_,
    "BitwiseXor": operator.xor,
}
"""The operations of programs."""


def compute(
    program: Program,
    args: Sequence[Any],
    operations: Mapping[str, Callable[..., Any]] = OPERATIONS,
) -> Any:
    """The extent that a program computes from the arguments of a call."""
    if isinstance(program, int):
        return program
    first = program[0]
    if isinstance(first, str):
        return operations[first](*(compute(part, args, operations) for part in program[1:]))
    argument, axis = args[first], program[1]
    if axis is None:
        return argument
    return (strides_of(argument) if len(program) > 2 else argument.shape)[axis]


def load(path: str | os.PathLike[str]) -> ExportedKernel:
    """Load a kernel that `Kernel.export_library` wrote.

    It takes TVM's runtime alone: no compiler, and nothing of tvmtile that knows of one.

    Parameters
    ----------
    path : str or path
        The library.

    Returns
    -------
    ExportedKernel
        Callable as the kernel that was exported.

    Raises
    ------
    InvalidValue
        If there is no such file, or no kernel was exported to it.
    """
    import tvm

    name = os.fspath(path)
    if not os.path.isfile(name):  # noqa: PTH113 - a string for TVM
        raise InvalidValue(
            f"there is no file {name!r}", help="kernel.export_library(path) writes one"
        )
    module = tvm.runtime.load_module(name)
    if not module.implements_function(SIGNATURE):
        raise InvalidValue(
            f"{name!r} holds no kernel that kernel.export_library wrote",
            help="tvm.runtime.load_module loads any library of TVM's",
        )
    return ExportedKernel(module, json.loads(_signature(module)))


def _signature(module: Any) -> bytes:
    import numpy as np
    import tvm

    length = tvm.runtime.tensor(np.zeros(1, "int64"))
    module[SIGNATURE_LENGTH](length)
    text = tvm.runtime.tensor(np.zeros(int(length.numpy()[0]), "int64"))
    module[SIGNATURE](text)
    return text.numpy().tobytes().rstrip(b"\0")


class ExportedKernel:
    """A kernel of a library.

    Attributes
    ----------
    name : str
        The program's name.
    module : tvm.runtime.Module
        The library.
    params : list of str
        Its parameters with their dtypes and extents.
    device : str
        Where its tensors are: "cpu", "cuda" or "metal".
    """

    def __init__(self, module: Any, signature: Mapping[str, Any]) -> None:
        self.module = module
        self.name: str = signature["name"]
        self.params: list[str] = signature["params"]
        self.device: str = signature["device"]
        self._results = signature["results"]
        self._call = module[self.name]

    def __call__(self, *args: Any) -> Any:
        """Run the kernel, as `Kernel.__call__` does."""
        if self._results and len(args) == len(self.params) - len(self._results):
            args = self._with_results(args)
        if len(args) != len(self.params):
            raise ArgumentError(
                f"{self.name} takes {len(self.params) - len(self._results)} arguments, not {len(args)}",
                help=f"its parameters are {', '.join(self.params)}",
            )
        self._call(*args)
        results = [args[result["index"]] for result in self._results]
        return results if len(results) > 1 else next(iter(results), None)

    def _with_results(self, args: Sequence[Any]) -> tuple[Any, ...]:
        allocate = allocator(args, self.device)
        complete = list(args)
        for result in self._results:
            shape = tuple(compute(extent, args) for extent in result["shape"])
            complete.insert(result["index"], allocate(shape, result["dtype"], None))
        return tuple(complete)

    def __repr__(self) -> str:
        return f"<ExportedKernel {self.name}({', '.join(self.params)}) for {self.device}>"


def strides_of(arg: Any) -> list[int]:
    """Strides in elements; nothing where the tensor has none to tell."""
    stride = getattr(arg, "stride", None)
    if callable(stride):
        return list(stride())
    strides = list(getattr(arg, "strides", None) or ())
    if type(arg).__module__ == "numpy":
        return [step // arg.itemsize for step in strides]
    return strides


def allocator(args: Sequence[Any], device: str) -> _Allocate:
    """A maker of results, of a shape, a dtype and strides, None where these are not known yet.

    A result is like the first tensor among the arguments, or on a device.
    """
    for first in args:
        if hasattr(first, "shape"):
            break
    else:
        first = None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(first, torch.Tensor):
        # With strides it takes half the time.
        return lambda shape, dtype, strides: (
            first.new_empty(shape, dtype=getattr(torch, dtype))
            if strides is None
            else first.new_empty_strided(shape, strides, dtype=getattr(torch, dtype))
        )
    if torch is not None and first is None:
        return lambda shape, dtype, _: torch.empty(
            shape, dtype=getattr(torch, dtype), device=device
        )
    if first is not None and type(first).__module__.partition(".")[0] in ("tvm", "tvm_ffi"):
        import tvm

        return lambda shape, dtype, _: tvm.runtime.empty(shape, dtype, first.device)
    import numpy as np

    return lambda shape, dtype, _: np.empty(shape, dtype)
