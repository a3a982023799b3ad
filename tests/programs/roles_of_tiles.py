"""Loops of two roles whose tiles no copy brings, or not in each iteration; loops with one role."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program
from tests.programs.roles import COMPUTING, TWO, N, _grown, _multiplied, _one, roles

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
    """The producer copies the tile, or fewer of its rows, unless consumers use it otherwise."""
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
    """One of two blocks has an iteration: its stage is no remainder any more."""
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
