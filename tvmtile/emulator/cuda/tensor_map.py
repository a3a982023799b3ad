"""Tensor maps for kernels that copy boxes of tensors (TMA)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvmtile.errors import ArgumentError

__all__ = ["NO_MAP", "TensorMap", "tensor_map"]

_MAGIC = 0x74766D74696C6531
_SIZE = 128
_RANKS = range(1, 6)
_SWIZZLE_BYTES = {1: 32, 2: 64, 3: 128}
# Those that copies can add up, numbered as in reductions.h.
_ELEMENTS = ("", "uint32", "int32", "uint64", "int64", "float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class TensorMap:
    """What a parameter of type CUtensorMap is given: a map, and the array that it is of."""

    encoded: bytes
    array: Any


NO_MAP = TensorMap(bytes(_SIZE), None)
"""Memory for a map that nobody encoded, in which a copy finds none."""


def tensor_map(
    array: Any, extents: Sequence[int], strides: Sequence[int], box: Sequence[int], swizzle: int = 0
) -> TensorMap:
    """Describe an array for bulk copies, as `cuTensorMapEncodeTiled` does.

    Parameters
    ----------
    array : numpy.ndarray or torch.Tensor
        Contiguous and on the CPU.
    extents : sequence of int
        Elements along each axis, the innermost first.
    strides : sequence of int
        Bytes from one index to the next along each axis but the innermost.
    box : sequence of int
        Elements that a copy moves along each axis.
    swizzle : int
        0, or 1, 2, 3 for 32, 64 and 128 bytes.

    Raises
    ------
    ArgumentError
        For what the driver refuses.
    """
    rank = len(extents)
    is_torch = hasattr(array, "data_ptr")
    address = array.data_ptr() if is_torch else array.ctypes.data
    item = array.element_size() if is_torch else array.itemsize
    if rank not in _RANKS or len(box) != rank or len(strides) != rank - 1:
        raise ArgumentError(
            "a tensor map has 1 to 5 axes, a box for each, and a stride but for one"
        )
    if address % 16 or any(stride % 16 for stride in strides):
        raise ArgumentError("a tensor map's array and strides are at multiples of 16 bytes")
    if any(not 1 <= extent <= 256 for extent in box) or box[0] * item % 16:
        raise ArgumentError(
            f"a tensor map's box {tuple(box)}: 1 to 256, innermost 16 bytes at a time"
        )
    if swizzle and box[0] * item > _SWIZZLE_BYTES[swizzle]:
        raise ArgumentError(f"a box's rows of {box[0] * item} bytes are longer than the swizzle's")
    padded = [*extents, *[1] * (5 - rank)], [item, *strides, *[0] * (5 - rank)]
    numbers = struct.pack("<12Q", _MAGIC, address, *padded[0], *padded[1])
    dtype = str(array.dtype).removeprefix("torch.")
    element = _ELEMENTS.index(dtype) if dtype in _ELEMENTS else 0
    rest = struct.pack("<5I4B", *box, *[1] * (5 - rank), rank, item, swizzle, element)
    return TensorMap((numbers + rest).ljust(_SIZE, b"\0"), array)
