"""Loops that a producer and consumers share on Hopper: what may stand in, before and behind them.

Tiles are as large as a warpgroup multiplies. What the compiler decides about a loop is in `expects`.
"""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

N = 64
TARGETS = ["llvm", "sm_80", "sm_90a", "gpu"]
TAGS = {"roles", "pipelined"}
TWO = {"sm_90a": [": two roles"]}
SKIPPED = {"sm_90a": [", skipped iterations"]}
COMPUTING = {"sm_90a": [", computing producer"]}


def _one(reason):
    """The loop has one role, for a reason."""
    return {"sm_90a": ["Pipelined of k: one role", reason, "not setmaxnreg"]}


def _computes(p):
    return COMPUTING if p.dtypes[0] != p.dtypes[2] else TWO


@program(
    tags={*TAGS, "gemm"},
    parameters={
        "dtypes": [
            ("float16", "float16", "float16"),
            ("bfloat16", "bfloat16", "bfloat16"),
            ("float32", "float16", "float16"),
            ("float32", "int8", "float16"),
        ],
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
        {"block": (64, 256, 32), "dtypes": ("bfloat16", "bfloat16", "bfloat16")},
        {"block": (64, 64, 48)},
        {"block": (64, 64, 80)},
        {"block": (64, 256, 256), "steps": 3, "stages": 3},  # of which a block has room for one
        {"dtypes": ("float32", "float16", "float16"), "stages": 3},
        {"dtypes": ("float32", "float16", "float16"), "steps": 1},
        {"dtypes": ("float32", "float16", "float16"), "rest": (40, 8, -24)},
        {"dtypes": ("float32", "float16", "float16"), "warpgroups": 2},
        {"dtypes": ("float32", "int8", "float16"), "steps": 3},
        {"registers": "stay", "warpgroups": 2},
    ],
    where=lambda p: p.block[2] == 256 or p.block[1] * p.block[2] * p.stages <= 64 * 512,
    targets=lambda p: ["llvm", "sm_90a"] if p.block[2] == 256 else TARGETS,
    expects=lambda p: (
        _computes(p)
        if p.registers == "move"
        else {
            "sm_90a": ["registers for consumers: the kernel asks that none move", "not setmaxnreg"]
        }
    ),
    fast=["sm_90a"],
)
def roles_product(
    A: T.Tensor((rows, length), dtypes[0]),
    B: T.Tensor((length, columns), dtypes[1]),
    C: T.Tensor((rows, columns), "float32"),
):
    bm, bn, bk = block[0] * warpgroups, block[1], block[2]
    rows, columns, length = bm + rest[0], bn + rest[1], bk * steps + rest[2]
    with T.Kernel(T.ceildiv(columns, bn), T.ceildiv(rows, bm), threads=128 * warpgroups) as (
        bx,
        by,
    ):
        T.annotate_warp_specialize()
        if registers == "stay":
            T.no_set_max_nreg()
        a, b = T.alloc_shared((bm, bk), dtypes[2]), T.alloc_shared((bk, bn), dtypes[2])
        c = T.alloc_fragment((bm, bn), "float32")
        T.clear(c)
        for k in T.Pipelined(steps, num_stages=stages):
            T.copy(A[by * bm, k * bk], a)
            T.copy(B[k * bk, bx * bn], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * bm, bx * bn])


@program(
    tags={*TAGS, "masked"},
    parameters={
        "steps": [9, 4, 1],
        "stages": [4, 1, 2, 3],
        "dtype": ["float16", "float32"],
        "form": ["all", "by a bound too", "something beside", "two branches", "in a branch"],
    },
    examples=[
        {},
        {"steps": 4, "stages": 1},
        {"steps": 1, "stages": 3},
        {"stages": 2, "form": "by a bound too"},
        {"stages": 2, "form": "something beside"},
        {"stages": 2, "form": "two branches"},
        {"stages": 2, "form": "in a branch"},
        {"steps": 4, "stages": 2, "dtype": "float32", "form": "all"},
    ],
    where=lambda p: p.dtype == "float16" or p.form == "all",
    targets=TARGETS,
    inputs={
        "mask": lambda rng, shape: np.concatenate(
            [np.ones((1, steps)), np.zeros((1, steps)), rng.integers(0, 2, (3, steps))]
        ).astype(int),
    },
    expects=lambda p: (
        TWO
        if p.form in ("something beside", "two branches")
        else COMPUTING
        if p.dtype == "float32"
        else SKIPPED
    ),
    fast=["sm_90a"],
)
def roles_masked(
    A: T.Tensor((N, steps * N), dtype),
    B: T.Tensor((steps * N, N), "float16"),
    mask: T.Tensor((5, steps), "int32"),
    C: T.Tensor((5, N, N), "float32"),
):
    """Iterations that a condition leaves out; a product of four stages is in flight over them."""
    with T.Kernel(5, threads=128) as bx:
        T.annotate_warp_specialize()
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        for k in T.Pipelined(steps, num_stages=stages):
            if form == "in a branch":
                if mask[bx, k] > 0:
                    last = mask[bx, 0] * 2 + 1
                    if k < last:
                        T.copy(A[0, k * N], a)
                        T.copy(B[k * N, 0], b)
                        T.gemm(a, b, c)
            elif form == "by a bound too":
                if mask[bx, k] > 0 or (k + 1) % 2 == 0:
                    T.copy(A[0, k * N], a)
                    T.copy(B[k * N, 0], b)
                    T.gemm(a, b, c)
            else:
                if mask[bx, k] > 0:
                    T.copy(A[0, k * N], a)
                    T.copy(B[k * N, 0], b)
                    T.gemm(a, b, c)
            if form == "something beside":
                for i, j in T.Parallel(N, N):
                    c[i, j] += 1
            if form == "two branches":
                if mask[bx, k] <= 0:
                    for i, j in T.Parallel(N, N):
                        c[i, j] += 1
        T.copy(c, C[bx, 0, 0])


