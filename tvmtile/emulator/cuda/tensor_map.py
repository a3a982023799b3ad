"""Tensor maps for kernels that copy boxes of tensors (TMA), in the driver's 128 bytes.

The driver does not document them. The fields were read off maps that an H200's driver encoded with
one parameter changed at a time; `tests/gpu/test_tensor_maps.py` compares many more.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvmtile.errors import ArgumentError

_SIZE = 128
_RANKS = range(1, 6)
_SWIZZLE_BYTES = {1: 32, 2: 64, 3: 128}
# Types by their number in a map; others are copied as words of their bytes.
_TYPES = {"uint16": 1, "int16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5}
_WORDS = {1: 0, 2: 1, 4: 2, 8: 4}
_TYPES |= {"float16": 6, "float32": 7, "float64": 9, "bfloat16": 10}


@dataclass(frozen=True)
class EncodedMap:
    """A tensor map, the argument of type CUtensorMap, and the array that it is of."""

    encoded: bytes
    array: Any


NO_MAP = EncodedMap(bytes(_SIZE), None)
"""Memory for a map that nobody encoded, in which a copy finds none."""


def encoded_map(
    address: int,
    dtype: str,
    item: int,
    extents: Sequence[int],
    strides: Sequence[int],
    box: Sequence[int],
    swizzle: int = 0,
) -> bytes:
    """The 128 bytes of a map.

    Parameters
    ----------
    address : int
        Of the tensor.
    dtype : str
        Of its elements.
    item : int
        Bytes of one.
    extents, strides, box, swizzle
        As of `tensor_map`.
    """
    words = [0] * (_SIZE // 4)
    words[0:2] = address & 0xFFFFFFFF, address >> 32
    kind = _TYPES.get(dtype, _WORDS[item])
    words[2] = (len(extents) - 1) << 4 | kind << 7 | swizzle << 13
    for axis, stride in enumerate(strides):
        words[3 + axis] = stride // 16 & 0xFFFFFFFF
        words[7] |= stride // 16 >> 32 << 4 * axis
    words[8 : 8 + len(extents)] = [(extent - 1) & 0xFFFFFFFF for extent in extents]
    words[13] = (box[0] - 1) << 24
    words[14] = sum((extent - 1) << 8 * axis for axis, extent in enumerate(box[1:]))
    words[16] = math.prod(box) * item
    words[18] = 8 * _SWIZZLE_BYTES.get(swizzle, 2)  # rows of an atom of the swizzle
    return struct.pack("<32I", *words)


def tensor_map(
    array: Any, extents: Sequence[int], strides: Sequence[int], box: Sequence[int], swizzle: int = 0
) -> EncodedMap:
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
    dtype = str(array.dtype).removeprefix("torch.")
    return EncodedMap(encoded_map(address, dtype, item, extents, strides, box, swizzle), array)
