"""Single rows, columns and elements of a fragment that a product reads: some threads hold them."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

MOVES = [
    ("fill", "to a tile of one row", "to a vector", "to a row"),
    ("in reverse",),
    ("in reverse by vectors",),
    ("column", "element", "transposed"),
]


@program(
    tags={"copy", "gemm"},
    parameters={"moves": MOVES, "to": ["fragment", "shared"]},
    examples=[{"moves": moves, "to": to} for moves in MOVES for to in ("fragment", "shared")],
    fast=["metal", "sm_80"],
)
def rows_of_a_fragment(
    A: T.Tensor((64, 32), "float16"),
    B: T.Tensor((32, 64), "float16"),
    C: T.Tensor((64, 32), "float32"),
    D: T.Tensor((64, 64), "float32"),
):
    with T.Kernel(1, threads=256):
        a = T.alloc_fragment((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        c = getattr(T, "alloc_" + to)((64, 32), "float32")
        d = T.alloc_fragment((64, 64), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.clear(c)
        T.clear(d)
        T.gemm(a, b, d)
        T.copy(d, D)
        for move in moves:
            if move == "fill":
                T.fill(a[58:59, 0:32], 7)
                T.copy(a, c)
            if move == "to a tile of one row":
                flat = T.alloc_fragment((1, 32), "float32")
                T.copy(a[33:34, 0:32], flat)
                T.copy(flat, c[36:37, 0:32])
            if move == "to a vector":
                vector = T.alloc_fragment((32,), "float32")
                T.copy(a[1, 0:32], vector)
                T.copy(vector, c[63, 0:32])
            if move == "to a row":
                T.copy(a[58:59, 0:32], c[20:21, 0:32])
            if move == "in reverse":
                for k in T.serial(64):
                    T.copy(a[k : k + 1, 0:32], c[63 - k : 64 - k, 0:32])
            if move == "in reverse by vectors":
                row = T.alloc_shared((32,), "float32")
                for k in T.serial(64):
                    T.copy(a[k, 0:32], row)
                    T.copy(row, c[63 - k, 0:32])
            if move == "column":
                T.copy(a[0:64, 5:6], c[0:64, 8:9])
            if move == "element":
                T.copy(a[58:59, 3:4], c[36:37, 9:10])
            if move == "transposed":
                column = T.alloc_fragment((32, 1), "float32")
                T.transpose(a[58:59, 0:32], column)
                T.transpose(column, c[40:41, 0:32])
        T.copy(c, C)
