"""Integers of all widths: conversions that wrap, and stores of few bits."""

from __future__ import annotations

import numpy as np

import tvmtile.language as T
from tests.programs import program


@program(
    tags={"integers"},
    parameters={
        "source": ["int32", "uint32", "int64", "uint64", "int16", "uint16", "int8", "uint8"],
        "target": ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"],
    },
    examples=[
        {},
        {"source": "uint64", "target": "int64"},
        {"source": "int64", "target": "uint32"},
        {"source": "uint32", "target": "int32"},
        {"source": "int16", "target": "uint64"},
        {"source": "uint16", "target": "int16"},
        {"source": "int8", "target": "uint16"},
        {"source": "uint8", "target": "int8"},
        {"source": "int64", "target": "uint8"},
    ],
    where=lambda p: not np.can_cast(p.source, p.target),
    targets=["llvm", "metal", "sm_80", "gpu"],
    drawn=4,
    inputs="extreme",
    fast=["metal"],
)
def integers_that_wrap(
    A: T.Tensor((64, 8), source),
    F: T.Tensor((64, 8), source),
    B: T.Tensor((64, 8), "int32"),
    C: T.Tensor((64, 8), "int32"),
    Q: T.Tensor((64, 8), target),
    M: T.Tensor((64, 8), target),
    W: T.Tensor((64, 8), "int64"),
    D: T.Tensor((64, 8), "int64"),
    S: T.Tensor((64, 8), "int64"),
    I: T.Tensor((64, 8), "int64"),
):
    """They are compared, divided, chosen, widened and shifted: read from memory, or of an index."""
    half = 2 ** (int(target.removeprefix("uint")) - 1) - 1 if target[0] == "u" else 0
    with T.Kernel(1, threads=64):
        for i, j in T.Parallel(64, 8):
            wrapped = T.cast(A[i, j], target)
            other = T.cast(T.cast(F[i, j], target), "int64")
            index = T.cast(T.cast(i * 7 - 200, source), target)
            B[i, j] = T.if_then_else(
                T.cast(A[i, j], target) < getattr(T, target)(half), T.int32(1), T.int32(0)
            )
            if index < getattr(T, target)(half):
                C[i, j] = T.int32(1)
            else:
                C[i, j] = T.int32(0)
            Q[i, j] = T.cast(A[i, j], target) // getattr(T, target)(3)
            M[i, j] = T.max(wrapped, getattr(T, target)(half))
            W[i, j] = T.cast(T.cast(A[i, j], target), "int64")
            D[i, j] = T.cast(wrapped, "int64") // 2 - other // 2
            S[i, j] = T.cast(T.cast(A[i, j], target) >> getattr(T, target)(3), "int64")
            I[i, j] = T.cast(index, "int64")


NARROW = [
    ("int32", "int8"),
    ("int64", "int8"),
    ("int64", "int32"),
    ("int32", "int16"),
    ("int16", "int8"),
    ("float32", "bfloat16"),
    ("int8", "float8_e5m2"),
]


@program(
    tags={"integers", "copy"},
    parameters={"dtypes": NARROW},
    examples=[{"dtypes": dtypes} for dtypes in NARROW],
    targets=["llvm"],
)
def elements_of_few_bits(
    A: T.Tensor((32, 24), dtypes[0]),
    C: T.Tensor((10, 17), dtypes[1]),
    D: T.Tensor((10, 24), dtypes[1]),
):
    """Nothing behind them is written, at an edge and of one element of a row."""
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((32, 24), dtypes[0])
        T.copy(A, tile)
        T.copy(tile, C[0, 0])
        for i, j in T.Parallel(10, 24):
            if j * 5 % 24 == 19:
                D[i, j] = tile[i, j]


@program(
    tags={"integers"}, parameters={"dtype": ["int8", "int16", "int32"]}, targets=["llvm"], drawn=3
)
def elements_of_a_part_of_a_vector(A: T.Tensor((5, 9), "int64"), C: T.Tensor((5, 9), dtype)):
    """LLVM masks the last of nine iterations where they are too long to be repeated."""
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((5, 9), "int64")
        T.copy(A, tile)
        for i, j in T.Parallel(5, 9):
            x = tile[i, j]
            for _ in (0,) * 20:
                x = (x * x + tile[i, j]) & 65535
            C[i, j] = x
