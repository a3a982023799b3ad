"""Loops that a producer and consumers share on Hopper: what may stand in, before and behind them.

Tiles are as large as a warpgroup multiplies. What the compiler decides about a loop is in `expects`.
"""

from __future__ import annotations

from functools import partial

import tvmtile.language as T
from tests.programs import program

N = 64
TWO = {"sm_90a": [": two roles"]}
SKIPPED = {"sm_90a": [", skipped iterations"]}
COMPUTING = {"sm_90a": [", computing producer"]}
HALVES, BFLOATS = ("float16",) * 3, ("bfloat16",) * 3
CONVERTED, BYTES = ("float32", "float16", "float16"), ("float32", "int8", "float16")

roles = partial(program, targets=["llvm", "sm_80", "sm_90a", "gpu"])


def _one(reason):
    """The loop has one role, for a reason."""
    return {"sm_90a": ["Pipelined of k: one role", reason, "not setmaxnreg"]}


# The tiles of an iteration are copied and multiplied.
@T.macro
def _multiplied(A, B, a, b, c, k):
    T.copy(A[0, k * N], a)
    T.copy(B[k * N, 0], b)
    T.gemm(a, b, c)


@T.macro
def _grown(c, number):
    for i, j in T.Parallel(N, N):
        c[i, j] += number


@roles(
    parameters={
        "dtypes": [HALVES, BFLOATS, CONVERTED, BYTES],
        "block": [(64, 64, 64), (64, 64, 48), (64, 64, 80), (64, 256, 32), (64, 128, 64)],
        "warpgroups": [1, 2],
        "steps": [5, 1, 3],
        "stages": [2, 1, 3, 4],
        "rest": [(0, 0, 0), (40, 8, -24), (8, 200, -16)],
        "registers": ["move", "stay"],
    },
    examples=[
        {"stages": 3},
        {"rest": (40, 8, -24)},
        {"steps": 1, "stages": 3},
        {"stages": 1},
        {"block": (64, 128, 64), "warpgroups": 2, "stages": 3},
        {"block": (64, 256, 32), "dtypes": BFLOATS},
        *({"block": (64, 64, rows)} for rows in (48, 80)),
        {"block": (64, 256, 256), "steps": 3, "stages": 3},  # of which a block has room for one
        *(
            {"dtypes": CONVERTED, **other}
            for other in ({"stages": 3}, {"steps": 1}, {"rest": (40, 8, -24)}, {"warpgroups": 2})
        ),
        {"dtypes": BYTES, "steps": 3},
        {"registers": "stay", "warpgroups": 2},
    ],
    where=lambda p: p.block[2] == 256 or p.block[1] * p.block[2] * p.stages <= 64 * 512,
    targets=lambda p: ["llvm", "sm_90a", *(["sm_80", "gpu"] if p.block[2] < 256 else [])],
    expects=lambda p: (
        {"sm_90a": ["registers for consumers: the kernel asks that none move", "not setmaxnreg"]}
        if p.registers == "stay"
        else COMPUTING
        if p.dtypes[0] != p.dtypes[2]
        else TWO
    ),
    fast=["sm_90a"],
)
def roles_product(
    A: dtypes[0][rows, length], B: dtypes[1][length, columns], C: float32[rows, columns]
):
    bm, bn, bk = block[0] * warpgroups, block[1], block[2]
    rows, columns, length = bm + rest[0], bn + rest[1], bk * steps + rest[2]
    with T.Kernel(T.ceildiv(columns, bn), T.ceildiv(rows, bm), threads=128 * warpgroups) as (x, y):
        T.annotate_warp_specialize()
        if registers == "stay":
            T.no_set_max_nreg()
        a, b = T.alloc_shared((bm, bk), dtypes[2]), T.alloc_shared((bk, bn), dtypes[2])
        c = T.alloc_fragment((bm, bn), "float32")
        T.clear(c)
        for k in T.Pipelined(steps, num_stages=stages):
            T.copy(A[y * bm, k * bk], a)
            T.copy(B[k * bk, x * bn], b)
            T.gemm(a, b, c)
        T.copy(c, C[y * bm, x * bn])


MASKED = {
    "all": SKIPPED,
    "by a bound too": SKIPPED,
    "in a branch": SKIPPED,
    "moved rows": SKIPPED,
    "in turns": SKIPPED,
    "something beside": TWO,
    "two branches": TWO,
}


