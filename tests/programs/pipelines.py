"""Pipelined loops of every kind: any number of stages computes the same."""

from __future__ import annotations

from functools import partial

import tvmtile.language as T
from tests.programs import program

STAGES = [3, 0, 1, 2, 4]
pipelined = partial(program, tags={"pipelined"})


@T.macro
def _added(tile, total):
    for i, j in T.Parallel(32, 32):
        total[i, j] = total[i, j] * 2 + tile[j, i]


# The blocks of each, and what `numbers` holds.
TILES = {
    "trips and starts by the block": (
        9,
        [[1, 0, 0, 0, 0, 1, 3, 5, 4], [6, 0, 1, 2, 6, 4, 6, 6, 2]],
    ),
    "a loop behind it": (1, 0),
    "persistent and serial loops around": (2, 0),
    "rows by a table": (1, [[3, 0, 6, 2, 7, 4, 0, 0, 0], [0] * 9]),
    "a consumer that writes back": (1, 0),
    "a tile in parts": (1, 0),
    "the last tile after the loop": (4, [[0, 1, 2, 5, 0, 0, 0, 0, 0], [0] * 9]),
}


@pipelined(
    parameters={"form": list(TILES), "stages": STAGES},
    examples="form",
    inputs={"numbers": lambda rng, shape: TILES[form][1] or np.zeros((2, 9), int)},
    drawn=16,
    fast=["sm_90a"],
)
def pipeline_of_tiles(
    A: float16[30, 32, 32],
    numbers: int32[2, 9],
    C: ("float32" if "loop" in form or "trips" in form else "float16")[9, 32, 32],
):
    with T.Kernel(TILES[form][0], threads=64) as bx:
        tile, total = T.alloc_shared((32, 32), "float16"), T.alloc_fragment((32, 32), "float32")
        if form == "trips and starts by the block":
            T.clear(total)
            for k in T.Pipelined(numbers[0, bx], numbers[1, bx], num_stages=stages):
                T.copy(A[k, :, :], tile)
                _added(tile, total)
            T.copy(total, C[bx, :, :])
        elif form == "a loop behind it":
            T.copy(A[4, :, :], tile)
            T.copy(tile, total)
            for k in T.Pipelined(5, num_stages=stages):
                T.copy(A[k, :, :], tile)
                _added(tile, total)
            for k in T.Pipelined(1, 4, num_stages=2):
                T.copy(A[k, :, :], tile)
                _added(tile, total)
            T.copy(tile, C[1, :, :])
            T.copy(total, C[0, :, :])
        elif form == "persistent and serial loops around":
            for r, c in T.Persistent([3, 2], 2, bx):
                T.clear(total)
                for half in T.serial(2):
                    for k in T.Pipelined(half * 2, 2 + half * 3, num_stages=stages):
                        T.copy(A[(r * 2 + c) * 5 + k, :, :], tile)
                        _added(tile, total)
                T.copy(total, C[r * 2 + c, :, :])
        elif form == "rows by a table":
            for k in T.Pipelined(6, num_stages=stages):
                row = numbers[0, k]
                other = row + 1
                T.copy(A[row, :, :], tile)
                for i, j in T.Parallel(32, 32):
                    C[other, i, j] = tile[j, i] + row
        elif form == "the last tile after the loop":
            last = T.alloc_fragment((32, 32), "float16")
            T.clear(last)
            count = numbers[0, bx]
            T.copy(A[5, :, :], tile)
            for k in T.Pipelined(count, num_stages=stages):
                T.copy(A[k, :, :], tile)
                for i, j in T.Parallel(32, 32):
                    last[i, j] = tile[j, i]
            for i, j in T.Parallel(32, 32):
                C[bx, i, j] = tile[j, i] + last[i, j]
        else:
            for k in T.Pipelined(5, num_stages=stages):
                if form == "a tile in parts":
                    T.fill(tile, 7)
                    T.copy(A[k, :, 0:16], tile[:, 0:16])
                    T.copy(A[k, :, 16:24], tile[:, 16:24])
                else:
                    T.copy(A[k, :, :], tile)
                    for i, j in T.Parallel(32, 32):
                        tile[i, j] = tile[i, j] * 2 + 1
                for i, j in T.Parallel(32, 32):
                    C[k, i, j] = tile[j, i]