@program(
    tags={*TAGS, "masked"},
    parameters={"stages": [2, 3]},
    targets=TARGETS,
    inputs={
        "order": lambda rng, shape: [[2, -1, 3, 0, 1], [-1, -1, 1, 0, 2]],
        "limits": lambda rng, shape: [3, 4],
    },
    expects=SKIPPED,
)
def roles_names_before_a_branch_and_in_it(
    A: T.Tensor((N, 4 * N), "float16"),
    B: T.Tensor((4 * N, N), "float16"),
    order: T.Tensor((2, 5), "int32"),
    limits: T.Tensor((2,), "int32"),
    C: T.Tensor((2, N, N), "float32"),
):
    """An iteration is left out by an entry of a list, by its place in it, or for a whole block."""
    with T.Kernel(2, threads=128) as bx:
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        first = order[bx, 0]
        for k in T.Pipelined(5, num_stages=stages):
            place = order[bx, k]
            last = limits[bx]
            if place >= 0 and k < last:
                at = place * N
                other = at + first * 0
                T.copy(A[0, other], a)
                T.copy(B[at, 0], b)
                T.gemm(a, b, c)
                for i, j in T.Parallel(N, N):
                    c[i, j] += place + k
        for i, j in T.Parallel(N, N):
            c[i, j] += first
        T.copy(c, C[bx, 0, 0])


@program(
    tags=TAGS,
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
    targets=TARGETS,
    inputs={
        "tokens": lambda rng, shape: rng.integers(-1, 100, shape),
        "kept": lambda rng, shape: [0, 1, 0, 1] + [0] * 28,
    },
    expects={"sm_90a": [": two roles", "mbarrier_arrive_noinc", "cp_async_bulk_tensor"]},
    fast=["sm_90a"],
)
def roles_rows_that_threads_gather(
    A: T.Tensor((100, 200), "float16"),
    B: T.Tensor((columns, 200), "float16"),
    tokens: T.Tensor((3 * rows,), "int32"),
    kept: T.Tensor((32,), "int32"),
    C: T.Tensor((3 * rows, columns), "float32"),
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
                if masked:
                    if flags[k] > 0:
                        T.gather_rows(A, a, named, k * N)
                        T.copy(B[0, k * N], b)
                        T.gemm(a, b, c, transpose_B=True)
                else:
                    T.gather_rows(A, a, named, k * N)
                    T.copy(B[0, k * N], b)
                    T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[tile * rows, 0])


@program(tags=TAGS, targets=TARGETS, expects=TWO)
def roles_sums_that_begin_with_a_tensor(
    A: T.Tensor((N, 3 * N), "float16"),
    B: T.Tensor((3 * N, N), "float16"),
    first: T.Tensor((N, N), "float32"),
    bias: T.Tensor((N,), "float32"),
    C: T.Tensor((N, N), "float32"),
):
    """And a row of biases, and a scratch tile that threads clear."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        row = T.alloc_shared((N,), "float32")
        turned = T.alloc_shared((N, N), "float32")
        c = T.alloc_fragment((N, N), "float32")
        T.copy(bias, row)
        T.clear(turned)
        T.copy(first, c)
        for k in T.Pipelined(3, num_stages=2):
            T.copy(A[0, k * N], a)
            T.copy(B[k * N, 0], b)
            T.gemm(a, b, c)
        for i, j in T.Parallel(N, N):
            turned[j, i] += T.max(c[i, j] + row[j], 0)
        T.copy(turned, C)


@program(
    tags=TAGS,
    parameters={"block": [64, 128], "masked": [False, True]},
    examples=[{}, {"block": 128}, {"block": 128, "masked": True}],
    targets=TARGETS,
    inputs={
        "starts": lambda rng, shape: [0, 2, 3, 4, 5],
        "ends": lambda rng, shape: [6, 5, 3, 1, 6],
        "mask": lambda rng, shape: [0, 1, 1, 0, 1, 0],
    },
    expects=lambda p: SKIPPED if p.masked else TWO,
    fast=["sm_90a"],
)
def roles_dynamic_trips_and_starts(
    A: T.Tensor((block, 6 * N), "float16"),
    B: T.Tensor((6 * N, block), "float16"),
    starts: T.Tensor((5,), "int32"),
    ends: T.Tensor((5,), "int32"),
    mask: T.Tensor((6,), "int32"),
    C: T.Tensor((5, block, block), "float32"),
):
    """One block has no iteration, one ends before it begins; products of 128 are in flight."""
    with T.Kernel(5, threads=128) as bx:
        a, b = T.alloc_shared((block, N), "float16"), T.alloc_shared((N, block), "float16")
        c = T.alloc_fragment((block, block), "float32")
        T.clear(c)
        for k in T.Pipelined(starts[bx], ends[bx], num_stages=3):
            if masked:
                if mask[k] > 0:
                    T.copy(A[0, k * N], a)
                    T.copy(B[k * N, 0], b)
                    T.gemm(a, b, c)
            else:
                T.copy(A[0, k * N], a)
                T.copy(B[k * N, 0], b)
                T.gemm(a, b, c)
        T.copy(c, C[bx, 0, 0])


@program(
    tags=TAGS,
    sizes=[{"n": 5}, {"n": 1}, {"n": 3}],
    targets=TARGETS,
    expects=TWO,
)
def roles_trips_of_the_call(
    A: T.Tensor((N, n * N), "float16"),
    B: T.Tensor((n * N, N), "float16"),
    end: T.Tensor((1,), "int32"),
    C: T.Tensor((N, N), "float32"),
):
    """A loop that may end before it begins, and one with the same tiles behind it."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        for k in T.Pipelined(end[0] - 8, num_stages=2):
            T.copy(A[0, k * N], a)
            T.copy(B[k * N, 0], b)
            T.gemm(a, b, c)
        for k in T.Pipelined(n, num_stages=2):
            T.copy(A[0, k * N], a)
            T.copy(B[k * N, 0], b)
            T.gemm(a, b, c)
        T.copy(c, C)


