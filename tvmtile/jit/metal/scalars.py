"""The numbers that a Metal kernel is launched with, as the struct that TVM's source declares."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tvmtile.jit.launches import KernelInterface

# A scalar as the host passes it, in the first bytes of its 8.
_FORMATS = {"int32": "i", "uint32": "I", "int64": "q", "float32": "f"}
_SLOT = 8


def packed_scalars(kernel: KernelInterface, values: Sequence[int | float]) -> bytes:
    """The struct of a kernel's scalars, as TVM lays it out: 8 bytes each."""
    dtypes = [dtype for dtype in kernel.dtypes if dtype != "handle"]
    return b"".join(
        struct.pack(f"<{_FORMATS[dtype]}", value).ljust(_SLOT, b"\0")
        for dtype, value in zip(dtypes, values, strict=True)
    )
