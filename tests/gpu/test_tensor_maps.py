"""The emulator's tensor maps are the driver's, byte for byte."""

import ctypes
import random
from collections import Counter

import pytest
import torch

from tvmtile.emulator.cuda.tensor_map import encoded_map

# As CUtensorMapDataType numbers them.
TYPES = {"uint8": 0, "uint16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5}
TYPES |= {"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}
ITEMS = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2}
MAPS = 4000


def by_the_driver(address, dtype, extents, strides, box, swizzle):
    """The map, or what the driver answers where it refuses."""
    rank, ones = len(extents), [1] * len(extents)
    memory = ctypes.create_string_buffer(128 + 64)
    place = -(-ctypes.addressof(memory) // 64) * 64
    refused = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.c_void_p(place), TYPES[dtype], rank, ctypes.c_void_p(address),
        (ctypes.c_uint64 * rank)(*extents), (ctypes.c_uint64 * rank)(*strides, 0),
        (ctypes.c_uint32 * rank)(*box), (ctypes.c_uint32 * rank)(*ones), 0, swizzle, 0, 0,
    )  # fmt: skip
    return refused or ctypes.string_at(place, 128)


def arguments(chance):
    dtype = chance.choice(list(TYPES))
    item, rank = ITEMS[TYPES[dtype]], chance.randint(1, 5)
    extents = [chance.randint(1, 2 ** chance.randint(1, 32)) for _ in range(rank)]
    strides = [16 * chance.randint(1, 2 ** chance.randint(1, 36) - 1) for _ in range(rank - 1)]
    swizzle = chance.randint(0, 3)
    width = chance.choice([16, 32, 64, 128][: 4 if swizzle in (0, 3) else 1 + swizzle])
    box = [max(width // item, 1), *(chance.choice([1, 2, 3, 8, 16]) for _ in range(rank - 1))]
    return 16 * chance.randint(1, 2**43), dtype, extents, strides, box, swizzle


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the driver comes with a GPU")
def test_maps_are_the_drivers():
    torch.zeros(1, device="cuda")  # makes the context that the driver asks for
    chance = random.Random(0)
    refused: Counter[int] = Counter()
    for _ in range(MAPS):
        address, dtype, extents, strides, box, swizzle = given = arguments(chance)
        theirs = by_the_driver(*given)
        if isinstance(theirs, int):
            refused[theirs] += 1
        else:
            item = ITEMS[TYPES[dtype]]
            assert encoded_map(address, dtype, item, extents, strides, box, swizzle) == theirs, (
                given
            )
    assert refused.total() < MAPS * 3 // 4, refused
