"""Blocks of any number of threads, whose last warp may be partial."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

TARGETS = ["llvm", "metal", "sm_80", "gpu"]
KINDS = {
    "sums of rows": (24, 3, 48),
    "copied": (100, 16, 32),
    "sums of columns": (48, 8, 16),
    "scanned": (100, 16, 32),
    "pipelined": (24, 3, 48),
    "transposed": (48, 8, 16),
    "by a reducer": (24, 3, 48),
}


@program(
    parameters={"kind": [*KINDS], "block": [(24, 3, 48), (1, 5, 7), (48, 8, 16), (100, 16, 32)]},
    examples=[
        *({"kind": kind, "block": block} for kind, block in KINDS.items()),
        {"block": (1, 5, 7)},
    ],
    drawn=8,
    targets=TARGETS,
    fast=["metal"],
)
def threads_of_any_number(A: float32[rows, columns], C: float32[rows, columns]):
    threads, rows, columns = block
    with T.Kernel(1, threads=threads):
        shared = T.alloc_shared((rows, columns), "float32")
        tile = T.alloc_fragment((rows, columns), "float32")
        row, total = T.alloc_shared((1, columns), "float32"), T.alloc_fragment((rows,), "float32")
        turned = T.alloc_fragment((columns, rows), "float32")
        column = T.alloc_fragment((columns,), "float32")
        sums = T.alloc_shared((columns,), "float32")
        if kind == "pipelined":
            T.clear(column)
            for k in T.Pipelined(rows, num_stages=2):
                T.copy(A[k, 0], row)
                for j in T.Parallel(columns):
                    column[j] = column[j] + row[0, columns - 1 - j]
                for j in T.Parallel(columns):
                    C[k, j] = column[j]
        elif kind == "by a reducer":
            reducer = T.alloc_reducer((columns,), "float32", "sum")
            T.clear(reducer)
            for i, j in T.Parallel(rows, columns):
                reducer[j] += A[i, j]
            T.finalize_reducer(reducer)
            for i, j in T.Parallel(rows, columns):
                C[i, j] = reducer[j]
        else:
            T.copy(A, shared)
            T.copy(shared, tile)
            if kind == "copied":
                for i, j in T.Parallel(rows, columns):
                    tile[i, j] = tile[i, j] * 2 + shared[rows - 1 - i, columns - 1 - j]
            elif kind == "sums of rows":
                T.reduce_sum(tile, total, dim=1)
                for i, j in T.Parallel(rows, columns):
                    tile[i, j] = tile[i, j] - total[i]
            elif kind == "sums of columns":
                T.reduce_sum(shared, sums, dim=0)
                for i, j in T.Parallel(rows, columns):
                    tile[i, j] = shared[i, j] - sums[j]
            elif kind == "scanned":
                T.cumsum(shared, dim=1)
                T.cumsum(shared, dim=0)
                T.copy(shared, tile)
            else:
                T.transpose(tile, turned)
                for i, j in T.Parallel(rows, columns):
                    tile[i, j] = turned[j, i] * 2
            T.copy(tile, C)


GROUPS = [
    ("from a tensor", "to a tensor", "cleared by some", "scanned", "multiplied"),
    ("from shared", "from a fragment", "filled", "summed", "a variable", "in a pipeline"),
    ("over the edge", "shifted", "cleared", "largest", "of a fragment", "transposed"),
    ("added to a tensor", "a view"),
]


@program(
    parameters={"cases": GROUPS},
    examples="cases",
    inputs={"given": lambda rng, shape: rng.integers(-4, 5, shape)},
    sizes=[{}],
    fast=["metal"],
)
def private_tiles(
    A: float32[64, 32],
    B: float32[64, 16],
    given: float32[64, 4, 8],
    result: float32[6, 64, 4, 8],
    totals: float32[6, 64, 4],
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


@program(expects={"sm_80": ["uint4", "not for ("]})
def private_rows_that_move_as_vectors(A: float16[32, 8], B: float16[32, 8]):
    """A row of 16 bytes is one load and one store, as in a loop of T.vectorized."""
    with T.Kernel(1, threads=32):
        thread = T.get_thread_binding()
        own = T.alloc_local((8,), "float16")
        T.copy(A[thread, 0:8], own)
        T.copy(own, B[thread, 0:8])