@program(
    tags={*TAGS, "persistent"},
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
    targets=TARGETS,
    inputs={"mask": lambda rng, shape: [[[0, 1, 0], [1, 0, 1]], [[0, 0, 0], [1, 1, 1]]]},
    expects=lambda p: COMPUTING if p.second == "converted" else SKIPPED if p.masked else TWO,
    fast=["sm_90a"],
)
def roles_loops_in_persistent_and_serial_loops(
    A: T.Tensor((2, 2 * N, 5 * N), "float32" if second == "converted" else "float16"),
    B: T.Tensor((2, 5 * N, 3 * N), "float16"),
    mask: T.Tensor((2, 2, 3), "int32"),
    C: T.Tensor((2, 2 * N, 3 * N), "float32"),
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
                    if masked:
                        if mask[batch, i, k] > 0:
                            T.copy(A[batch, i * N, k * N], a)
                            T.copy(B[batch, k * N, j * N], b)
                            T.gemm(a, b, c)
                    else:
                        T.copy(A[batch, i * N, k * N], a)
                        T.copy(B[batch, k * N, j * N], b)
                        T.gemm(a, b, c)
                if second != "none":
                    for r, s in T.Parallel(N, N):
                        c[r, s] *= 2
                if second == "i + 1":
                    for k in T.Pipelined(first, first + i + 1, num_stages=2):
                        T.copy(A[batch, i * N, k * N], a)
                        T.copy(B[batch, k * N, j * N], b)
                        T.gemm(a, b, c)
                elif second == "converted":
                    for k in T.Pipelined(first, 5, num_stages=2):
                        for r, s in T.Parallel(N, N):
                            a[r, s] = A[batch, i * N + r, k * N + s] + 1
                        T.copy(B[batch, k * N, j * N], b)
                        T.gemm(a, b, c)
                elif second == "the same tiles in parts":
                    for k in T.Pipelined(3, num_stages=3):
                        T.copy(A[batch, i * N, k * N], d)
                        T.copy(B[batch, k * N, j * N], e)
                        T.gemm(d, e, c)
                        T.gemm(d, e, c)
                T.copy(c, C[batch, i * N, j * N])


@program(
    tags=TAGS,
    targets=TARGETS,
    inputs={"wanted": lambda rng, shape: [1, 0, 2]},
    expects=TWO,
)
def roles_loop_in_a_branch(
    A: T.Tensor((N, 3 * N), "float16"),
    B: T.Tensor((3 * N, N), "float16"),
    wanted: T.Tensor((3,), "int32"),
    C: T.Tensor((3, N, N), "float32"),
):
    with T.Kernel(3, threads=128) as bx:
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        if wanted[bx] > 0:
            for k in T.Pipelined(3, num_stages=2):
                T.copy(A[0, k * N], a)
                T.copy(B[k * N, 0], b)
                T.gemm(a, b, c)
        T.copy(c, C[bx, 0, 0])


@program(tags=TAGS, targets=TARGETS, expects=TWO)
def roles_two_products_into_one_accumulator(
    D: T.Tensor((N, N), "float16"),
    A: T.Tensor((N, 3 * N), "float16"),
    B: T.Tensor((3 * N, N), "float16"),
    C: T.Tensor((N, N), "float32"),
):
    """One before the loop, of tiles that stay, and two in each iteration."""
    with T.Kernel(1, threads=128):
        d = T.alloc_shared((N, N), "float16")
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.copy(D, d)
        T.gemm(d, d, c, clear_accum=True)
        for k in T.Pipelined(3, num_stages=2):
            T.copy(A[0, k * N], a)
            T.copy(B[k * N, 0], b)
            T.gemm(a, b, c)
            T.gemm(d, b, c)
        T.copy(c, C)


@program(
    tags=TAGS,
    targets=TARGETS,
    inputs={"starts": lambda rng, shape: [0, 1, 3]},
    expects=TWO,
)
def roles_place_of_operands_is_computed(
    A: T.Tensor((5 * N, 2 * N), "float16"),
    B: T.Tensor((3, 2 * N, N), "float16"),
    starts: T.Tensor((3,), "int32"),
    C: T.Tensor((5, N, N), "float32"),
):
    """Where a group's rows begin is a variable that is stored several times."""
    with T.Kernel(5, threads=128) as bx:
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        group = T.alloc_var("int32", 0)
        for i in T.serial(3):
            group = T.if_then_else(bx >= starts[i], i, group)
        row = (bx - starts[group]) * N + starts[group] * N
        T.clear(c)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[row : row + N, k * N : (k + 1) * N], a)
            T.copy(B[group, k * N : (k + 1) * N, 0:N], b)
            T.gemm(a, b, c)
        T.copy(c, C[bx, 0, 0])


@program(
    tags=TAGS,
    parameters={"used_by_both": [False, True]},
    examples=[{}, {"used_by_both": True}],
    targets=TARGETS,
    inputs={"places": lambda rng, shape: [2, 0, 3, 1, 1, 3, 2, 0]},
    expects=TWO,
)
def roles_places_by_way_of_shared_memory(
    A: T.Tensor((4 * N, N), "float16"),
    B: T.Tensor((N, N), "float16"),
    places: T.Tensor((8,), "int32"),
    C: T.Tensor((N, N), "float32"),
):
    with T.Kernel(1, threads=128):
        place = T.alloc_shared((8,), "int32")
        count = T.alloc_var("int32")
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.copy(places, place)
        count = places[0] + 3
        T.clear(c)
        for k in T.Pipelined(count, num_stages=2):
            T.copy(A[place[k] * N, 0], a)
            T.copy(B, b)
            T.gemm(a, b, c)
        if used_by_both:
            for i, j in T.Parallel(N, N):
                c[i, j] += place[i % 8]
        T.copy(c, C)


def _attention(p):
    if p.stages == 1:
        return {"sm_90a": [": two roles", "skewed: its tiles have one buffer copy"]}
    return {"sm_90a": [": two roles", ", skewed"]}


