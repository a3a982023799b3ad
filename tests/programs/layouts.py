"""Fragments whose elements are needed in different threads: shared out alike, or staged."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

WAYS = [("Square", "FullRow"), ("Square", "FullCol"), ("FullCol", "FullRow")]
STAGED = dict.fromkeys(["rows", "displaced axis", "bits"], "g") | dict.fromkeys(
    ["largest", "columns", "pairs", "own"], "f"
)
"""Forms, and the fragment that is staged."""


@program(expects={"sm_80": ["not __shared__"], "metal": ["not threadgroup float"]})
def axis_that_a_serial_loop_counts(A: float32[8], C: float32[128]):
    """Parts of a sum that are put together one by one: every thread has all parts of its columns."""
    with T.Kernel(1, threads=128):
        parts = T.alloc_fragment((8, 128), "float32")
        largest = T.alloc_fragment((128,), "float32")
        total = T.alloc_fragment((128,), "float32")
        for k, j in T.Parallel(8, 128):
            parts[k, j] = A[k] * j
        T.reduce_max(parts, largest, dim=0)
        T.clear(total)
        for k in T.serial(8):
            for j in T.Parallel(128):
                total[j] += T.exp(parts[k, j] - largest[j])
        T.copy(total, C)


@program(
    parameters={"form": [*STAGED], "is_viewed": [False, True]},
    examples=[*({"form": form} for form in STAGED), {"form": "columns", "is_viewed": True}],
    expects=lambda p: {"sm_80": ["not for ("]} if p.form == "own" else {},
    fast=["metal"],
)
def fragment_in_shared_memory(A: float32[64, 64], C: float32[64, 64]):
    """Iterations that change one element come one after the other; `own`: each changes its own."""
    with T.Kernel(1, threads=64):
        f = T.alloc_fragment((64,), "float32")
        g = T.alloc_fragment((64, 64), "float32")
        T.copy(A, g)
        T.clear(f)
        if form == "rows":  # whose threads were chosen freely
            T.copy(g[41:55, 0:64], g[5:19, 0:64])
        elif form == "displaced axis":  # iterations of j are not those of the elements
            for i, j in T.Parallel(64, 4):
                total = T.alloc_var("float32", init=0)
                for v in T.serial(3):
                    g[i, j + v * 5] = g[i, j + v * 5] + v
                    total = total + g[i, j + v * 5]
                A[i, j] = total
        elif form == "bits":  # in a view of a view
            row = T.reshape(g, (4096,))
            bits = T.view(row, (128, 32), "int32")
            for i, j in T.Parallel(128, 32):
                bits[i, j] = bits[i, j] ^ T.int32(-(2**31))
        elif form == "own":
            own = T.reshape(f, (8, 8))
            for i in T.Parallel(64):
                own[i // 8, i % 8] += A[0, i]
        else:
            for i, j in T.Parallel(64, 8):
                if form == "largest":
                    if A[j, i] > 0:
                        f[i] = T.max(f[i], A[j, i])
                else:
                    f[i // 2 if form == "pairs" else i] += A[j, i]
        if is_viewed:
            viewed = T.reshape(f, (8, 8))
            for i, j in T.Parallel(8, 8):
                viewed[i, j] = viewed[i, j] + 1
        if STAGED[form] == "g":
            T.copy(g, C)
        else:
            for i in T.Parallel(64):
                C[0, i] = f[63 - i]


RESHAPED = {
    "all": ((4096,), 0, (1,)),
    "groups": ((64, 4, 16), 2, (64, 4)),
    "columns of groups": ((64, 4, 16), 1, (64, 16)),
    "rows of rows": ((8, 8, 64), 1, (8, 64)),
    "parts": ((256, 16), 1, (256,)),
}
"""Forms: another shape of 64 x 64 elements, the axis that is reduced, and what is left."""


@program(
    parameters={"form": [*RESHAPED], "is_sum": [False, True]},
    examples=[{"form": "groups", "is_sum": True}, *({"form": form} for form in RESHAPED)],
    fast=["metal"],
)
def fragment_under_another_shape(
    A: float16[64, 32], B: float32[64, 64], S: float32[8192], C: float32[64, 64]
):
    """Another shape of a fragment, a product's too, has the same registers: reduced and changed."""
    shape, axis, kept = RESHAPED[form]
    flat = kept[0] if len(kept) == 1 else kept[0] * kept[1]
    with T.Kernel(1, threads=64):
        a = T.alloc_shared((64, 32), "float16")
        x = T.alloc_fragment((64, 64), "float32")
        totals = T.alloc_fragment(kept, "float32")
        if is_sum:
            T.copy(A, a)
            T.gemm(a, a, x, transpose_B=True, clear_accum=True)
        else:
            T.copy(B, x)
        other = T.reshape(x, shape)
        T.reduce_sum(other, totals, dim=axis)
        halves = T.reshape(x, (64, 2, 32))
        for i, j, k in T.Parallel(64, 2, 32):
            halves[i, j, k] = halves[i, j, k] * 2 + j
        T.copy(T.reshape(totals, (flat,)), S[0:flat])
        for i, j in T.Parallel(64, 32):  # inner loops count the places below
            for v in T.vectorized(2):
                C[i, j * 2 + v] = x[i, j * 2 + v] + 1


MOVES = [
    ("fill", "to a tile of one row", "to a vector", "to a row"),
    ("in reverse",),
    ("in reverse by vectors",),
    ("column", "element", "transposed"),
]


@program(
    parameters={"moves": MOVES, "to": ["fragment", "shared"]},
    examples=[{"moves": moves, "to": to} for moves in MOVES for to in ("fragment", "shared")],
    fast=["metal", "sm_80"],
)
def rows_of_a_fragment(
    A: float16[64, 32], B: float16[32, 64], C: float32[64, 32], D: float32[64, 64]
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