@roles(
    parameters={
        "steps": [9, 4, 1],
        "stages": [4, 1, 2, 3],
        "dtype": ["float16", "float32"],
        "form": [*MASKED, "one of two tiles"],
    },
    examples=[
        {"form": "in turns"},
        {},
        {"steps": 4, "stages": 1},
        {"steps": 1, "stages": 3},
        *(
            {"stages": 2, "form": form}
            for form in MASKED
            if form not in ("all", "moved rows", "in turns")
        ),
        {"stages": 3, "form": "moved rows"},
        *(
            {"steps": 4, "stages": 2, "dtype": "float32", "form": form}
            for form in ("all", "in turns", "one of two tiles")
        ),
    ],
    where=lambda p: p.form == "all" or (p.form in MASKED) == (p.dtype == "float16"),
    inputs={
        "mask": lambda rng, shape: np.concatenate(
            [np.ones((1, steps)), np.zeros((1, steps)), rng.integers(0, 2, (3, steps))]
        ).astype(int)
    },
    expects=lambda p: COMPUTING if p.dtype == "float32" else MASKED[p.form],
    fast=["sm_90a"],
)
def roles_masked(
    A: dtype[5 * N, steps * N], B: float16[steps * N, N], mask: int32[5, steps], C: float32[5, N, N]
):
    """Iterations that a condition leaves out; a product of four stages is in flight over them."""
    with T.Kernel(5, threads=128) as bx:
        T.annotate_warp_specialize()
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        if form == "in turns":  # blocks may have no iteration
            for turn in T.serial(2):
                for k in T.Pipelined(T.min(mask[bx, 0] * (turn + 4), steps), num_stages=stages):
                    if mask[bx, k] > 0:
                        _multiplied(A, B, a, b, c, k)
                _grown(c, turn)
        else:
            for k in T.Pipelined(steps, num_stages=stages):
                if form == "in a branch":
                    if mask[bx, k] > 0:
                        last = mask[bx, 0] * 2 + 1
                        if k < last:
                            _multiplied(A, B, a, b, c, k)
                elif form == "moved rows":  # a guard makes two loops of one
                    if k % 3 == 1:
                        for i, j in T.Parallel(N, N):
                            row = bx * N + i - 1
                            a[i, j] = T.if_then_else(row >= 0, A[row, k * N + j], T.float16(0))
                        T.copy(B[k * N, 0], b)
                        T.gemm(a, b, c)
                elif form == "one of two tiles":
                    T.copy(B[k * N, 0], b)
                    if k % 2 == 0:
                        T.copy(A[0, k * N], a)
                        T.gemm(a, b, c)
                elif mask[bx, k] > 0 or (form == "by a bound too" and (k + 1) % 2 == 0):
                    _multiplied(A, B, a, b, c, k)
                if form == "something beside":
                    _grown(c, 1)
                if form == "two branches":
                    if mask[bx, k] <= 0:
                        _grown(c, 1)
        T.copy(c, C[bx, 0, 0])


@roles(
    parameters={
        "rows": [64, 128],
        "columns": [64, 72],
        "stages": [2, 1, 3],
        "masked": [False, True],
    },
    examples=[
        {"stages": 3},
        {"masked": True},
        {"stages": 1, "rows": 128},
        {"columns": 72, "masked": True},
    ],
    inputs={
        "tokens": lambda rng, shape: rng.integers(-1, 100, shape),
        "kept": [0, 1, 0, 1] + [0] * 28,
    },
    expects={
        "sm_90a": [
            ": two roles",
            "mbarrier_arrive_noinc",
            "cp_async_bulk_tensor",
            "not % 3)",
            "not / 3)",
        ]
    },
    fast=["sm_90a"],
)
def roles_rows_that_threads_gather(
    A: float16[100, 200],
    B: float16[columns, 200],
    tokens: int32[3 * rows],
    kept: int32[32],
    C: float32[3 * rows, columns],
):
    """The producer is a warpgroup; the flags that it decides by, it copies into a tile of its own."""
    with T.Kernel(1, threads=rows * 2):
        named, flags = T.alloc_shared((rows,), "int32"), T.alloc_shared((32,), "int32")
        a, b = T.alloc_shared((rows, N), "float16"), T.alloc_shared((columns, N), "float16")
        c = T.alloc_fragment((rows, columns), "float32")
        T.copy(kept, flags)
        for tile in T.serial(3):
            T.copy(tokens[tile * rows], named)
            T.clear(c)
            for k in T.Pipelined(4, num_stages=stages):
                if not masked or flags[k] > 0:
                    T.gather_rows(A, a, named, k * N)
                    T.copy(B[0, k * N], b)
                    T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[tile * rows, 0])


