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
    """As attention: the second product of what was done last goes on under the next first one.

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
    """As FP8 with scales of blocks: two products in turn; five trips of four stages count on."""
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
    """What one product reads while it is under way is not written for the next one."""
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


# Tiles that threads of the producer compute -------------------------------------------------------

WEIGHTS = {
    "packed, by way of fragments": ("float16", "uint8", "float16", COMPUTING),
    "times scales": ("bfloat16", "int8", "bfloat16", COMPUTING),
    "packed": ("float32", "uint8", "float16", _one("blocks fit on a multiprocessor, each under")),
}


@roles(
    parameters={"form": list(WEIGHTS)},
    examples="form",
    expects=lambda p: WEIGHTS[p.form][3],
    fast=["sm_90a"],
)
def roles_weights_that_are_converted(
    A: given[N, 4 * N], W: weights[N, 4 * N], scales: bfloat16[N], C: float32[N, N]
):
    """Two numbers of four bits a byte, stored where the product reads them; or bytes times a scale."""
    given, weights, held, _ = WEIGHTS[form]
    with T.Kernel(1, threads=128):
        if form != "packed":
            T.annotate_warp_specialize()
        a, w = T.alloc_shared((N, N), held), T.alloc_shared((N, N), held)
        packed = T.alloc_fragment((N, N // 2), "uint8")
        plain = T.alloc_fragment((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[0, k * N], a)
            if form == "times scales":
                for i, j in T.Parallel(N, N):
                    w[i, j] = T.cast(W[i, k * N + j], "bfloat16") * scales[i]
            elif form == "packed":
                for i, j in T.Parallel(N, N):
                    byte = W[i, k * (N // 2) + j // 2]
                    w[i, j] = T.cast(byte >> (j % 2 * 4) & 15, "float16")
            else:
                T.copy(W[0, k * (N // 2)], packed)
                for i, j in T.Parallel(N, N):
                    bits = T.cast(packed[i, j // 2], "int32") >> (j % 2 * 4) & 15
                    plain[i, j] = T.cast(bits - 8, "float16")
                T.copy(plain, w)
            T.gemm(a, w, c, transpose_B=True)
        T.copy(c, C)


@roles(
    parameters={"form": ["rows gathered", "a tile converted before"]},
    examples="form",
    inputs={"rows": lambda rng, shape: np.arange(64) * 37 % 100},
    expects=COMPUTING,
)
def roles_tiles_beside_one_that_is_converted(
    A: float16[100, 3 * N],
    B: float32[3 * N, N],
    D: float16[3 * N, N],
    E: float32[N, N],
    rows: int32[N],
    C: float32[N, N],
):
    """Rows that are gathered and a tile that is copied, or what threads convert before the loop."""
    with T.Kernel(1, threads=128):
        T.annotate_warp_specialize()
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        d = T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        if form == "a tile converted before":
            T.copy(E, a)
        for k in T.Pipelined(3, num_stages=2):
            if form == "rows gathered":
                T.gather_rows(A, a, rows, k * N)
            T.copy(B[k * N, 0], b)
            if form == "rows gathered":
                T.copy(D[k * N, 0], d)
            T.gemm(a, b, c)
            if form == "rows gathered":
                T.gemm(a, d, c)
        T.copy(c, C)


# Tiles around a loop --------------------------------------------------------------------------------

USES = ["none", "written", "read before", "read behind", "tensor written", "from memory"]


@roles(
    parameters={"use": USES, "rows": [64, 8]},
    examples=[*({"use": use} for use in USES), {"rows": 8}],
    inputs={"place": 0},
    expects=lambda p: {
        "sm_90a": [": two roles", ": tma_copy of a: tma" if p.use == "none" else ": copy of a: "]
    },
)
def roles_tile_that_a_loop_only_reads(
    A: float16[rows, N], B: float16[3, N, N], C: float32[rows, N], D: float16[N, N], place: int32[1]
):
    """The producer copies it, unless consumers use it otherwise; also of fewer rows than it has."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.copy(A[place[0] if use == "from memory" else 0, 0], a)
        if use == "written":
            a[0, 0] = a[0, 0] * 2
        if use == "read before":
            T.copy(a, D)
        T.clear(c)
        for k in T.Pipelined(3, num_stages=2):
            T.copy(B[k, 0, 0], b)
            T.gemm(a, b, c)
        if use == "read behind":
            T.copy(a, D)
        if use == "tensor written":
            for i in T.Parallel(rows):
                A[i, 0] = A[i, 0] * 2
        T.copy(c, C[0, 0])


