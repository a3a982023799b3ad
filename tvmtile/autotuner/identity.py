"""What Python values are, as text that another process writes too."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any

from tvm import ir


class Unknown(Exception):
    """A value without a text that says what it is."""


def identity(value: object) -> Any:
    """A value as lists and texts, which JSON holds: another value has others.

    A tensor is its dtype, shape, strides and device. A function is its code, with what it has
    bound; what it finds in its module is its name.

    Raises
    ------
    Unknown
        If there is an object in it of which this can't tell.
    """
    if isinstance(value, ir.Var):
        return ["variable", value.name, str(value.ty)]
    if value is None or isinstance(value, bool | int | float | str):
        return [type(value).__name__, str(value)]
    if isinstance(value, Enum):
        return [type(value).__name__, value.name]
    if isinstance(value, Mapping):
        return [[identity(name), identity(item)] for name, item in value.items()]
    if isinstance(value, list | tuple):
        return ["list", *map(identity, value)]
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        layout = getattr(value, "stride", None) or getattr(value, "strides", None)
        steps = layout() if callable(layout) else layout
        return ["tensor", *map(str, (value.dtype, tuple(value.shape), steps, _device(value)))]
    if isinstance(value, functools.partial):
        return ["partial", *map(identity, (value.func, value.args, value.keywords))]
    return _of_function(value)


def _device(value: object) -> str:
    return str(getattr(value, "device", "cpu")).partition(":")[0]


def _of_function(value: Any) -> Any:
    code = getattr(value, "__code__", None)
    if code is None:
        name = getattr(value, "__qualname__", None)
        owner = getattr(value, "__self__", None)
        if name is None or not (owner is None or isinstance(owner, types.ModuleType)):
            raise Unknown(type(value).__name__)
        return ["named", str(value.__module__), name]
    if isinstance(value, types.MethodType):
        return ["method", _of_function(value.__func__), identity(value.__self__)]
    bound = [cell.cell_contents for cell in value.__closure__ or ()]
    return ["function", _of_code(code), identity(bound), identity(value.__defaults__)]


def _of_code(code: types.CodeType) -> Any:
    constants = list(map(_of_constant, code.co_consts))
    return [code.co_name, code.co_code.hex(), list(code.co_names), constants]


def _of_constant(value: object) -> Any:
    if isinstance(value, types.CodeType):
        return _of_code(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)
