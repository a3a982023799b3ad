"""Atomic updates: nothing gets lost between threads and blocks that run at the same time."""

from __future__ import annotations

import math

import tvmtile.language as T
from tests.programs import program

DTYPES = [
    "float32",
    "int32",
    "float16",
    "bfloat16",
    "uint32",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int64",
    "uint64",
    "float64",
]
LACKS = {
    "float64": "small[301] float64: Metal has no float64",
    "int64": "atomic: no implementation for metal fits",
    "uint64": "atomic: no implementation for metal fits",
}
GPUS = ["sm_80", "sm_89", "sm_90a", "sm_100a", "gpu"]


@program(
    parameters={"dtype": DTYPES},
    examples="dtype",
    inputs={
        "index": lambda rng, shape: rng.integers(0, 5, shape),
        "small": lambda rng, shape: rng.integers(0 if dtype.startswith("u") else -1, 2, shape),
        "large": lambda rng, shape: rng.integers(1, 100, shape) * (2 if dtype[0] == "u" else 1),
        "total": lambda rng, shape: np.zeros(shape, np.int64),
        "bits": lambda rng, shape: rng.integers(0, 4, shape),
    },
    refused=lambda p: {"metal": LACKS[p.dtype]} if p.dtype in LACKS else {},
    fast=["metal", "sm_80"],
)
def atomic_updates_by_many_blocks(
    index: int32[301],
    small: dtype[301],
    large: dtype[301],
    total: dtype[8],
    largest: dtype[8],
    smallest: dtype[8],
    bits: dtype[8],
):
    """Small integers: their sums are exact in every dtype and order."""
    with T.Kernel(19, threads=32) as bx:
        for i in T.Parallel(16):
            if bx * 16 + i < 301:
                T.atomic_add(total[index[bx * 16 + i]], small[bx * 16 + i])
                T.atomic_max(largest[index[bx * 16 + i]], large[bx * 16 + i])
                T.atomic_min(smallest[index[bx * 16 + i]], large[bx * 16 + i])
                if "int" in dtype:
                    T.atomic_or(bits[index[bx * 16 + i]], large[bx * 16 + i])


@program(
    parameters={"dtype": ["float16", "bfloat16", "float32"]},
    examples="dtype",
    inputs={"A": [math.nan, math.inf, -math.inf, 1], "C": lambda rng, shape: np.ones(shape)},
    fast=["metal", "sm_80"],
)
def atomic_add_of_infinities(A: dtype[4], C: dtype[4]):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(4):
            T.atomic_add(C[i], A[i])


@program(
    parameters={
        "kind": ["add", "max", "min"],
        "dtypes": [("float32", "float32"), ("float32", "float64"), ("float16", "float32")],
    },
    examples=[
        {},
        {"dtypes": ("float32", "float64")},
        {"kind": "max", "dtypes": ("float16", "float32")},
    ],
    targets=lambda p: ["llvm", *GPUS, *([] if "float64" in p.dtypes else ["metal"])],
    fast=["metal"],
)
def atomic_tiles(A: dtypes[0][8, 12], C: dtypes[1][3, 8, 12]):
    """A whole buffer, a region and an origin, of another dtype than the value."""
    with T.Kernel(1, threads=64):
        tile = T.alloc_fragment((8, 12), dtypes[0])
        T.copy(A, tile)
        getattr(T, "atomic_" + kind)(C[0, 0:8, 0:12], tile)
        getattr(T, "atomic_" + kind)(C[1, 0, 0], tile)
        getattr(T, "atomic_" + kind)(C[2, 2:5, 3:12], tile[1:4, 0:9])


@program(
    parameters={"threads": [64, 1, 128]},
    inputs={"A": lambda rng, shape: rng.integers(0, 8, shape)},
    fast=["metal", "sm_80"],
)
def atomic_counters(A: int32[1000], C: int32[8], D: int32[3], E: int32[1], F: int32[1]):
    """A histogram in a shared tile, added to the result; one value updates a tile once a block."""
    with T.Kernel(10, threads=threads) as bx:
        bins = T.alloc_shared((8,), "int32")
        T.clear(bins)
        for i in T.Parallel(100):
            T.atomic_add(bins[A[bx * 100 + i]], 1)
        T.atomic_add(C[0], bins)
        T.atomic_add(D, bx)
        T.atomic_add(E, 1)
        T.atomic_add(F[0], 1)


@program(
    parameters={"dtype": ["int8", "uint16", "float16", "bfloat16"]},
    examples="dtype",
    inputs={"A": lambda rng, shape: rng.integers(0, 3, shape)},
    fast=["metal"],
)
def atomic_updates_of_parts_of_words(A: dtype[64], C: dtype[4]):
    """The word around an element lies in the shared array, which needs the alignment of a word."""
    with T.Kernel(1, threads=64):
        sums = T.alloc_shared((4,), dtype)
        T.clear(sums)
        for i in T.Parallel(64):
            T.atomic_add(sums[i % 4], A[i])
        T.copy(sums, C)


@program(
    parameters={"kind": ["add", "max"]},
    inputs={"total": 0},
    fast=["metal", "sm_80"],
)
def atomics_on_a_tensor_of_one_element(A: int32[64], total: int32[1]):
    """The whole tensor, named without an index, is the element."""
    with T.Kernel(4, threads=32) as bx:
        for i in T.Parallel(16):
            getattr(T, "atomic_" + kind)(total, A[bx * 16 + i])