@program(
    tags={*TAGS, "attention"},
    parameters={
        "shape": [(128, 64, 64), (64, 32, 32), (128, 128, 128), (64, 64, 64)],
        "values": ["float16", "float32", "bfloat16"],
        "stages": [2, 1, 3],
        "masked": [False, True],
    },
    examples=[
        {},
        {"masked": True},
        {"values": "float32"},
        {"values": "bfloat16", "shape": (128, 128, 128)},
        {"shape": (64, 32, 32), "stages": 3},
        {"shape": (64, 64, 64), "stages": 1},
    ],
    where=lambda p: p.shape == (128, 64, 64) or not (p.masked or p.values == "float32"),
    targets=TARGETS,
    inputs={
        "mask": lambda rng, shape: [[0, 1, 0, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1], [1] * 5],
        "trips": lambda rng, shape: [5, 0, 1, 4],
    },
    expects=_attention,
    fast=["sm_90a"],
)
def roles_two_products_with_a_sum_between_them(
    Q: T.Tensor((4, shape[0], shape[2]), "float16" if values == "float32" else values),
    K: T.Tensor((5 * shape[1] - 8, shape[2]), "float16" if values == "float32" else values),
    V: T.Tensor((5 * shape[1] - 8, shape[2]), values),
    mask: T.Tensor((4, 5), "int32"),
    trips: T.Tensor((4,), "int32"),
    C: T.Tensor((4, shape[0], shape[2]), "float32"),
):
    """As attention: the second product of what was done last goes on under the next first one.

    The tile that all iterations read is copied for the next turn while this one has work.
    """
    bm, bn, d = shape
    held = "float16" if values == "float32" else values
    with T.Kernel(1, threads=bm * 2):
        T.annotate_warp_specialize()
        q = T.alloc_shared((bm, d), held)
        k, v = T.alloc_shared((bn, d), held), T.alloc_shared((bn, d), held)
        scores = T.alloc_fragment((bm, bn), "float32")
        weights = T.alloc_fragment((bm, bn), held)
        total = T.alloc_fragment((bm,), "float32")
        c = T.alloc_fragment((bm, d), "float32")
        for turn in T.serial(4):
            T.copy(Q[turn, 0, 0], q)
            T.clear(c)
            T.clear(total)
            if masked:
                for i in T.Pipelined(5, num_stages=stages):
                    if mask[turn, i] > 0:
                        T.copy(K[i * bn, 0], k)
                        T.gemm(q, k, scores, False, True, T.GemmWarpPolicy.FullRow, True)
                        T.copy(V[i * bn, 0], v)
                        for r, s in T.Parallel(bm, bn):
                            scores[r, s] = T.max(T.min(scores[r, s], 2 + i), -2)
                        T.copy(scores, weights)
                        for r, s in T.Parallel(bm, d):
                            c[r, s] *= -1
                        T.gemm(weights, v, c, policy=T.GemmWarpPolicy.FullRow)
            else:
                for i in T.Pipelined(trips[turn], num_stages=stages):
                    T.copy(K[i * bn, 0], k)
                    T.gemm(q, k, scores, False, True, T.GemmWarpPolicy.FullRow, True)
                    for r, s in T.Parallel(bm, bn):
                        scores[r, s] = T.max(T.min(scores[r, s], 2), -2)
                    T.reduce_sum(scores, total, dim=1, clear=False)
                    T.copy(scores, weights)
                    for r, s in T.Parallel(bm, d):
                        c[r, s] *= -1
                    T.copy(V[i * bn, 0], v)
                    T.gemm(weights, v, c, policy=T.GemmWarpPolicy.FullRow)
            for r, s in T.Parallel(bm, d):
                c[r, s] += total[r]
            T.copy(c, C[turn, 0, 0])


@program(
    tags=TAGS,
    parameters={"form": ["registers", "with the other operand", "between two products"]},
    examples=[{}, {"form": "with the other operand"}, {"form": "between two products"}],
    targets=TARGETS,
    expects=TWO,
)
def roles_rows_of_numbers_beside_tiles(
    A: T.Tensor((N, 3 * N), "float16"),
    B: T.Tensor((3 * N, N), "float16"),
    rows: T.Tensor((3 * N,), "float32"),
    C: T.Tensor((N, N), "float32"),
):
    """A row that moves to registers, one that comes with both tiles, one between two products."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        row = T.alloc_shared((N,), "float32")
        own = T.alloc_fragment((N,), "float32")
        part = T.alloc_fragment((N, N), "float32")
        narrow = T.alloc_fragment((N, N), "float16")
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


@program(tags=TAGS, targets=TARGETS, expects=TWO)
def roles_one_iteration_of_whole_rows(
    X: T.Tensor((N,), "bfloat16"),
    W: T.Tensor((N, 512), "bfloat16"),
    P: T.Tensor((512,), "float32"),
):
    """The only tile is all of its tensor: a copy of one run of bytes has to arrive too."""
    with T.Kernel(2, threads=256) as bx:
        T.annotate_warp_specialize()
        w = T.alloc_shared((N, 256), "bfloat16")
        x = T.alloc_shared((N,), "bfloat16")
        total = T.alloc_fragment((256,), "float32")
        T.clear(total)
        for k in T.Pipelined(1, num_stages=1):
            T.copy(W[k * N, bx * 256], w)
            T.copy(X[k * N], x)
            for j in T.Parallel(256):
                for i in T.serial(N):
                    total[j] += T.cast(w[i, j], "float32") * T.cast(x[i], "float32")
        T.copy(total, P[bx * 256])


@program(
    tags=TAGS,
    targets=TARGETS,
    inputs={"flags": lambda rng, shape: [0, 1, 0, 2, 0]},
    expects=TWO,
)
def roles_loop_around_that_is_left(
    A: T.Tensor((5, N, N), "float16"),
    B: T.Tensor((5, 3 * N, N), "float16"),
    flags: T.Tensor((5,), "int32"),
    C: T.Tensor((5, N, N), "float32"),
):
    """Both roles leave it: between a copy and the loop that uses it, and behind the loop."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        for turn in T.serial(5):
            T.copy(A[turn, 0, 0], a)
            if flags[turn] == 1:
                continue
            for k in T.Pipelined(3, num_stages=2):
                T.copy(B[turn, k * N, 0], b)
                T.gemm(a, b, c)
            if flags[turn] == 2:
                T.copy(c, C[4, 0, 0])
                break
            T.copy(c, C[turn, 0, 0])


