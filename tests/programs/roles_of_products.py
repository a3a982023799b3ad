"""Loops of two roles with several products: sums between them, and products that are waited for."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs.roles import TWO, N, roles


@roles(
    parameters={
        "shape": [(128, 64, 64), (64, 32, 32), (128, 128, 128), (64, 64, 64)],
        "values": ["float16", "float32", "bfloat16"],
        "stages": [2, 1, 3],
        "masked": [False, True],
        "stays": [False, True],
    },
    examples=[
        {},
        {"masked": True},
        {"masked": True, "stays": True},
        {"values": "float32"},
        {"values": "bfloat16", "shape": (128, 128, 128)},
        {"shape": (64, 32, 32), "stages": 3},
        {"shape": (64, 64, 64), "stages": 1},
    ],
    where=lambda p: (
        (p.shape == (128, 64, 64) or not (p.masked or p.values == "float32")) and not p.stays
    ),
    inputs={
        "mask": [[0, 1, 0, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1], [1] * 5],
        "trips": [5, 0, 1, 4],
    },
    expects=lambda p: {
        "sm_90a": [
            ": two roles",
            "skewed: the second product would need i of the last iteration that was done"
            if p.stays
            else "skewed: its tiles have one buffer copy"
            if p.stages == 1
            else ", skewed",
        ]
    },
    fast=["sm_90a"],
)
def roles_two_products_with_a_sum_between_them(
    Q: held[4, bm, d],
    K: held[5 * bn - 8, d],
    V: values[5 * bn - 8, d],
    mask: int32[4, 5],
    trips: int32[4],
    C: float32[4, bm, d],
):
    """The second product goes on under the first one of the next iteration, as in attention.

    The tile that all iterations read is copied for the next turn while this one has work.
    """
    bm, bn, d = shape
    held = "float16" if values == "float32" else values
    with T.Kernel(1, threads=bm * 2):
        T.annotate_warp_specialize()
        q = T.alloc_shared((bm, d), held)
        k = T.alloc_shared((bn, d), held)
        v = T.alloc_shared((5 * bn if stays else bn, d), held)
        scores = T.alloc_fragment((bm, bn), "float32")
        weights = T.alloc_fragment((bm, bn), held)
        total = T.alloc_fragment((bm,), "float32")
        c = T.alloc_fragment((bm, d), "float32")
        if stays:
            T.copy(V[0, 0], v)
        for turn in T.serial(4):
            T.copy(Q[turn, 0, 0], q)
            T.clear(c)
            T.clear(total)
            for i in T.Pipelined(5 if masked else trips[turn], num_stages=stages):
                if not masked or mask[turn, i] > 0:
                    T.copy(K[i * bn, 0], k)
                    T.gemm(q, k, scores, False, True, T.GemmWarpPolicy.FullRow, True)
                    if masked and not stays:
                        T.copy(V[i * bn, 0], v)
                    for r, s in T.Parallel(bm, bn):
                        scores[r, s] = T.max(T.min(scores[r, s], 2 + i if masked else 2), -2)
                    if not masked:
                        T.reduce_sum(scores, total, dim=1, clear=False)
                    T.copy(scores, weights)
                    for r, s in T.Parallel(bm, d):
                        c[r, s] *= -1
                    if not masked:
                        T.copy(V[i * bn, 0], v)
                    if stays:
                        T.gemm(weights, v[i * bn : i * bn + bn, :], c)
                    else:
                        T.gemm(weights, v, c, policy=T.GemmWarpPolicy.FullRow)
            for r, s in T.Parallel(bm, d):
                c[r, s] += total[r]
            T.copy(c, C[turn, 0, 0])


@roles(
    parameters={"form": ["registers", "with the other operand", "between two products"]},
    examples="form",
    expects=TWO,
)
def roles_rows_of_numbers_beside_tiles(
    A: float16[N, 3 * N], B: float16[3 * N, N], rows: float32[3 * N], C: float32[N, N]
):
    """A row that moves to registers, one that comes with both tiles, one between two products."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        row = T.alloc_shared((N,), "float32")
        own = T.alloc_fragment((N,), "float32")
        part, narrow = T.alloc_fragment((N, N), "float32"), T.alloc_fragment((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        T.clear(own)
        if form == "between two products":
            T.copy(A[0, 0], a)
        for k in T.Pipelined(3, num_stages=2):
            if form != "between two products":
                T.copy(A[0, k * N], a)
            T.copy(B[k * N, 0], b)
            if form == "between two products":
                T.gemm(a, b, part, transpose_B=True, clear_accum=True)
                T.copy(rows[k * N], row)
                for i, j in T.Parallel(N, N):
                    part[i, j] = T.max(T.min(part[i, j], 2), -2) * row[j]
                T.copy(part, narrow)
                T.gemm(narrow, b, c)
            elif form == "registers":
                T.copy(rows[k * N], row)
                T.gemm(a, b, part, clear_accum=True)
                T.copy(row, own)
                for i, j in T.Parallel(N, N):
                    c[i, j] += part[i, j] * own[i]
            else:
                T.copy(rows[k * N], row)
                for i in T.Parallel(N):
                    own[i] = own[i] + row[i] * T.cast(a[i, 3], "float32")
                T.gemm(a, b, c)
        if form == "with the other operand":
            for i, j in T.Parallel(N, N):
                c[i, j] += own[i]
        T.copy(c, C)


# Products that are waited for in their iteration: the next tiles are waited for behind the last one ---


@T.macro
def _scaled(A, B, rows, a, b, row, partial, total, k):
    T.copy(A[0, k * N], a)
    T.copy(B[k * N, 0], b)
    T.copy(rows[k, 0:N], row)
    T.gemm(a, b, partial, clear_accum=True)
    for i, j in T.Parallel(N, N):
        total[i, j] += partial[i, j] * row[i]


@roles(
    parameters={"form": ["dynamic trips", "two loops in one that is left"]},
    examples="form",
    inputs={
        "turns": lambda rng, shape: (
            [[0, 6, 0], [2, 4, 0], [3, 3, 0], [4, 1, 0], [5, 6, 0], [0, 0, 0]]
            if form == "dynamic trips"
            else [[2, 1, 0], [3, 3, 1], [0, 2, 0], [1, 0, 0], [1, 4, 2], [5, 5, 0]]
        )
    },
    expects=TWO,
)
def roles_sums_scaled_in_each_iteration(
    A: float16[N, 6 * N],
    B: float16[6 * N, N],
    rows: float32[6, N],
    turns: int32[6, 3],
    C: float32[6, N, N],
):
    """Trips of both loops, which share their tiles, are known in the kernel only; some have none."""
    with T.Kernel(5 if form == "dynamic trips" else 1, threads=128) as bx:
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        row = T.alloc_shared((N,), "float32")
        partial, c = T.alloc_fragment((N, N), "float32"), T.alloc_fragment((N, N), "float32")
        if form == "dynamic trips":
            T.clear(c)
            for k in T.Pipelined(turns[bx, 0], turns[bx, 1], num_stages=4):
                _scaled(A, B, rows, a, b, row, partial, c, k)
            T.copy(c, C[bx, 0, 0])
        else:
            for turn in T.serial(6):
                if turns[turn, 2] == 1:
                    continue
                T.clear(c)
                for k in T.Pipelined(turns[turn, 0], num_stages=4):
                    _scaled(A, B, rows, a, b, row, partial, c, k)
                for k in T.Pipelined(turns[turn, 1], num_stages=4):
                    _scaled(A, B, rows, a, b, row, partial, c, k)
                T.copy(c, C[turn, 0, 0])
                if turns[turn, 2] == 2:
                    break


@roles(expects=TWO, fast=["sm_90a"])
def roles_parts_that_share_their_partial_sums(
    A: float16[4 * N, 5 * N],
    B: float16[5 * N, 3 * N],
    rows: float32[5, 4 * N],
    C: float32[4 * N, 3 * N],
):
    """Two products take turns, as in FP8 by blocks; five trips of four stages count on."""
    with T.Kernel(4, threads=128) as bx:
        a, b = T.alloc_shared((2 * N, N), "float16"), T.alloc_shared((N, N), "float16")
        row = T.alloc_shared((2 * N,), "float32")
        partial = T.alloc_fragment((N, N), "float32")
        c, d = T.alloc_fragment((N, N), "float32"), T.alloc_fragment((N, N), "float32")
        for i, j in T.Persistent([2, 3], 4, bx):
            T.clear(c)
            T.clear(d)
            for k in T.Pipelined(5, num_stages=4):
                T.copy(A[i * 2 * N, k * N], a)
                T.copy(B[k * N, j * N], b)
                T.copy(rows[k, i * 2 * N : (i + 1) * 2 * N], row)
                for total, first in ((c, 0), (d, N)):
                    T.gemm(a[first : first + N, :], b, partial, clear_accum=True)
                    for m, n in T.Parallel(N, N):
                        total[m, n] += partial[m, n] * row[first + m]
            T.copy(c, C[i * 2 * N, j * N])
            T.copy(d, C[i * 2 * N + N, j * N])


@roles(parameters={"steps": [5, 1, 2]}, examples=[{}, {"steps": 1}], expects=TWO)
def roles_a_small_tile_between_two_uses_of_a_large_one(
    A: float16[N, N], B: float16[steps * N, N], rows: float32[steps, N], total: float32[N, N]
):
    """Sums of `(A B[i]^T * rows[i]) B[i]`: the rows come and go with B, by one mbarrier."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        row = T.alloc_shared((N,), "float32")
        x, y = T.alloc_fragment((N, N), "float32"), T.alloc_fragment((N, N), "float16")
        added = T.alloc_fragment((N, N), "float32")
        T.copy(A, a)
        T.clear(added)
        for i in T.Pipelined(steps, num_stages=2):
            T.copy(B[i * N, 0], b)
            T.copy(rows[i, 0], row)
            T.gemm(a, b, x, transpose_B=True, clear_accum=True)
            for m, n in T.Parallel(N, N):
                x[m, n] *= row[n] / 64
            T.copy(x, y)
            T.gemm(y, b, added)
        T.copy(added, total)


@roles(parameters={"steps": [5, 1, 2]}, examples=[{}, {"steps": 1}], expects=TWO)
def roles_products_that_are_waited_for_apart(
    A: float16[N, N],
    B: float16[steps * N, N],
    C: float16[steps * N, N],
    sums: float32[N, N],
    total: float32[N, N],
):
    """Sums of `max(A B[i]^T, 0) * A C[i]^T`, and of the products of that with B[i]."""
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((N, N), "float16")
        b, c = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        x, y = T.alloc_fragment((N, N), "float32"), T.alloc_fragment((N, N), "float32")
        z = T.alloc_fragment((N, N), "float16")
        kept, added = T.alloc_fragment((N, N), "float32"), T.alloc_fragment((N, N), "float32")
        T.copy(A, a)
        T.clear(kept)
        T.clear(added)
        for i in T.Pipelined(steps, num_stages=2):
            T.copy(B[i * N, 0], b)
            T.copy(C[i * N, 0], c)
            T.gemm(a, b, x, transpose_B=True, clear_accum=True)
            T.gemm(a, c, y, transpose_B=True, clear_accum=True)
            for m, n in T.Parallel(N, N):
                x[m, n] = T.max(x[m, n], 0) / 64
            for m, n in T.Parallel(N, N):
                x[m, n] *= y[m, n]
            T.copy(x, z)
            T.gemm(z, b, added)
            for m, n in T.Parallel(N, N):
                kept[m, n] += x[m, n]
        T.copy(kept, sums)
        T.copy(added, total)


@roles(expects=TWO)
def roles_products_of_the_same_registers(
    A: float16[N, N], B: float16[3 * N, N], sums: float32[N, N], total: float32[N, N]
):
    """Registers that a product reads while it is under way are not written for the next one."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        x = T.alloc_fragment((N, N), "float32")
        z = T.alloc_fragment((N, N), "float16")
        c, d = T.alloc_fragment((N, N), "float32"), T.alloc_fragment((N, N), "float32")
        T.copy(A, a)
        T.clear(c)
        T.clear(d)
        for i in T.Pipelined(3, num_stages=2):
            T.copy(B[i * N, 0], b)
            T.gemm(a, b, x, transpose_B=True, clear_accum=True)
            for m, n in T.Parallel(N, N):
                z[m, n] = T.cast(T.max(x[m, n], 0) / 64, "float16")
            T.gemm(z, b, c)
            T.gemm(z, a, d)
        T.copy(c, sums)
        T.copy(d, total)
