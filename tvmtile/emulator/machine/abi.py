"""The structures of `include/machine/launch.h`, as ctypes: their fields are read there."""

from __future__ import annotations

import ctypes
import enum
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

OPERATIONS = 16
"""Operations that threads do together: a block's barrier, a warp's, then those of a front end."""
CLUSTER = OPERATIONS - 1
"""The barrier of a cluster among them."""


class Failure(enum.IntEnum):
    """The reason why a launch ended early."""

    NONE = 0
    RACE = 1
    OUT_OF_BOUNDS = 2
    UNINITIALIZED = 3
    DIVERGENCE = 4
    MISALIGNED = 5
    SHARED_MEMORY = 6
    NOT_UNIFORM = 7
    INVALID_LANE = 8
    READ_ONLY = 9
    RESOURCES = 10
    DIVISION = 11
    STACK = 12
    ENDLESS = 13
    DEADLOCK = 14
    TRAP = 15
    UNSUPPORTED = 16
    FENCE = 17
    REGISTER = 18
    PROTOCOL = 19
    OVERFLOW = 20
    SHIFT = 21


class MemoryAccess(enum.IntEnum):
    """An access to memory."""

    READ = 0
    WRITE = 1
    ATOMIC_READ = 2
    ATOMIC_WRITE = 3


_HEADER = Path(__file__).parent / "include" / "machine" / "launch.h"
_TYPES: dict[str, Any] = {
    **{
        f"std::{name}_t": getattr(ctypes, f"c_{name}")
        for name in ("int32", "uint32", "int64", "uint64")
    },
    **dict.fromkeys(("Failure", "Access"), ctypes.c_int32),
    **dict.fromkeys(("void*", "Entry"), ctypes.c_void_p),
    "double": ctypes.c_double,
    "char": ctypes.c_char,
    "const char*": ctypes.c_char_p,
}


def _fields_of(structure: str) -> Iterator[tuple[str, Any]]:
    """Names and types of the fields."""
    pattern = rf"^struct {structure} \{{\n(.*?)^\}};"
    (body,) = re.findall(pattern, _HEADER.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    for kind, name, count in re.findall(r"^  (\S.*?) (\w+)(?:\[(\w+)\])?;", body, re.MULTILINE):
        extent = int(count.replace("kOperations", str(OPERATIONS))) if count else 0
        yield name, _TYPES[kind] * extent if extent else _TYPES[kind]


class BufferArgument(ctypes.Structure):
    """A buffer of the host that the kernel gets a copy of."""

    _fields_ = tuple(_fields_of("BufferArgument"))


class Binding(ctypes.Structure):
    """The memory of a parameter of the kernel."""

    _fields_ = tuple(_fields_of("Binding"))


_TYPES |= {f"const {each.__name__}*": ctypes.POINTER(each) for each in (BufferArgument, Binding)}


class LaunchRecord(ctypes.Structure):
    """A launch: the kernel, its arguments and the grid."""

    _fields_ = tuple(_fields_of("Launch"))


class RunReport(ctypes.Structure):
    """A mistake, with its place and threads."""

    _fields_ = tuple(_fields_of("Report"))


class Statistics(ctypes.Structure):
    """The work of a launch."""

    _fields_ = tuple(_fields_of("Statistics"))

    @property
    def traffic(self) -> tuple[int, ...]:
        """The numbers behind those of operations, in their order."""
        return tuple(getattr(self, name) for name, *_ in self._fields_[1:])
