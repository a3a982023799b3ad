"""Loops around reductions and nests: what is moved behind them, shared out or written out."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

METAL_LOOP = '_Pragma("clang loop unroll(full)")'
SUMS_OF_SUMS = [
    "scaled total",
    "into the total",
    "cleared by hand",
    "absolute values",
    "under a condition",
    "read behind an inner loop",
    "largest",
    "largest of absolute values",
]
OTHER_SUMS = [
    "maximum",
    "division",
    "comparison",
    "constant",
    "product of both",
    "written out",
    "read by rows",
    "total is read",
]


@T.macro
def _add(part, total, scale):
    for i in T.Parallel(16):
        total[i] = total[i] * scale[i] + part[i]


@program(
    parameters={
        "form": SUMS_OF_SUMS + OTHER_SUMS,
        "dtype": ["float32", "int32"],
        "threads": [64, 32, 128],
        "start": [5, 0],
    },
    where=lambda p: p.dtype == "float32" or p.form not in ("cleared by hand", "division"),
    examples=[
        {"form": "scaled total", "dtype": "int32"},
        *({"form": form} for form in SUMS_OF_SUMS),
        *({"form": form} for form in OTHER_SUMS),
    ],
    fast=["metal"],
)
def sums_of_rows_in_a_loop(A: dtype[3, 16, 32], S: dtype[3, 16], C: dtype[2, 16]):
    """Sums of which the loop only takes sums are exchanged behind it, all others in it."""
    with T.Kernel(1, threads=threads):
        x = T.alloc_fragment((16, 32), dtype)
        scale = T.alloc_fragment((16,), dtype)
        part = T.alloc_fragment((16,), dtype)
        total = T.alloc_fragment((16,), dtype)
        T.fill(total, start)
        for k in T.serial(3):
            T.copy(A[k, 0, 0], x)
            T.copy(S[k, 0], scale)
            if form == "into the total":
                for i in T.Parallel(16):
                    total[i] *= scale[i]
                T.reduce_sum(x, total, dim=1, clear=False)
            elif form == "cleared by hand":
                T.clear(part)
                T.reduce_sum(x, part, dim=1, clear=False)
                for i in T.Parallel(16):
                    total[i] = total[i] * scale[i] - 2 * part[i] / (T.abs(scale[i]) + 1.0)
            elif form == "absolute values":
                T.reduce_abssum(x, part, dim=1)
                _add(part, total, scale)
            elif form == "largest":
                T.reduce_max(x, total, dim=1, clear=False)
            elif form == "largest of absolute values":
                T.reduce_absmax(x, total, dim=1, clear=False)
            elif form == "under a condition":
                if k < 2:
                    T.reduce_sum(x, part, dim=1)
                    _add(part, total, scale)
            elif form == "read behind an inner loop":
                for _ in T.serial(2):
                    T.copy(A[k, 0, 0], x)
                    T.reduce_sum(x, part, dim=1)
                    for i in T.Parallel(16):
                        total[i] = total[i] * 2 + part[i]
                for i in T.Parallel(16):
                    total[i] = T.max(total[i], scale[i])
            else:
                T.reduce_sum(x, part, dim=1)
                for i in T.Parallel(16):
                    if form == "maximum":
                        part[i] = T.max(part[i], 0)
                    elif form == "division":
                        total[i] = total[i] / T.max(T.abs(part[i]), 1)
                    elif form == "comparison":
                        total[i] = T.if_then_else(part[i] > 0, total[i], 0)
                    elif form == "constant":
                        part[i] = part[i] + 1
                    elif form == "product of both":
                        total[i] = total[i] * part[i]
                if form == "written out":
                    if k == 0:
                        T.copy(part, C[1, 0])
                elif form == "read by rows":
                    for i, j in T.Parallel(16, 32):
                        x[i, j] = x[i, j] + part[i]
                elif form == "total is read":
                    if k == 1:
                        T.copy(total, C[1, 0])
                _add(part, total, scale)
        T.copy(total, C[0, 0])


@program(
    parameters={"around": ["no iterations", "while", "break", "continue"]},
    examples="around",
    inputs={"n": 1},
)
def sums_in_a_loop_in_a_loop(A: float32[3, 16, 32], C: float32[2, 16], n: T.int32):
    """The outer loop reads or changes the total, is left between sums, or sums nothing at all."""
    with T.Kernel(1, threads=64):
        x = T.alloc_fragment((16, 32), "float32")
        total = T.alloc_fragment((16,), "float32")
        T.clear(total)
        if around == "no iterations":
            for turn in T.serial(2):
                for k in T.serial((1 - turn) * n):
                    T.copy(A[k, 0, 0], x)
                    T.reduce_sum(x, total, dim=1)
                for i in T.Parallel(16):
                    total[i] = T.max(total[i], 1) + 1
        elif around == "while":
            left = T.alloc_var("int32", 2)
            while left > 0:
                T.copy(total, C[left - 1, 0])
                for k in T.serial(3):
                    T.copy(A[k, 0, 0], x)
                    T.reduce_sum(x, total, dim=1, clear=False)
                left -= 1
        else:
            for step in T.serial(3):
                for k in T.serial(3):
                    T.copy(A[k, 0, 0], x)
                    T.reduce_sum(x, total, dim=1, clear=False)
                if step >= n:
                    if around == "break":
                        break
                    else:  # noqa: RET508 (a parameter decides it)
                        continue
                T.reduce_sum(x, total, dim=1, clear=False)
                T.copy(total, C[1, 0])
        T.copy(total, C[0, 0])


@program(parameters={"is_alone": [False, True]})
def sums_with_nothing_to_move(A: float32[3, 64, 8], C: float32[64]):
    """The sum is in no loop, or a thread holds a row alone."""
    with T.Kernel(1, threads=64):
        x = T.alloc_fragment((64, 8), "float32")
        total = T.alloc_fragment((64,), "float32")
        T.clear(total)
        if is_alone:
            T.annotate_layout({x: T.Fragment((64, 8), forward_thread_fn=lambda i, j: i)})
            for k in T.serial(3):
                T.copy(A[k, 0, 0], x)
                T.reduce_sum(x, total, dim=1, clear=False)
        else:
            T.copy(A[1, 0, 0], x)
            T.reduce_sum(x, total, dim=1)
        T.copy(total, C)


@program(
    parameters={"columns": [16, 4, 10]},
    examples="columns",
    expects=lambda p: {
        "sm_90a": {16: ["float sums_ptr[1]"], 4: ["float sums_ptr[4]"]}.get(p.columns, [])
    },
    fast=["sm_90a"],
)
def sums_that_threads_share_out(A: float32[3, 24, columns], C: float32[3]):
    """Threads share out more than a few sums, and then all read all of them."""
    with T.Kernel(3, threads=64) as bx:
        sums = T.alloc_fragment((columns,), "float32")
        T.clear(sums)
        for k in T.serial(24):
            for i in T.Parallel(columns):
                sums[i] += A[bx, k, i]
        for i in T.Parallel(columns):
            sums[i] = sums[i] * 2.0
        largest = T.alloc_local((1,), "float32")
        largest[0] = sums[0]
        total = T.alloc_local((1,), "float32")
        total[0] = sums[0]
        for i in T.serial(1, columns):
            largest[0] = T.max(largest[0], sums[i])
            total[0] += sums[i]
        C[bx] = largest[0] - total[0]


@program(
    parameters={"why": ["written again", "beside another"]},
    examples="why",
    expects={"metal": ["not sums_whole"], "sm_90a": ["not sums_whole"]},
)
def sums_that_stay_whole(A: float32[32, 16], C: float32[32]):
    """Sums that are written again once read, or lie where another fragment lies, stay whole."""
    with T.Kernel(1, threads=64):
        sums = T.alloc_fragment((16,), "float32")
        terms = T.alloc_fragment((16,), "float32")
        T.clear(sums)
        T.copy(A[1, 0], terms)
        for k in T.serial(32):
            for i in T.Parallel(16):
                sums[i] += terms[i] if why == "beside another" else A[k, i]
            if why == "written again":
                C[k] = sums[0] * sums[15]
        if why == "beside another":
            C[0] = sums[0] * sums[15]


@program(
    parameters={"rest": [6, "any", 0]},
    examples="rest",
    sizes=lambda p: [{}] if p.rest != "any" else [{"m": 70, "n": 45}, {"m": 64, "n": 64}],
    expects=lambda p: {
        target: [("not " if p.rest != "any" else "") + text]
        for target, text in {"metal": METAL_LOOP, "sm_80": "#pragma unroll"}.items()
    },
)
def nests_under_guards(
    A: T.Tensor((64 + rest, 64 - rest) if rest != "any" else (m, n), "float16"),
    C: T.Tensor((64 + rest, 64 - rest) if rest != "any" else (m, n), "float16"),
):
    """Nests of extents that a call gives are loops, those of known extents are written out."""
    rows, columns = (64 + rest, 64 - rest) if rest != "any" else (m, n)
    with T.Kernel(T.ceildiv(columns, 32), T.ceildiv(rows, 32), threads=32) as (bx, by):
        tile = T.alloc_shared((32, 32), "float16")
        own = T.alloc_fragment((32, 32), "float16")
        T.copy(A[by * 32, bx * 32], tile)
        for i, j in T.Parallel(32, 32):
            own[i, j] = tile[i, j] * 2
        T.copy(own, C[by * 32, bx * 32])


@program(
    inputs={"row": 5}, expects={"metal": [f"not {METAL_LOOP}"], "sm_80": ["not #pragma unroll"]}
)
def nest_under_one_guard(A: float32[8, 1024], C: float32[1024], row: T.int32):
    """One guard is the same for the whole nest, which is written out."""
    with T.Kernel(1, threads=32):
        own = T.alloc_fragment((1024,), "float32")
        for i in T.Parallel(1024):
            own[i] = T.if_then_else(row < 8, A[row, i], 0.0)
        T.copy(own, C)


@program(sizes=[{"n": 1500}, {"n": 7}])
def atomic_updates_under_guards(A: int32[n], C: int32[n]):
    with T.Kernel(T.ceildiv(n, 1024), threads=32) as bx:
        for i in T.Parallel(1024):
            if bx * 1024 + i < n:
                T.atomic_add(C[bx * 1024 + i], A[bx * 1024 + i])


@program(
    parameters={"first": [-7, 0, 2], "divisor": [3, 5, 6], "trips": [4, 0, 1, 7]},
    examples=[{}, {"first": 2, "divisor": 6, "trips": 7}],
    inputs={"n": lambda rng, shape: trips},
    fast=["sm_80"],
)
def remainders_of_counts(C: int32[3, 8, 3], n: T.int32):
    """Counts go on, as a ring's places do, in a loop that begins where another one has ended."""
    with T.Kernel(1, threads=32):
        done = T.alloc_local((1,), "int32")
        done[0] = first
        for turn in T.serial(3):
            for k in T.serial(n):
                C[turn, k, 0] = (done[0] + k) % divisor
                C[turn, k, 1] = (done[0] + k) // divisor % 2
                C[turn, k, 2] = (k - 1 + done[0]) % divisor
            done[0] = done[0] + n