# Products that are waited for in their iteration: the next tiles are waited for behind the last one ---


@T.macro
def _scaled(A, B, rows, a, b, row, partial, total, k):
    T.copy(A[0, k * N], a)
    T.copy(B[k * N, 0], b)
    T.copy(rows[k, 0:N], row)
    T.gemm(a, b, partial, clear_accum=True)
    for i, j in T.Parallel(N, N):
        total[i, j] += partial[i, j] * row[i]


@program(
    tags={*TAGS, "ahead"},
    targets=TARGETS,
    inputs={
        "starts": lambda rng, shape: [0, 2, 3, 4, 5],
        "ends": lambda rng, shape: [6, 4, 3, 1, 6],
    },
    expects=TWO,
)
def roles_sums_scaled_in_each_of_dynamic_trips(
    A: T.Tensor((N, 6 * N), "float16"),
    B: T.Tensor((6 * N, N), "float16"),
    rows: T.Tensor((6, N), "float32"),
    starts: T.Tensor((5,), "int32"),
    ends: T.Tensor((5,), "int32"),
    C: T.Tensor((5, N, N), "float32"),
):
    with T.Kernel(5, threads=128) as bx:
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        row = T.alloc_shared((N,), "float32")
        partial = T.alloc_fragment((N, N), "float32")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        for k in T.Pipelined(starts[bx], ends[bx], num_stages=4):
            _scaled(A, B, rows, a, b, row, partial, c, k)
        T.copy(c, C[bx, 0, 0])


@program(tags={*TAGS, "ahead", "persistent"}, targets=TARGETS, expects=TWO, fast=["sm_90a"])
def roles_parts_that_share_their_partial_sums(
    A: T.Tensor((4 * N, 5 * N), "float16"),
    B: T.Tensor((5 * N, 3 * N), "float16"),
    rows: T.Tensor((5, 4 * N), "float32"),
    C: T.Tensor((4 * N, 3 * N), "float32"),
):
    """As FP8 with scales of blocks: two products in turn; five trips of four stages count on."""
    with T.Kernel(4, threads=128) as bx:
        a, b = T.alloc_shared((2 * N, N), "float16"), T.alloc_shared((N, N), "float16")
        row = T.alloc_shared((2 * N,), "float32")
        partial = T.alloc_fragment((N, N), "float32")
        c = T.alloc_fragment((N, N), "float32")
        d = T.alloc_fragment((N, N), "float32")
        for i, j in T.Persistent([2, 3], 4, bx):
            T.clear(c)
            T.clear(d)
            for k in T.Pipelined(5, num_stages=4):
                T.copy(A[i * 2 * N, k * N], a)
                T.copy(B[k * N, j * N], b)
                T.copy(rows[k, i * 2 * N : (i + 1) * 2 * N], row)
                T.gemm(a[0:N, :], b, partial, clear_accum=True)
                for m, n in T.Parallel(N, N):
                    c[m, n] += partial[m, n] * row[m]
                T.gemm(a[N : 2 * N, :], b, partial, clear_accum=True)
                for m, n in T.Parallel(N, N):
                    d[m, n] += partial[m, n] * row[N + m]
            T.copy(c, C[i * 2 * N, j * N])
            T.copy(d, C[i * 2 * N + N, j * N])


