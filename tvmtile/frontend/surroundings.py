"""The plain values around a function that a kernel is made with, which may change between two calls."""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tvmtile.errors import is_internal
from tvmtile.frontend.entry import Macro

_PLAIN = (bool, int, float, str, type(None))
_ABSENT = object()


class Surroundings:
    """Numbers, strings and tuples of them: globals, names around the function, attributes of `self`.

    Those of the macros and functions that it calls by name are among them.
    """

    def __init__(self, func: Callable[..., object]) -> None:
        seen: set[types.CodeType] = set()
        self._readers = [read for read in _readers(func, seen) if _plain(read()) is not None]

    def values(self) -> tuple[str, ...]:
        """What they are now."""
        return tuple(_plain(read()) or "" for read in self._readers)


def _readers(func: Callable[..., object], seen: set[types.CodeType]) -> Iterator[Callable[[], Any]]:
    code = getattr(func, "__code__", None)
    if code is None or code in seen or is_internal(code.co_filename):
        return
    seen.add(code)
    instructions = [step for part in (code, *_nested(code)) for step in dis.get_instructions(part)]
    for name in _named(instructions, "LOAD_GLOBAL") & func.__globals__.keys():
        yield _item_of(func.__globals__, name)
        value = func.__globals__[name]
        yield from _readers(value._func if isinstance(value, Macro) else value, seen)
    for cell in func.__closure__ or ():
        yield _value_in(cell)
    if isinstance(func, types.MethodType):
        yield from _attributes_of(func.__self__, _named(instructions, "LOAD_ATTR"))


def _item_of(names: Mapping[str, object], name: str) -> Callable[[], Any]:
    return lambda: names.get(name, _ABSENT)


def _attributes_of(instance: object, names: set[str]) -> Iterator[Callable[[], Any]]:
    for name in names:
        if not hasattr(inspect.getattr_static(instance.__class__, name, None), "__get__"):
            yield functools.partial(getattr, instance, name, _ABSENT)


def _named(instructions: list[dis.Instruction], operation: str) -> set[str]:
    return {step.argval for step in instructions if step.opname == operation}


def _value_in(cell: types.CellType) -> Callable[[], Any]:
    def read() -> Any:
        try:
            return cell.cell_contents
        except ValueError:  # it has no value yet
            return _ABSENT

    return read


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _nested(constant)


def _plain(value: object) -> str | None:
    """A plain value as text, which tells 1 from 1.0 and True, as a program does."""
    is_plain = isinstance(value, _PLAIN) or (
        isinstance(value, tuple) and all(_plain(item) is not None for item in value)
    )
    return repr(value) if is_plain else None
