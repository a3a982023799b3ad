"""A tile program as plain data, which Python can pickle.

TVM's own way to pickle a program ends the process: its JSON writer takes the dtype in a `PrimType` for
an object and releases it. TVMScript reads back another program where a region has one element. So a
program is taken apart into the fields of its objects, which tvm_ffi's reflection names, and made from
them again. Each object is there once, so that a variable stays one; spans are kept. Python's registry
of how to pickle a type is told of it, for objects of the user's that hold a program.
"""

from __future__ import annotations

import copyreg
import itertools
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx.layout import Axis

from tvmtile._tvm import CObject, type_info_of_key
from tvmtile.ir.registration import register_operator

Node = tuple[str, Any]
"""The key of a type, and the references that make an object of it."""

_make = tvm_ffi.get_global_func("ffi.MakeObjectFromPackedArgs")


def _operator(name: str) -> ir.Op:
    prefix, _, own = name.partition(".")
    if prefix == "tvmtile":  # perhaps before the module that declares it is imported
        register_operator(own)
    return ir.Op.get(name)


_BY_NAME: dict[str, Callable[[str], Any]] = {"ir.Op": _operator, "tirx.Axis": Axis.get}
"""Types that have one object of a name."""


def to_data(root: Any) -> list[Node]:
    """Take an object of TVM's apart.

    There is a node for each object, its parts before it, the root last. A reference to a part is its
    index; other values are in a tuple.

    Raises
    ------
    pickle.PicklingError
        If there is a function or another object without fields in it.
    """
    nodes: list[Node] = []
    indices: dict[int, int] = {}
    pending = [root]
    while pending:  # a stack in place of recursion: a sum of a thousand terms is as deep
        value = pending[-1]
        if value.__chandle__() in indices:
            pending.pop()
            continue
        parts = _parts(value)
        missing = [p for p in parts if isinstance(p, CObject) and p.__chandle__() not in indices]
        if missing:
            pending.extend(missing)
            continue
        indices[value.__chandle__()] = len(nodes)
        key = type(value).__tvm_ffi_type_info__.type_key
        nodes.append((key, [_reference(part, indices) for part in parts]))
    return nodes


def from_data(nodes: list[Node]) -> Any:
    """Make the object that `to_data` took apart."""
    made: list[Any] = []
    for key, references in nodes:
        parts = [r[0] if isinstance(r, tuple) else made[r] for r in references]
        made.append(_made(key, parts))
    return made[-1]


def _reduced(program: tirx.PrimFunc) -> tuple[Any, ...]:
    return from_data, (to_data(program),)


copyreg.pickle(tirx.PrimFunc, _reduced)


def _made(key: str, parts: list[Any]) -> Any:
    if key in _BY_NAME:
        return _BY_NAME[key](parts[0])
    if key == "ffi.Array":
        return tvm_ffi.convert(parts)
    if key == "ffi.Map":
        return tvm_ffi.convert(dict(zip(parts[::2], parts[1::2], strict=True)))
    names = [field.name for field in _fields(type_info_of_key(key))]
    return _make(
        type_info_of_key(key).type_index, *itertools.chain(*zip(names, parts, strict=True))
    )


def _parts(value: Any) -> list[Any]:
    """The parts that an object is made from again."""
    info = getattr(type(value), "__tvm_ffi_type_info__", None)
    key = info.type_key if info is not None else type(value).__name__
    if key in _BY_NAME:
        return [value.name]
    if key == "ffi.Array":
        return list(value)
    if key == "ffi.Map":
        return list(itertools.chain(*value.items()))
    fields = _fields(info) if info is not None else []
    if not fields:
        raise pickle.PicklingError(f"a tile program with a {key} in it can't be pickled")
    return [field.getter(value) for field in fields]


def _fields(info: Any) -> list[Any]:
    """The fields of a type, those that it inherits first."""
    inherited = _fields(info.parent_type_info) if info.parent_type_info is not None else []
    return [*inherited, *info.fields]


def _reference(part: Any, indices: Mapping[int, int]) -> Any:
    if isinstance(part, CObject):
        return indices[part.__chandle__()]
    if isinstance(part, str):  # a dtype, or a string of TVM's own class
        part = str(part)
    return (part,)