@program(
    tags={*TAGS, "ahead"},
    targets=TARGETS,
    inputs={
        "turns": lambda rng, shape: [
            [2, 1, 0], [3, 3, 1], [0, 2, 0], [1, 0, 0], [1, 4, 2], [5, 5, 0],
        ],
    },
    expects=TWO,
)  # fmt: skip
def roles_two_loops_whose_tiles_go_on_in_a_loop_that_is_left(
    A: T.Tensor((N, 5 * N), "float16"),
    B: T.Tensor((5 * N, N), "float16"),
    rows: T.Tensor((5, N), "float32"),
    turns: T.Tensor((6, 3), "int32"),
    C: T.Tensor((6, N, N), "float32"),
):
    """Trips of both are known in the kernel only, and none of some turns."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        row = T.alloc_shared((N,), "float32")
        partial = T.alloc_fragment((N, N), "float32")
        c = T.alloc_fragment((N, N), "float32")
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


@program(
    tags=TAGS,
    parameters={"steps": [5, 1, 2]},
    examples=[{}, {"steps": 1}],
    targets=TARGETS,
    expects=TWO,
)
def roles_products_that_are_waited_for_apart(
    A: T.Tensor((N, N), "float16"),
    B: T.Tensor((steps * N, N), "float16"),
    C: T.Tensor((steps * N, N), "float16"),
    sums: T.Tensor((N, N), "float32"),
    total: T.Tensor((N, N), "float32"),
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


# Tiles that threads of the producer compute -------------------------------------------------------


@program(tags={*TAGS, "computed"}, targets=TARGETS, expects=COMPUTING)
def roles_weights_times_scales(
    A: T.Tensor((N, 3 * N), "bfloat16"),
    W: T.Tensor((N, 3 * N), "int8"),
    scales: T.Tensor((N,), "bfloat16"),
    C: T.Tensor((N, N), "float32"),
):
    """Bytes that become bfloat16, times a number of their row."""
    with T.Kernel(1, threads=128):
        T.annotate_warp_specialize()
        a, w = T.alloc_shared((N, N), "bfloat16"), T.alloc_shared((N, N), "bfloat16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        for k in T.Pipelined(3, num_stages=2):
            T.copy(A[0, k * N], a)
            for i, j in T.Parallel(N, N):
                w[i, j] = T.cast(W[i, k * N + j], "bfloat16") * scales[i]
            T.gemm(a, w, c, transpose_B=True)
        T.copy(c, C)


@program(tags={*TAGS, "computed"}, targets=TARGETS, expects=COMPUTING, fast=["sm_90a"])
def roles_packed_weights_by_way_of_fragments(
    A: T.Tensor((N, 4 * N), "float16"),
    W: T.Tensor((N, 2 * N), "uint8"),
    C: T.Tensor((N, N), "float32"),
):
    """Two numbers of four bits a byte: loaded, unpacked, and stored where the product reads them."""
    with T.Kernel(1, threads=128):
        T.annotate_warp_specialize()
        a, w = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        packed = T.alloc_fragment((N, N // 2), "uint8")
        plain = T.alloc_fragment((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[0, k * N], a)
            T.copy(W[0, k * (N // 2)], packed)
            for i, j in T.Parallel(N, N):
                bits = T.cast(packed[i, j // 2], "int32") >> (j % 2 * 4) & 15
                plain[i, j] = T.cast(bits - 8, "float16")
            T.copy(plain, w)
            T.gemm(a, w, c, transpose_B=True)
        T.copy(c, C)


@program(
    tags={*TAGS, "computed"},
    targets=TARGETS,
    inputs={"counts": lambda rng, shape: [4, 0, 2], "mask": lambda rng, shape: [1, 0, 1, 1]},
    expects=COMPUTING,
)
def roles_converted_where_a_mask_and_a_bound_say(
    A: T.Tensor((2, N, 4 * N), "float32"),
    B: T.Tensor((4 * N, N), "float16"),
    mask: T.Tensor((4,), "int32"),
    counts: T.Tensor((3,), "int32"),
    C: T.Tensor((3, 2, N, N), "float32"),
):
    """Iterations that all roles leave out, blocks without any, and a loop around."""
    with T.Kernel(3, threads=128) as bx:
        T.annotate_warp_specialize()
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        for batch in T.serial(2):
            T.clear(c)
            for k in T.Pipelined(counts[bx], num_stages=2):
                if mask[k] > 0:
                    T.copy(A[batch, 0, k * N], a)
                    T.copy(B[k * N, 0], b)
                    T.gemm(a, b, c)
            T.copy(c, C[bx, batch, 0, 0])


@program(tags={*TAGS, "computed"}, targets=TARGETS, expects=COMPUTING)
def roles_conversion_that_a_condition_leaves_out(
    A: T.Tensor((N, 4 * N), "float32"),
    B: T.Tensor((4 * N, N), "float16"),
    C: T.Tensor((N, N), "float32"),
):
    """The rest of the iteration is done."""
    with T.Kernel(1, threads=128):
        T.annotate_warp_specialize()
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(B[k * N, 0], b)
            if k % 2 == 0:
                T.copy(A[0, k * N], a)
                T.gemm(a, b, c)
        T.copy(c, C)


@program(
    tags={*TAGS, "computed"},
    parameters={"once": ["nothing", "converted"]},
    examples=[{}, {"once": "converted"}],
    targets=TARGETS,
    inputs={"rows": lambda rng, shape: np.arange(64) * 37 % 100},
    expects=COMPUTING,
)
def roles_rows_gathered_beside_what_is_converted_and_what_is_copied(
    A: T.Tensor((100, 3 * N), "float16"),
    B: T.Tensor((3 * N, N), "float32"),
    D: T.Tensor((3 * N, N), "float16"),
    E: T.Tensor((N, N), "float32"),
    rows: T.Tensor((N,), "int32"),
    C: T.Tensor((N, N), "float32"),
):
    """And a tile that threads convert in front of the loop: no tensor map does."""
    with T.Kernel(1, threads=128):
        T.annotate_warp_specialize()
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        d = T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        if once == "converted":
            T.copy(E, a)
            for k in T.Pipelined(3, num_stages=2):
                T.copy(B[k * N, 0], b)
                T.gemm(a, b, c)
        else:
            for k in T.Pipelined(3, num_stages=2):
                T.gather_rows(A, a, rows, k * N)
                T.copy(B[k * N, 0], b)
                T.copy(D[k * N, 0], d)
                T.gemm(a, b, c)
                T.gemm(a, d, c)
        T.copy(c, C)


@program(tags={*TAGS, "masked"}, targets=TARGETS, expects=SKIPPED)
def roles_moved_beside_constants(
    A: T.Tensor((N, 5 * N), "float16"),
    B: T.Tensor((5 * N, N), "float16"),
    C: T.Tensor((N, N), "float32"),
):
    """A guard makes two loops of one that moves rows, in iterations that a condition leaves some of."""
    with T.Kernel(1, 1, threads=128) as (bx, by):
        T.annotate_warp_specialize()
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        for k in T.Pipelined(5, num_stages=3):
            if k % 3 == 1:
                for i, j in T.Parallel(N, N):
                    a[i, j] = T.if_then_else(
                        by * N + i - 1 >= 0, A[by * N + i - 1, k * N + j], T.float16(0)
                    )
                T.copy(B[k * N, 0], b)
                T.gemm(a, b, c)
        T.copy(c, C)


@program(
    tags={*TAGS, "masked"},
    targets=TARGETS,
    inputs={"mask": lambda rng, shape: [1, 0, 1]},
    expects={
        "sm_90a": [
            ": two roles, skipped iterations",
            "skewed: the second product would need i of the last iteration that was done",
        ]
    },
)
def roles_second_product_that_needs_the_iteration(
    Q: T.Tensor((N, N), "float16"),
    K: T.Tensor((3 * N, N), "float16"),
    V: T.Tensor((3, N, N), "float16"),
    mask: T.Tensor((3,), "int32"),
    C: T.Tensor((N, N), "float32"),
):
    """It would be that of the iteration that was done before, of which only the number is known."""
    with T.Kernel(1, threads=128):
        q, k = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        v = T.alloc_shared((3, N, N), "float16")
        scores = T.alloc_fragment((N, N), "float32")
        weights = T.alloc_fragment((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.copy(Q, q)
        T.copy(V, v)
        T.clear(c)
        for i in T.Pipelined(3, num_stages=2):
            if mask[i] > 0:
                T.copy(K[i * N, 0], k)
                T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                for r, s in T.Parallel(N, N):
                    scores[r, s] = T.max(T.min(scores[r, s], 2), -2)
                T.copy(scores, weights)
                T.gemm(weights, v[i, :, :], c)
        T.copy(c, C)


# Tiles around a loop --------------------------------------------------------------------------------


@program(
    tags=TAGS,
    parameters={
        "use": ["none", "written", "read before", "read behind", "tensor written", "from memory"],
        "rows": [64, 8],
    },
    examples=[
        *({"use": use} for use in ("none", "written", "read before")),
        *({"use": use} for use in ("read behind", "tensor written", "from memory")),
        {"rows": 8},
    ],
    targets=TARGETS,
    inputs={"place": lambda rng, shape: [0]},
    expects=lambda p: {
        "sm_90a": [": two roles", ": tma_copy of a: tma" if p.use == "none" else ": copy of a: "]
    },
)
def roles_tile_that_a_loop_only_reads(
    A: T.Tensor((rows, N), "float16"),
    B: T.Tensor((3, N, N), "float16"),
    C: T.Tensor((rows, N), "float32"),
    D: T.Tensor((N, N), "float16"),
    place: T.Tensor((1,), "int32"),
):
    """The producer copies it, unless consumers use it otherwise; also of fewer rows than it has."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        if use == "from memory":
            T.copy(A[place[0], 0], a)
        else:
            T.copy(A[0, 0], a)
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