@pipelined(
    parameters={
        "extents": [
            (40, 72, 88), (32, 64, 16), (32, 64, 32), (32, 64, 112), (40, 30, 90), (40, 33, 45),
        ],
        "stages": STAGES,
        "schedule": [
            None,
            ([0, 1, 2], [0, 0, 2]),  # copies first
            ([1, 2, 0], [0, 0, 1]),  # the product first
            ([1, 2, 0], [0, 0, 2]),  # the product first, two ahead
            ([0, 1, 2], [0, 1, 3]),  # copies of two stages
            ([2, 0, 1], [0, 1, 3]),  # copies around the product
            ([0, 1, 2], [0, 1, 1]),  # one copy does not run ahead
        ],
    },
    examples=[
        {},
        {"extents": (40, 30, 90)},
        {"extents": (40, 33, 45)},
        {"extents": (32, 64, 16)},
        {"extents": (32, 64, 112), "schedule": ([0, 1, 2], [0, 0, 2])},
    ],
    drawn=12,
    fast=["metal", "sm_80"],
)  # fmt: skip
def pipeline_of_products(A: float16[M, K], B: float16[K, N], C: float32[M, N]):
    """Products take one, two or seven steps, over edges, of rows that no vector or word aligns."""
    M, N, K = extents
    order, stage, count = (None, None, stages) if schedule is None else (*schedule, 0)
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=64) as (bx, by):
        A_s, B_s = T.alloc_shared((32, 16), "float16"), T.alloc_shared((16, 32), "float16")
        total = T.alloc_fragment((32, 32), "float32")
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(K, 16), order=order, stage=stage, num_stages=count):
            T.copy(A[by * 32, k * 16], A_s)
            T.copy(B[k * 16, bx * 32], B_s)
            T.gemm(A_s, B_s, total)
        T.copy(total, C[by * 32, bx * 32])


@pipelined(
    parameters={"form": ["a mask", "rows of a group", "conversions and scales"], "stages": STAGES},
    examples="form",
    inputs={"mask": [[1, 0, 1, 1, 0, 0, 1], [0] * 7, [1] * 7, [0] * 6 + [1]], "first": [0, 20, 60]},
    drawn=6,
    fast=["sm_80", "sm_90a"],
)
def pipeline_of_operands(
    A: float16[96, 112],
    B: float16[3, 112, 32],
    W: int8[32, 64],
    scales: float16[4, 32],
    mask: int32[4, 7],
    first: int32[3],
    C: float32[4, 32, 32],
):
    """Blocks that a mask leaves out; rows that variables name which are stored again and again."""
    with T.Kernel(4 if form == "a mask" else 3 if "group" in form else 1, threads=64) as bx:
        a, b = T.alloc_shared((32, 16), "float16"), T.alloc_shared((16, 32), "float16")
        w, factors = T.alloc_shared((32, 16), "float16"), T.alloc_shared((32,), "float16")
        part, total = T.alloc_fragment((32, 32), "float32"), T.alloc_fragment((32, 32), "float32")
        if form == "a mask":
            T.clear(total)
            for k in T.Pipelined(7, num_stages=stages):
                if mask[bx, k] != 0:
                    at = k * 16
                    T.copy(A[0, at], a)
                    T.copy(B[0, at, 0], b)
                    T.gemm(a, b, total)
        elif form == "rows of a group":
            group = T.alloc_var("int32", 0)
            for i in T.serial(3):
                group = T.if_then_else(bx >= i, i, group)
            row = first[group]
            T.clear(total)
            for k in T.Pipelined(4, num_stages=stages):
                T.copy(A[row : row + 32, k * 16 : (k + 1) * 16], a)
                T.copy(B[group, k * 16 : (k + 1) * 16, 0:32], b)
                T.gemm(a, b, total)
        else:
            T.clear(total)
            for k in T.Pipelined(4, num_stages=stages):
                T.copy(A[0, k * 16], a)
                T.copy(W[0, k * 16], w)  # converted on the way
                T.copy(scales[k, :], factors)
                T.clear(part)
                T.gemm(a, w, part, transpose_B=True)
                for i, j in T.Parallel(32, 32):
                    total[i, j] += part[i, j] * factors[i]
        T.copy(total, C[bx, :, :])


# Rows, most of which run as they are written -----------------------------------------------------

SCHEDULES = {
    "a consumer first": ([0, 1], [1, 0]),
    "a copy in its stage first": ([1, 0], [0, 0]),
    "a name of another stage": ([0, 1, 2], [0, 0, 1]),
}
WHOLE = ["an alternative", "kept from before", "copied in part", "left"]
SUMMED = ["trips of the call", "the bound changes", "a pipeline in it", "used behind it"]
SUMMED += ["filled again", "pipelined again"]
OTHERS = ["into a fragment", "a name", "tiles of its own", "two consumers", "the tensor written"]
OTHERS += ["another tensor written"]