@roles(
    parameters={"columns": [16, 64], "stages": [1, 2]},
    examples=[{}, {"stages": 2}, {"columns": 64, "stages": 2}],
    expects=lambda p: (
        _one("a[0:16] float16 may not begin where its swizzle does")
        if (p.columns, p.stages) == (16, 2)
        else TWO
    ),
)
def roles_rows_of_few_bytes(A: float16[4 * columns], C: float32[columns]):
    """A second copy of the buffer would begin where no tensor map can write."""
    with T.Kernel(1, threads=128):
        T.annotate_warp_specialize()
        a, c = T.alloc_shared((columns,), "float16"), T.alloc_fragment((columns,), "float32")
        T.clear(c)
        for k in T.Pipelined(4, num_stages=stages):
            T.copy(A[k * columns], a)
            for i in T.Parallel(columns):
                c[i] += a[i]
        T.copy(c, C)


# Loops with one role --------------------------------------------------------------------------------

# A tensor map that begins there is an illegal instruction on an H200.
UNALIGNED = _one("float16 may not begin at a multiple of 16 bytes")
USED = _one("a is used outside of the loop too")  # and its copies would not wait for consumers
ONE = {
    "copies behind the product": _one("it depends on the statement in line"),
    # Threads copy what tensor maps don't describe, while tiles come that they could.
    "rows begin anywhere": _one("rows of rows[2, 250] float32 may not begin at multiples of 16"),
    # As parts of stream-K's tiles follow each other.
    "in a while": _one("the loop is inside of a statement that only consumers do"),
    "in a loop that is left": _one("the copies depend on c, which only consumers know"),
    "rows that consumers compute": _one("the copies depend on place, which only consumers know"),
    "a layout": _one("the layout of a[64, 64] float16 is none that a tensor map describes"),
    "used before": USED,
    "used behind": USED,
    "column 8": TWO,
    "column -16": TWO,
    "column 1": UNALIGNED,
    "column -3": UNALIGNED,
    # One by a tensor map and one by threads that gather arrive differently on one mbarrier.
    "filled by different threads": _one("loops fill a by different threads"),
    "unused fragment": _one("nothing copies from global memory into a shared tile"),
    "no tensor map asked for": _one("is no copy that can go on by itself"),
    # As TileOps' convolutions fill the last tiles.
    "copied or stored": _one("is a copy or a loop of threads, by a condition"),
}
BY_ITSELF = ["copies behind the product", "rows begin anywhere", "in a while"]