@roles(
    parameters={"block": [64, 128], "masked": [False, True]},
    examples=[{}, {"block": 128}, {"block": 128, "masked": True}],
    inputs={"bounds": [[0, 2, 3, 4, 5], [6, 5, 3, 1, 6]], "mask": [0, 1, 1, 0, 1, 0]},
    expects=lambda p: SKIPPED if p.masked else TWO,
    fast=["sm_90a"],
)
def roles_dynamic_trips_and_starts(
    A: float16[block, 6 * N],
    B: float16[6 * N, block],
    bounds: int32[2, 5],
    mask: int32[6],
    C: float32[5, block, block],
):
    """One block has no iteration, one ends before it begins; products of 128 are in flight."""
    with T.Kernel(5, threads=128) as bx:
        a, b = T.alloc_shared((block, N), "float16"), T.alloc_shared((N, block), "float16")
        c = T.alloc_fragment((block, block), "float32")
        T.clear(c)
        for k in T.Pipelined(bounds[0, bx], bounds[1, bx], num_stages=3):
            if not masked or mask[k] > 0:
                _multiplied(A, B, a, b, c, k)
        T.copy(c, C[bx, 0, 0])


# The blocks of each, and what `numbers` holds.
LOOPS = {
    "in a branch": (3, [1, 0, 2]),
    "in a loop that is left": (1, [0, 1, 0, 2, 0]),
    "of the call's trips, behind one": (1, [3]),  # which ends before it begins
    "of sums that begin with a tensor": (1, []),
    "of two products, behind one": (1, []),
    "of rows of a group": (5, [0, 1, 3]),  # a variable that is stored several times
    "of a list": (2, [2, -1, 3, 0, 1, 3, -1, -1, 1, 0, 2, 4]),
    "of a list in shared memory": (1, [2, 0, 3, 1, 1, 3, 2, 0]),
    "of a list that both use": (1, [2, 0, 3, 1, 1, 3, 2, 0]),
}


@roles(
    parameters={"form": list(LOOPS), "stages": [2, 3]},
    examples="form",
    sizes=lambda p: [{"n": n} for n in (5, 1, 3)] if "call" in p.form else [{}, {}],
    inputs={"numbers": lambda rng, shape: (LOOPS[form][1] + [0] * 12)[:12]},
    expects=lambda p: SKIPPED if p.form == "of a list" else TWO,
)
def roles_loop(
    A: float16[5 * N, (n if "call" in form else 4) * N],
    B: float16[(n if "call" in form else 8) * N, N],
    start: float32[N, N],
    bias: float32[N],
    numbers: int32[12],
    C: float32[5, N, N],
):
    """Iterations of a list are left out by an entry, by its place in it, or for a whole block."""
    with T.Kernel(LOOPS[form][0], threads=128) as bx:
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        first, turned = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float32")
        row, places = T.alloc_shared((N,), "float32"), T.alloc_shared((12,), "int32")
        c = T.alloc_fragment((N, N), "float32")
        if form == "of sums that begin with a tensor":
            T.copy(bias, row)
            T.clear(turned)
            T.copy(start, c)
        elif form == "of two products, behind one":
            T.copy(A[N, 0], first)
            T.gemm(first, first, c, clear_accum=True)
        else:
            T.clear(c)
        if form == "in a branch":
            if numbers[bx] > 0:
                for k in T.Pipelined(3, num_stages=stages):
                    _multiplied(A, B, a, b, c, k)
        elif form == "in a loop that is left":  # between a copy and the loop, and behind the loop
            for turn in T.serial(5):
                T.copy(A[turn * N, 0], a)
                if numbers[turn] == 1:
                    continue
                for k in T.Pipelined(3, num_stages=stages):
                    T.copy(B[(turn + k) * N, 0], b)
                    T.gemm(a, b, c)
                if numbers[turn] == 2:
                    T.copy(c, C[4, 0, 0])
                    break
                T.copy(c, C[turn, 0, 0])
        elif form == "of rows of a group":
            group = T.alloc_var("int32", 0)
            for i in T.serial(3):
                group = T.if_then_else(bx >= numbers[i], i, group)
            at = (bx - numbers[group]) * N + numbers[group] * N
            for k in T.Pipelined(2, num_stages=stages):
                T.copy(A[at : at + N, k * N : (k + 1) * N], a)
                T.copy(B[(group * 2 + k) * N : (group * 2 + k + 1) * N, 0:N], b)
                T.gemm(a, b, c)
        elif form == "of a list":
            begin = numbers[bx * 6]
            for k in T.Pipelined(5, num_stages=stages):
                entry = numbers[bx * 6 + k]
                last = numbers[bx * 6 + 5]
                if entry >= 0 and k < last:
                    at = entry * N
                    other = at + begin * 0
                    T.copy(A[0, other], a)
                    T.copy(B[at, 0], b)
                    T.gemm(a, b, c)
                    _grown(c, entry + k)
            _grown(c, begin)
        elif "of a list" in form:
            count = T.alloc_var("int32")
            T.copy(numbers, places)
            count = numbers[0] + 3
            for k in T.Pipelined(count, num_stages=stages):
                T.copy(A[places[k] * N, 0], a)
                T.copy(B[0, 0], b)
                T.gemm(a, b, c)
            if form == "of a list that both use":
                for i, j in T.Parallel(N, N):
                    c[i, j] += places[i % 8]
        else:
            if "call" in form:
                for k in T.Pipelined(numbers[0] - 8, num_stages=stages):
                    _multiplied(A, B, a, b, c, k)
            for k in T.Pipelined(n if "call" in form else 3, num_stages=stages):
                _multiplied(A, B, a, b, c, k)
                if form == "of two products, behind one":
                    T.gemm(first, b, c)
        if form == "of sums that begin with a tensor":
            for i, j in T.Parallel(N, N):
                turned[j, i] += T.max(c[i, j] + row[j], 0)
            T.copy(turned, C[0, 0, 0])
        elif form != "in a loop that is left":
            T.copy(c, C[bx, 0, 0])