@pipelined(
    parameters={"form": [*SUMMED, *WHOLE, *SCHEDULES, *OTHERS], "stages": [3, 2, 0, 4]},
    examples="form",
    sizes=lambda p: [{"n": n} for n in (5, 1, 2)] if p.form == "trips of the call" else [{}, {}],
    inputs={"counts": [0, 1, 2, 5]},
    drawn=24,
    fast=["metal"],
)
def pipeline_of_rows(
    A: float32[n if form == "trips of the call" else 8, 64],
    B: float32[12, 64],
    counts: int32[4],
    C: float32[8, 64],
):
    with T.Kernel(4 if form == "the bound changes" else 1, threads=64) as bx:
        tile, other = T.alloc_shared((64,), "float32"), T.alloc_shared((64,), "float32")
        own, total = T.alloc_fragment((64,), "float32"), T.alloc_fragment((64,), "float32")
        if form in SUMMED:
            T.clear(total)
        if form in WHOLE:
            T.fill(tile, 9)
            for k in T.Pipelined(6, num_stages=stages):
                if form == "an alternative":
                    if k % 2 == 0:
                        T.copy(A[k, :], tile)
                    else:
                        T.fill(tile, 3)
                elif form == "kept from before":
                    if k % 3 == 1:
                        T.copy(A[k, :], tile)
                elif form == "copied in part":
                    T.copy(A[k, 0:32], tile[0:32])
                else:
                    T.copy(A[k, :], tile)
                    if k == 4:
                        break
                T.copy(tile, C[k, :])
                if form == "copied in part":
                    T.fill(tile, k)
        elif form in SCHEDULES:
            for k in T.Pipelined(6, order=SCHEDULES[form][0], stage=SCHEDULES[form][1]):
                T.copy(A[k, :], tile)
                if form == "a name of another stage":
                    first = tile[0]
                for i in T.Parallel(64):
                    C[k, i] = tile[i] - first if "name" in form else tile[i] * (k + 1)
        elif form == "trips of the call":
            for k in T.Pipelined(n, num_stages=stages):
                T.copy(A[k, :], tile)
                for i in T.Parallel(64):
                    total[i] = total[i] * 2 + tile[63 - i]
        elif form == "the bound changes":  # it is read once, before the loop
            limit = counts[bx]
            for k in T.Pipelined(limit, num_stages=stages):
                T.copy(A[k, :], tile)
                for i in T.Parallel(64):
                    total[i] += tile[i] * (k + 1)
                if k == 1:
                    counts[bx] = 8
        elif form == "a pipeline in it":
            for k in T.Pipelined(4, num_stages=stages):
                T.copy(A[k, :], tile)
                for j in T.Pipelined(3, num_stages=3):
                    T.copy(B[k * 3 + j, :], other)
                    for i in T.Parallel(64):
                        total[i] = total[i] * 2 + tile[63 - i] * other[i ^ 1]
        elif form in ("used behind it", "filled again", "pipelined again"):
            trips = counts[3]
            for k in T.Pipelined(trips, num_stages=2):
                if "again" in form or k % 3 == 1:
                    T.copy(A[k, :], tile)
                    for i in T.Parallel(64):
                        total[i] += tile[i]
            if "again" in form:
                for k in T.Pipelined(3, num_stages=2 if "pipelined" in form else 1):
                    T.copy(A[k, :], tile)
                    for i in T.Parallel(64):
                        total[i] += tile[i] * 2
            else:
                T.copy(tile, C[4, :])
        elif form == "tiles of its own":
            for k in T.Pipelined(5, num_stages=stages):
                new = T.alloc_shared((64,), "float32")
                factor = T.alloc_var("float32", 2)
                T.copy(A[k, :], new)
                factor += k
                for i in T.Parallel(64):
                    C[k, i] = new[i] * factor
        else:
            for k in T.Pipelined(6, num_stages=stages):
                T.copy(A[k, :], own if "fragment" in form else tile)
                if form == "into a fragment":
                    T.copy(own, C[k, :])
                elif form == "a name":
                    first = tile[0]
                    for i in T.Parallel(64):
                        C[k, i] = tile[i] - first
                elif form == "the tensor written":
                    for i in T.Parallel(64):
                        A[k + 1, i] = A[k + 1, i] * 0.5 + tile[i] * 0.5
                elif form == "another tensor written":
                    T.copy(B[k, :], other)
                    for i in T.Parallel(64):
                        B[k + 1, i] = (B[k + 1, i] + tile[i] - other[i]) * 0.25
                else:
                    for i in T.Parallel(64):
                        C[k, i] = tile[i]
                    for i in T.Parallel(64):
                        other[i] = B[k, i] * 2
                    for i in T.Parallel(64):
                        C[k, i] += other[i]
            if form == "a name":  # of the last iteration, whose number is a constant
                T.copy(tile, C[7, :])
        if form in SUMMED:
            T.copy(total, C[bx, :])