@roles(
    parameters={"form": list(ONE)},
    examples="form",
    inputs={
        "numbers": lambda rng, shape: (
            [1, 3, 4] + [0] * 61 if form == "in a while" else rng.integers(-1, 66, shape)
        )
    },
    expects=lambda p: ONE[p.form],
)
def one_role(
    A: ("float32" if form in ("unused fragment", "no tensor map asked for") else "float16")[
        4 * N, 6 * N
    ],
    B: float16[6 * N, N],
    rows: float32[2, 250],
    numbers: int32[N],
    C: float32[3, N, N],
):
    with T.Kernel(2 if form == "rows begin anywhere" else 1, threads=128) as bx:
        if form not in (*BY_ITSELF, "in a loop that is left"):
            T.annotate_warp_specialize()
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        row, total = T.alloc_shared((N,), "float32"), T.alloc_shared((N, N), "float32")
        unused, c = T.alloc_fragment((N, N), "float16"), T.alloc_fragment((N, N), "float32")
        T.clear(c)
        if form == "copies behind the product":
            T.copy(B[4 * N, 0], b)
            T.copy(A[0, 0], a)
            for k in T.Pipelined(4, num_stages=2):
                T.gemm(a, b, c)
                T.copy(A[0, k * N], a)
        elif form == "rows begin anywhere":
            for k in T.Pipelined(4, num_stages=2):
                T.copy(rows[bx, k * N], row)
                _multiplied(A, B, a, b, c, k)
                for i, j in T.Parallel(N, N):
                    c[i, j] += row[j]
        elif form == "in a while":
            first, part = T.alloc_var("int32", 0), T.alloc_var("int32", 0)
            while first < 6:
                last = T.min(first + numbers[part], 6)
                T.clear(c)
                for k in T.Pipelined(last - first, num_stages=2):
                    _multiplied(A, B, a, b, c, first + k)
                T.copy(c, C[part, 0, 0])
                first = last
                part += 1
        elif form == "in a loop that is left":
            for turn in T.serial(4):
                for k in T.Pipelined(3, num_stages=2):
                    _multiplied(A, B, a, b, c, k)
                T.copy(c, total)
                if total[0, 0] + turn * 1000 > 500:
                    break
        elif form == "rows that consumers compute":
            place = T.alloc_shared((1,), "int32")
            place[0] = 1
            for turn in T.serial(3):
                for k in T.Pipelined(2, num_stages=2):
                    T.copy(A[place[0] * N, 0], a)
                    T.copy(B[0, 0], b)
                    T.gemm(a, b, c)
                place[0] = place[0] ^ 3
        elif form in ("a layout", "used before", "used behind"):
            if form == "a layout":
                T.annotate_layout({a: T.Layout((N, N), lambda i, j: j * N + i)})
            if form == "used before":
                T.clear(a)
            for k in T.Pipelined(4, num_stages=2):
                _multiplied(A, B, a, b, c, k)
            if form == "used behind":
                T.copy(c, a)
                T.copy(a, c)
        else:
            for k in T.Pipelined(4, num_stages=2):
                if form == "unused fragment":
                    T.copy(A[0, k * N], unused)
                    _grown(c, k)
                elif form == "no tensor map asked for":
                    T.copy(A[0, k * N], a, disable_tma=True)
                    T.gemm(a, a, c)
                elif form == "copied or stored":
                    if k < 3:
                        T.copy(A[0, k * N], a)
                    else:
                        for i, j in T.Parallel(N, N):
                            a[i, j] = T.if_then_else(i < 40, A[i, k * N + j], T.cast(0, "float16"))
                    T.gemm(a, a, c)
                else:
                    T.copy(A[0, k * N + (int(form[7:]) if "column" in form else 0)], a)
                    for i, j in T.Parallel(N, N):
                        c[i, j] += a[i, j]
            if form == "filled by different threads":
                for k in T.Pipelined(2, num_stages=2):
                    T.gather_rows(A, a, numbers, k * N)
                    for i, j in T.Parallel(N, N):
                        c[i, j] += a[i, j]
        if form == "copied or stored":
            for i, j in T.Parallel(N, N):
                total[i, j] = T.if_then_else(i < 60, c[i, j], T.cast(0, "float32"))
            T.copy(total, C[bx, 0, 0])
        elif form != "in a while":
            T.copy(c, C[bx, 0, 0])


@program(
    parameters={"blocks": [2, 20], "stages": [4, 2], "threads": [384, 128]},
    examples=[{}, {"blocks": 20}, {"threads": 128}],
    targets=["sm_90a", "gpu"],
    fast=["sm_90a"],
)
def roles_whose_iterations_are_the_number_of_the_block(
    A: float16[64 * blocks, 80], B: float16[64, 80], rows: int32[64], C: float32[64 * blocks, 64]
):
    """Of two blocks one has an iteration: its stage is no remainder any more."""
    with T.Kernel(1, blocks, threads=threads) as (bx, by):
        a = T.alloc_shared((64, 16), "float16")
        b = T.alloc_shared((64, 16), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.annotate_warp_specialize()
        T.clear(c)
        for k in T.Pipelined(by, num_stages=stages):
            T.copy(A[by * 64, k * 16], a)
            T.gather_rows(B, b, rows, k * 16)
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C[by * 64, 0])
