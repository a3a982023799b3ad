"""Operators on tiles of T.alloc_local and T.alloc_var: each thread does all of them for itself."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

GROUPS = [
    ("from a tensor", "to a tensor", "cleared by some", "scanned", "multiplied"),
    ("from shared", "from a fragment", "filled", "summed", "a variable", "in a pipeline"),
    ("over the edge", "shifted", "cleared", "largest", "of a fragment", "transposed"),
    ("added to a tensor", "a view"),
]


@program(
    tags={"threads", "copy"},
    parameters={"cases": GROUPS},
    examples=[{"cases": cases} for cases in GROUPS],
    inputs={"given": lambda rng, shape: rng.integers(-4, 5, shape)},
    sizes=[{}],
    fast=["metal"],
)
def private_tiles(
    A: T.Tensor((64, 32), "float32"),
    B: T.Tensor((64, 16), "float32"),
    given: T.Tensor((64, 4, 8), "float32"),
    result: T.Tensor((6, 64, 4, 8), "float32"),
    totals: T.Tensor((6, 64, 4), "float32"),
):
    """Each case begins with tiles of its own, and leaves them in `result` and `totals`."""
    with T.Kernel(1, threads=64):
        thread = T.get_thread_binding()
        for number, case in tuple(enumerate(cases)):
            own = T.alloc_local((4, 8), "float32")
            out = T.alloc_local((4,), "float32")
            for i in T.serial(4):
                out[i] = 1
                for j in T.serial(8):
                    own[i, j] = given[thread, i, j]
            if case == "from a tensor":
                T.copy(A[thread : thread + 1, 2:10], own[1:2, 0:8])
            if case == "from a fragment":
                tile = T.alloc_fragment((4, 8), "float32")
                T.copy(A[8:12, 0:8], tile)
                T.copy(tile, own)
            if case == "from shared":
                rows = T.alloc_shared((64, 8), "float32")
                T.copy(A[0:64, 0:8], rows)
                T.copy(rows[8:12, 0:8], own)
            if case == "to a tensor":
                T.copy(own[2:3, 0:8], B[thread : thread + 1, 0:8])
                T.copy(B[thread : thread + 1, 0:8], own[0:1, 0:8])
            if case == "over the edge":
                T.copy(A[thread, 28], own)
            if case == "shifted":
                T.copy(own[0:3, 0:8], own[1:4, 0:8])
            if case == "filled":
                T.fill(own[1:3, 0:8], thread)
            if case == "cleared":
                T.clear(own)
            if case == "cleared by some":
                if thread < 20:
                    T.clear(own)
            if case == "summed":
                T.reduce_sum(own, out, dim=1)
            if case == "largest":
                T.reduce_max(own, out, dim=1, clear=False)
            if case == "of a fragment":
                tile = T.alloc_fragment((4, 8), "float32")
                T.copy(A[8:12, 0:8], tile)
                T.reduce_sum(tile, out, dim=1)
            if case == "scanned":
                T.cumsum(own, dim=1)
            if case == "transposed":
                turned = T.alloc_local((8, 4), "float32")
                T.transpose(own, turned)
                for i in T.serial(4):
                    out[i] = turned[7 - i, i]
            if case == "a variable":
                total = T.alloc_var("float32")
                row = T.alloc_fragment((8,), "float32")
                T.copy(A[3, 0:8], row)
                T.reduce_sum(row, total, dim=0)
                out[1] = total
            if case == "added to a tensor":
                T.atomic_add(B[thread : thread + 1, 8:16], own[2:3, 0:8])
                T.copy(B[thread : thread + 1, 8:16], own[0:1, 0:8])
            if case == "a view":
                flat = T.reshape(own, (32,))
                T.fill(flat[5:9], thread)
            if case == "multiplied":
                b = T.alloc_local((8, 8), "float32")
                c = T.alloc_local((4, 8), "float32")
                T.copy(A[0:8, 0:8], b)
                T.clear(c)
                T.gemm(own, b, c)
                T.copy(c, own)
            if case == "in a pipeline":
                stage = T.alloc_shared((4, 8), "float32")
                part = T.alloc_local((8,), "float32")
                for k in T.Pipelined(5, num_stages=2):
                    T.copy(A[k * 4 : k * 4 + 4, 0:8], stage)
                    T.copy(stage[k % 4, 0:8], part)
                    for j in T.serial(8):
                        own[0, j] += part[j]
            for i in T.serial(4):
                totals[number, thread, i] = out[i]
                for j in T.serial(8):
                    result[number, thread, i, j] = own[i, j]


@program(
    tags={"threads", "copy"},
    expects={"sm_80": ["uint4", "not for ("]},
)
def private_rows_that_move_as_vectors(
    A: T.Tensor((32, 8), "float16"), B: T.Tensor((32, 8), "float16")
):
    """A row of 16 bytes is one load and one store, as in a loop of T.vectorized."""
    with T.Kernel(1, threads=32):
        thread = T.get_thread_binding()
        own = T.alloc_local((8,), "float16")
        T.copy(A[thread, 0:8], own)
        T.copy(own, B[thread, 0:8])