@program(
    tags=TAGS,
    parameters={"first": [8, -16, 1, -3]},
    examples=[{"first": first} for first in (8, -16, 1, -3)],
    targets=TARGETS,
    expects=lambda p: (
        TWO if p.first % 8 == 0 else _one("float16 may not begin at a multiple of 16 bytes")
    ),
)
def roles_columns_that_begin_between_multiples_of_16_bytes(
    A: T.Tensor((N, 4 * N), "float16"), C: T.Tensor((N, N), "float32")
):
    """A tensor map can't: it is an illegal instruction on an H200."""
    with T.Kernel(1, threads=128):
        T.annotate_warp_specialize()
        a = T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[0, k * N + first], a)
            for i, j in T.Parallel(N, N):
                c[i, j] += a[i, j]
        T.copy(c, C)


@program(
    tags=TAGS,
    parameters={"columns": [16, 64], "stages": [1, 2]},
    examples=[{}, {"stages": 2}, {"columns": 64, "stages": 2}],
    targets=TARGETS,
    expects=lambda p: (
        _one("a[0:16] float16 may not begin where its swizzle does")
        if (p.columns, p.stages) == (16, 2)
        else TWO
    ),
)
def roles_rows_of_few_bytes(
    A: T.Tensor((4 * columns,), "float16"), C: T.Tensor((columns,), "float32")
):
    """A second copy of the buffer would begin where no tensor map can write."""
    with T.Kernel(1, threads=128):
        T.annotate_warp_specialize()
        a = T.alloc_shared((columns,), "float16")
        c = T.alloc_fragment((columns,), "float32")
        T.clear(c)
        for k in T.Pipelined(4, num_stages=stages):
            T.copy(A[k * columns], a)
            for i in T.Parallel(columns):
                c[i] += a[i]
        T.copy(c, C)


# Loops with one role --------------------------------------------------------------------------------


@program(
    tags=TAGS,
    targets=TARGETS,
    expects=_one("rows of row[2, 250] float32 may not begin at multiples of 16 bytes"),
)
def one_role_where_rows_begin_anywhere(
    A: T.Tensor((N, 4 * N), "float16"),
    B: T.Tensor((4 * N, N), "float16"),
    row: T.Tensor((2, 250), "float32"),
    C: T.Tensor((2, N, N), "float32"),
):
    """Threads copy what tensor maps don't describe, while tiles come that they could."""
    with T.Kernel(2, threads=128) as bx:
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        own = T.alloc_shared((N,), "float32")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[0, k * N], a)
            T.copy(row[bx, k * N], own)
            T.copy(B[k * N, 0], b)
            T.gemm(a, b, c)
            for i, j in T.Parallel(N, N):
                c[i, j] += own[j]
        T.copy(c, C[bx, 0, 0])


@program(
    tags=TAGS,
    targets=TARGETS,
    inputs={"lengths": lambda rng, shape: [1, 3, 4]},
    expects=_one("the loop is inside of a statement that only consumers do"),
)
def one_role_in_a_while(
    A: T.Tensor((N, 6 * N), "float16"),
    B: T.Tensor((6 * N, N), "float16"),
    lengths: T.Tensor((3,), "int32"),
    C: T.Tensor((3, N, N), "float32"),
):
    """As parts of stream-K's tiles follow each other."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        first, part = T.alloc_var("int32", 0), T.alloc_var("int32", 0)
        while first < 6:
            last = T.min(first + lengths[part], 6)
            T.clear(c)
            for k in T.Pipelined(last - first, num_stages=2):
                T.copy(A[0, (first + k) * N], a)
                T.copy(B[(first + k) * N, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C[part, 0, 0])
            first = last
            part += 1


@program(tags=TAGS, targets=TARGETS, expects=_one("it depends on the statement in line"))
def one_role_where_a_tile_is_read_before_it_is_copied(
    A: T.Tensor((N, 4 * N), "float16"),
    B: T.Tensor((N, N), "float16"),
    C: T.Tensor((N, N), "float32"),
):
    """An iteration multiplies what the one before has copied, or what was there at first."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.copy(B, b)
        T.copy(A[0, 0], a)
        T.clear(c)
        for k in T.Pipelined(4, num_stages=2):
            T.gemm(a, b, c)
            T.copy(A[0, k * N], a)
        T.copy(c, C)


