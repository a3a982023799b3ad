"""The numbers that a Metal kernel is launched with, as the struct that TVM's source declares."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from tvmtile.errors import UnsupportedDtype
from tvmtile.jit.launches import KernelInterface

# A scalar as the host passes it, in the first bytes of its 8.
_FORMATS = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
}
_SLOT = 8


def check_scalars(kernels: Mapping[str, KernelInterface]) -> None:
    """Refuse a kernel that takes a number which the struct can't hold.

    Raises
    ------
    UnsupportedDtype
        With the dtypes that it can.
    """
    for name, kernel in kernels.items():
        for dtype in kernel.dtypes:
            if dtype != "handle" and dtype not in _FORMATS:
                raise UnsupportedDtype(
                    f"{name}: a number of {dtype} can't be passed to a Metal kernel",
                    help=f"pass one of {', '.join(_FORMATS)}, or a tensor with one element",
                )


def packed_scalars(kernel: KernelInterface, values: Sequence[int | float]) -> bytes:
    """The struct of a kernel's scalars, as TVM lays it out: 8 bytes each."""
    dtypes = [dtype for dtype in kernel.dtypes if dtype != "handle"]
    return b"".join(
        struct.pack(f"<{_FORMATS[dtype]}", value).ljust(_SLOT, b"\0")
        for dtype, value in zip(dtypes, values, strict=True)
    )
