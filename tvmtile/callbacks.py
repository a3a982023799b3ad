"""Functions that compiled kernels call, also without TVM's compiler, of which they import nothing.

`tvmtile._plugin` registers these with TVM.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

from tvmtile.errors import DIVISION_BY_ZERO, InvalidValue, OutOfBounds, SourceLocation

__all__ = ["report_division_by_zero", "report_out_of_bounds", "show_tile", "show_value"]


def show_value(msg: str, label: str, dtype: str, value: float, *block: int) -> None:
    """Write the line of a value; a kernel calls this as `tvmtile.show_value`."""
    text = f"{label} = {bool(value) if dtype == 'bool' else value}" if label else ""
    _write(msg, text, block)


def show_tile(
    msg: str, label: str, dtype: str, pointer: Any, x: int, y: int, z: int, *extents: int
) -> None:
    """Write a tile that lies contiguously in memory; a kernel calls this as `tvmtile.show_tile`."""
    count = int(np.prod(extents))
    raw = ctypes.string_at(pointer, count * np.dtype(dtype).itemsize)
    tile = np.frombuffer(raw, dtype).reshape(extents)
    shown = np.array2string(tile, threshold=sys.maxsize)
    _write(msg, f"{label} =\n{shown}", (x, y, z))


def _write(msg: str, text: str, block: tuple[int, ...]) -> None:
    index = ", ".join(str(i) for i in block if i >= 0)
    line = ": ".join(part for part in (str(msg), text) if part)
    sys.stdout.write(f"[block {index}] {line}\n")
    sys.stdout.flush()


def report_out_of_bounds(file: str, line: int, tile: str, *numbers: int) -> None:
    """Stop a kernel: compiled code calls this with the indices, extents and sizes of an access.

    Raises
    ------
    OutOfBounds
        Always.
    """
    rank = len(numbers) // 3
    low, high, sizes = (numbers[i * rank : (i + 1) * rank] for i in range(3))
    element = ", ".join(
        str(first) if first == last else f"{first}:{last + 1}"
        for first, last in zip(low, high, strict=True)
    )
    raise OutOfBounds(
        f"out of bounds: the kernel takes index {element} of {tile}, "
        f"which has {' x '.join(map(str, sizes))} elements",
        help="a tile has no guards, as a tensor has: compare the index with its extents first",
        location=SourceLocation(file, line) if file else None,
    )


def report_division_by_zero(file: str, line: int) -> None:
    """Stop a kernel: compiled code calls this where it would divide.

    Raises
    ------
    InvalidValue
        Always.
    """
    message, help = DIVISION_BY_ZERO
    raise InvalidValue(message, help=help, location=SourceLocation(file, line) if file else None)