@program(
    tags=TAGS,
    targets=TARGETS,
    expects={"sm_90a": ["one role", "blocks fit on a multiprocessor, each under the others'"]},
)
def one_role_for_copies_that_need_arithmetic(
    A: T.Tensor((N, 3 * N), "float32"),
    B: T.Tensor((N, 3 * N // 2), "uint8"),
    C: T.Tensor((N, N), "float32"),
):
    """One converts, one decodes two numbers of a byte."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        for k in T.Pipelined(3, num_stages=2):
            T.copy(A[0, k * N], a)
            for i, j in T.Parallel(N, N):
                byte = B[i, k * (N // 2) + j // 2]
                b[i, j] = T.cast(byte >> (j % 2 * 4) & 15, "float16")
            T.gemm(a, b, c, transpose_B=True)
        T.copy(c, C)


@program(
    tags=TAGS,
    targets=TARGETS,
    expects=_one("the layout of a[64, 64] float16 is none that a tensor map describes"),
)
def one_role_for_a_layout_that_tensor_maps_do_not_carry(
    A: T.Tensor((N, 3 * N), "float16"),
    B: T.Tensor((3 * N, N), "float16"),
    C: T.Tensor((N, N), "float32"),
):
    with T.Kernel(1, threads=128):
        T.annotate_warp_specialize()
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        T.annotate_layout({a: T.Layout((N, N), lambda i, j: j * N + i)})
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        for k in T.Pipelined(3, num_stages=2):
            T.copy(A[0, k * N], a)
            T.copy(B[k * N, 0], b)
            T.gemm(a, b, c)
        T.copy(c, C)


@program(
    tags=TAGS,
    targets=TARGETS,
    inputs={"A": lambda rng, shape: np.zeros(shape) + (np.arange(64) > 0)[:, None]},
    expects=_one("the copies depend on c, which only consumers know"),
)
def one_role_where_a_loop_around_is_left_by_what_was_computed(
    A: T.Tensor((N, 3 * N), "float16"),
    B: T.Tensor((3 * N, N), "float16"),
    C: T.Tensor((N, N), "float32"),
):
    """Of a row of zeros, so that there is no doubt."""
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c, total = T.alloc_fragment((N, N), "float32"), T.alloc_shared((N, N), "float32")
        T.clear(c)
        for turn in T.serial(4):
            for k in T.Pipelined(3, num_stages=2):
                T.copy(A[0, k * N], a)
                T.copy(B[k * N, 0], b)
                T.gemm(a, b, c)
            T.copy(c, total)
            if total[0, 0] + turn > 0:
                break
        T.copy(c, C)


@program(
    tags=TAGS,
    targets=TARGETS,
    expects=_one("nothing copies from global memory into a shared tile"),
)
def one_role_where_a_fragment_that_nobody_uses_is_copied(
    A: T.Tensor((N, N), "float32"), C: T.Tensor((N, N), "float32")
):
    """What threads copy ahead fills no shared tile."""
    with T.Kernel(1, threads=128):
        T.annotate_warp_specialize()
        a, c = T.alloc_fragment((N, N), "float16"), T.alloc_fragment((N, N), "float32")
        T.clear(c)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A, a)
            for i, j in T.Parallel(N, N):
                c[i, j] += k
        T.copy(c, C)


@program(
    tags=TAGS,
    targets=TARGETS,
    expects=_one("the copies depend on place, which only consumers know"),
)
def one_role_where_places_depend_on_what_is_computed(
    A: T.Tensor((4 * N, N), "float16"),
    B: T.Tensor((N, N), "float16"),
    C: T.Tensor((N, N), "float32"),
):
    with T.Kernel(1, threads=128):
        T.annotate_warp_specialize()
        place = T.alloc_shared((1,), "int32")
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        place[0] = 1
        for turn in T.serial(3):
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[place[0] * N, 0], a)
                T.copy(B, b)
                T.gemm(a, b, c)
            place[0] = place[0] ^ 3
        T.copy(c, C)


@program(
    tags=TAGS,
    parameters={"when": ["before", "behind"]},
    examples=[{}, {"when": "behind"}],
    targets=TARGETS,
    expects=_one("a is used outside of the loop too"),
)
def one_role_where_tiles_are_used_outside_of_the_loop(
    A: T.Tensor((N, 4 * N), "float16"),
    B: T.Tensor((N, N), "float16"),
    C: T.Tensor((N, N), "float32"),
):
    """Copies of the producer would not wait for what consumers do there."""
    with T.Kernel(1, threads=128):
        T.annotate_warp_specialize()
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        if when == "before":
            T.clear(a)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[0, k * N], a)
            T.copy(B, b)
            T.gemm(a, b, c)
        if when == "behind":
            T.copy(c, a)
            T.copy(a, c)
        T.copy(c, C)


@program(
    tags=TAGS,
    targets=TARGETS,
    inputs={"rows": lambda rng, shape: rng.integers(-1, 66, shape)},
    expects=_one("loops fill a by different threads"),
)
def one_role_where_loops_fill_a_tile_by_different_threads(
    A: T.Tensor((N, N), "float16"),
    rows: T.Tensor((N,), "int32"),
    C: T.Tensor((N, N), "float32"),
):
    """One by a tensor map and one by threads that gather arrive differently on one mbarrier."""
    with T.Kernel(1, threads=128):
        T.annotate_warp_specialize()
        a = T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A, a)
            for i, j in T.Parallel(N, N):
                c[i, j] += a[i, j]
        for k in T.Pipelined(2, num_stages=2):
            T.gather_rows(A, a, rows, 0)
            for i, j in T.Parallel(N, N):
                c[i, j] += a[i, j]
        T.copy(c, C)


@program(
    tags=TAGS,
    targets=TARGETS,
    expects={"sm_90a": ["one role", "is no copy that can go on by itself"]},
)
def one_role_for_copies_that_ask_for_no_tensor_map(
    A: T.Tensor((N, 4 * N), "float32"), C: T.Tensor((N, N), "float32")
):
    with T.Kernel(1, threads=128):
        T.annotate_warp_specialize()
        a = T.alloc_shared((N, N), "float16")
        c = T.alloc_fragment((N, N), "float32")
        T.clear(c)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(A[0, k * N], a, disable_tma=True)
            T.gemm(a, a, c)
        T.copy(c, C)