@T.macro
def _multiplied_of_a_batch(A, B, a, b, c, batch, i, j, k):
    T.copy(A[batch, i * N, k * N], a)
    T.copy(B[batch, k * N, j * N], b)
    T.gemm(a, b, c)


@roles(
    parameters={
        "first": [3, 1, 2],
        "second": ["none", "i + 1", "the same tiles in parts", "converted"],
        "masked": [False, True],
    },
    examples=[
        {"second": "none"},
        {"second": "i + 1", "masked": True},
        {"second": "i + 1", "first": 1},
        {"second": "the same tiles in parts", "first": 2},
        {"second": "converted"},
    ],
    where=lambda p: not p.masked or p.second == "i + 1",
    inputs={"mask": [[[0, 1, 0], [1, 0, 1]], [[0, 0, 0], [1, 1, 1]]]},
    expects=lambda p: COMPUTING if p.second == "converted" else SKIPPED if p.masked else TWO,
    fast=["sm_90a"],
)
def roles_loops_in_persistent_and_serial_loops(
    A: ("float32" if second == "converted" else "float16")[2, 2 * N, 5 * N],
    B: float16[2, 5 * N, 3 * N],
    mask: int32[2, 2, 3],
    C: float32[2, 2 * N, 3 * N],
):
    """Phases go on from one tile to the next, and from one loop to the other."""
    with T.Kernel(4, threads=128) as bx:
        T.annotate_warp_specialize()
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        d, e = T.alloc_shared((N, 32), "float16"), T.alloc_shared((32, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        for batch in T.serial(2):
            for i, j in T.Persistent([2, 3], 4, bx):
                T.clear(c)
                for k in T.Pipelined(first, num_stages=2):
                    if not masked or mask[batch, i, k] > 0:
                        _multiplied_of_a_batch(A, B, a, b, c, batch, i, j, k)
                if second != "none":
                    for r, s in T.Parallel(N, N):
                        c[r, s] *= 2
                if second == "i + 1":
                    for k in T.Pipelined(first, first + i + 1, num_stages=2):
                        _multiplied_of_a_batch(A, B, a, b, c, batch, i, j, k)
                elif second == "converted":
                    for k in T.Pipelined(first, 5, num_stages=2):
                        for r, s in T.Parallel(N, N):
                            a[r, s] = A[batch, i * N + r, k * N + s] + 1
                        T.copy(B[batch, k * N, j * N], b)
                        T.gemm(a, b, c)
                elif second == "the same tiles in parts":
                    for k in T.Pipelined(3, num_stages=3):
                        _multiplied_of_a_batch(A, B, d, e, c, batch, i, j, k)
                        T.gemm(d, e, c)
                T.copy(c, C[batch, i * N, j * N])


@roles(expects=TWO)
def roles_one_iteration_of_whole_rows(X: bfloat16[N], W: bfloat16[N, 512], P: float32[512]):
    """The only tile is all of its tensor: a copy of one run of bytes has to arrive too."""
    with T.Kernel(2, threads=256) as bx:
        T.annotate_warp_specialize()
        w, x = T.alloc_shared((N, 256), "bfloat16"), T.alloc_shared((N,), "bfloat16")
        total = T.alloc_fragment((256,), "float32")
        T.clear(total)
        for k in T.Pipelined(1, num_stages=1):
            T.copy(W[k * N, bx * 256], w)
            T.copy(X[k * N], x)
            for j in T.Parallel(256):
                for i in T.serial(N):
                    total[j] += T.cast(w[i, j], "float32") * T.cast(x[i], "float32")
        T.copy(total, P[bx * 256])