@pipelined(
    parameters={
        "form": ["places that a sum decides", "places that a copy decides", "atomics", "views"],
        "stages": STAGES,
    },
    examples="form",
    inputs={"A": lambda rng, shape: rng.integers(0, 8, shape)},
    drawn=8,
)
def pipeline_of_integers(
    A: int32[8, 64], B: int32[4, 64], C: ("uint32" if form == "views" else "int32")[6, 64]
):
    """A loop can't be pipelined where what is copied depends on what was computed."""
    with T.Kernel(1, threads=64):
        tile, sums = T.alloc_shared((64,), "int32"), T.alloc_shared((64,), "int32")
        other, total = T.alloc_shared((64,), "int32"), T.alloc_fragment((64,), "int32")
        if form == "places that a sum decides":
            where = T.alloc_shared((1,), "int32")
            T.clear(total)
            T.clear(where)
            for _ in T.Pipelined(5, num_stages=stages):
                T.copy(A[where[0], :], tile)
                for i in T.Parallel(64):
                    total[i] = total[i] * 2 + tile[63 - i]
                where[0] = (where[0] + 3) % 8
            T.copy(total, C[0, :])
        elif form == "places that a copy decides":
            T.clear(tile)
            for k in T.Pipelined(6, num_stages=stages):
                row = tile[0]
                T.copy(A[row, :], tile)
                T.copy(tile, C[k, :])
        elif form == "atomics":
            steps = T.alloc_var("int32", 0)
            T.clear(sums)
            for k in T.Pipelined(4, num_stages=stages):
                T.copy(B[k, :], other)
                T.copy(A[k, :], tile)
                for i in T.Parallel(64):
                    T.atomic_add(sums[tile[i]], other[i])
                while steps < k * 3:
                    steps += 1
                for i in T.Parallel(64):
                    C[k, i] = sums[i] + steps
        else:
            square, bits = T.reshape(tile, (8, 8)), T.view(tile, (8, 8), "uint32")
            for k in T.Pipelined(5, num_stages=stages):
                T.copy(A[k, :], tile)
                for i in T.Parallel(8):
                    for v in T.vectorized(8):
                        square[i, v] = square[i, v] + 1
                for i, j in T.Parallel(8, 8):
                    C[k, i * 8 + j] = bits[j, i]


@pipelined(parameters={"stages": STAGES}, fast=["metal", "sm_80"])
def pipeline_of_a_ragged_vector(A: float16[1237], C: float32[512]):
    with T.Kernel(1, threads=64):
        tile, total = T.alloc_shared((512,), "float16"), T.alloc_fragment((512,), "float32")
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(1237, 512), num_stages=stages):
            T.copy(A[k * 512], tile)
            for i in T.Parallel(512):
                total[i] = total[i] * 2 + tile[511 - i]
        T.copy(total, C)


@pipelined(parameters={"stages": STAGES})
def pipeline_of_axes_of_operators(A: float32[5, 8, 16], C: float32[5, 16, 8]):
    """Axes of operators count from the tile's own, and take one of its versions."""
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((8, 16), "float32")
        sums = T.alloc_fragment((8,), "float32")
        turned = T.alloc_fragment((16, 8), "float32")
        totals = T.alloc_fragment((8, 16), "float32")
        for k in T.Pipelined(5, num_stages=stages):
            T.copy(A[k, :, :], tile)
            T.reduce_sum(tile, sums, dim=1)
            T.cumsum(tile, totals, dim=1)
            T.transpose(tile, turned)
            for i, j in T.Parallel(16, 8):
                C[k, i, j] = turned[i, j] + totals[j, i] - sums[j]


@pipelined(
    parameters={"block": [4096, 8192]},
    examples="block",
    targets=["llvm", "metal"],
    expects={"metal": ["threadgroup float4 tile[2048]"]},
    fast=["metal"],
)
def pipeline_of_as_many_as_a_block_has_memory_for(A: float32[4 * block], C: float32[4 * block]):
    """Metal's memory has room for two tiles of 16 KB, or one of 32 KB, whatever is asked for."""
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((block,), "float32")
        for k in T.Pipelined(4, num_stages=4):
            T.copy(A[k * block], tile)
            T.copy(tile, C[k * block])
