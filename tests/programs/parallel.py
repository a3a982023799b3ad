"""Iterations of `T.Parallel`: which thread does what, and how wide it loads and stores."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

FORMS = ["tensor", "atomic", "tile", "name", "variable", "fragment"]
ELEMENTWISE = [
    "product",
    "stored and then loaded",
    "loaded under a guard",
    "pairs",
    "named places",
    "loaded places",
    "two fragments",
    "unrolled, of a number of the call",
]
ORDERS = ["stored, then read", "read, then stored", "under a condition"]


@program(
    parameters={
        "moved": [
            *(((32, 64), "float16", "uint4"), ((32, 64), "bfloat16", "uint4")),
            *(((32, 64), "float32", "float4"), ((64, 64), "int8", "uint4")),
            ((16, 36), "float16", "uint2"),  # rows of 72 bytes: 8 at a time
            ((16, 33), "float32", None),  # rows of odd length: one by one
            *(((3, 1), "int32", None), ((3, 31), "int32", None), ((3, 257), "int32", None)),
            ((3, 100), "int32", "int4"),
        ],
        "through": ["shared", "fragment"],
    },
    examples=[
        {},
        {"moved": ((32, 64), "float32", "float4"), "through": "fragment"},
        {"moved": ((64, 64), "int8", "uint4")},
        {"moved": ((16, 36), "float16", "uint2"), "through": "fragment"},
        {"moved": ((16, 33), "float32", None)},
    ],
    expects=lambda p: {"metal": [f"*(device {p.moved[2]}*)" if p.moved[2] else "not 4*)"]},
    fast=["metal"],
)
def tile_that_moves(A: T.Tensor(moved[0], moved[1]), C: T.Tensor(moved[0], moved[1])):
    """A tile moves in the widest vectors that its rows allow, each element once."""
    with T.Kernel(1, threads=64):
        tile = getattr(T, "alloc_" + through)(moved[0], moved[1])
        T.copy(A, tile)
        T.copy(tile, C)


@program(expects={"metal": ["not B_ptr[", "not C_ptr[", "not D_ptr["]}, fast=["metal"])
def guards_that_neighbours_share(
    A: float16[61, 96], B: float16[61, 96], C: float16[40, 16], D: float16[40, 16]
):
    """A guard stands around a vector: of rows that end in a block, of columns behind a row's end."""
    with T.Kernel(2, threads=64) as by:
        tile = T.alloc_shared((32, 96), "float16")
        T.copy(A[by * 32, 0], tile)
        T.copy(tile, B[by * 32, 0])
    with T.Kernel(2, threads=64) as by:
        wide = T.alloc_shared((32, 64), "float16")
        T.copy(C[by * 32, 0], wide)
        for i, j in T.Parallel(32, 64):
            if by * 32 + i < 40 and j < 16:
                D[by * 32 + i, j] = wide[i, j]


@program(sizes=[{"m": 70, "n": 45}, {"m": 1, "n": 33}])
def rows_and_columns_of_any_number(A: float32[m, n], C: float32[m, n]):
    with T.Kernel(T.ceildiv(m, 64), threads=64) as bx:
        tile = T.alloc_fragment((64, 32), "float32")
        for k in T.serial(2):
            T.copy(A[bx * 64, k * 32], tile)
        T.copy(tile, C[bx * 64, 0])


@program(
    parameters={"width": [64, 32, 96], "threads": [32, 128], "is_known": [False, True]},
    examples=[{}, {"width": 32, "threads": 128}],
    sizes=[{"m": 70, "n": 45}, {"m": 1, "n": 7}, {"m": 64, "n": 129}],
    expects=lambda p: (
        {"sm_80": [f"half tile_vector_ptr[{8 if p.threads == 128 else 32}]"]}
        if not p.is_known and p.width < 96
        else {}
    ),
    fast=["metal", "sm_80"],
)
def rows_that_begin_anywhere(
    A: T.Tensor((70, 45) if is_known else (m, n), "float16"),
    C: T.Tensor((70, 45) if is_known else (m, n), "float16"),
):
    """Rows go through shared memory and a view of it; at most 32 elements are loaded at once."""
    rows, columns = (70, 45) if is_known else (m, n)
    with T.Kernel(T.ceildiv(columns, width), T.ceildiv(rows, 32), threads=threads) as (bx, by):
        tile = T.alloc_shared((32, width), "float16")
        flat = T.view(tile, (32 * width,))
        own = T.alloc_fragment((32, width), "float16")
        T.copy(A[by * 32, bx * width], tile)
        for i, j in T.Parallel(32, width):
            own[i, j] = flat[i * width + j] * 2
        T.copy(own, C[by * 32, bx * width])


@program(parameters={"form": FORMS}, examples="form", fast=["metal"])
def elements_that_are_positive(A: float32[64]):
    """Half of the threads have none: they do not read what others write, for conditions or names."""
    with T.Kernel(1, threads=128):
        s = T.alloc_shared((64,), "float32")
        f = T.alloc_fragment((64,), "float32")
        T.copy(A, s)
        for i in T.Parallel(64):
            if form == "tensor":
                if A[i] > 0:
                    A[i] = A[i] + 1
            elif form == "atomic":
                if A[i] > 0:
                    T.atomic_add(A[i], 1.0)
            elif form == "tile":
                if s[i] > 0:
                    s[i] = s[i] + 1
            elif form == "name":
                value = s[i]
                s[i] = T.if_then_else(value > 0, value + 1, value)
            elif form == "variable":
                own = T.alloc_var("float32")
                own = s[i]
                if own > 0:
                    s[i] = own + 1
            else:
                f[i] = s[i]
                if f[i] > 0:
                    s[i] = f[i] + 1
        if form != "tensor" and form != "atomic":
            T.copy(s, A)


@program(
    parameters={"shape": [(3, 5, 128), (7, 3, 256), (6, 10, 64)], "dtype": ["bfloat16", "float32"]},
    fast=["metal"],
)
def small_tile_in_place(A: T.Tensor(shape[:2], dtype), W: dtype[shape[0], 16]):
    rows, columns, threads = shape
    with T.Kernel(1, threads=threads):
        s = T.alloc_shared((rows, columns), dtype)
        wide = T.alloc_fragment((rows, 16), dtype)
        row = T.alloc_fragment((rows,), dtype)
        T.copy(A, s)
        T.copy(W, wide)
        T.reduce_max(wide, row, dim=1)
        for i, j in T.Parallel(rows, columns):
            difference = s[i, j] - row[i]
            s[i, j] = difference * difference
        T.copy(s, A)


@program(
    parameters={"order": ORDERS, "shape": [(8, 7, 128), (4, 4, 64), (40, 3, 256)]},
    examples="order",
    inputs={"keep": 3},
    fast=["sm_80"],
)
def tile_beside_copies_of_a_fragment(
    A: T.Tensor(shape[:2], "float32"), B: T.Tensor(shape[:2], "float32"), keep: T.int32
):
    """Threads that repeat an iteration see what one of them stores."""
    rows, columns, threads = shape
    with T.Kernel(1, threads=threads):
        s = T.alloc_shared((rows, columns), "float32")
        f = T.alloc_fragment((rows, columns), "float32")
        T.copy(A, s)
        T.copy(B, f)
        for _ in T.serial(3):
            for i, j in T.Parallel(rows, columns):
                if order == "stored, then read":
                    s[i, j] = s[i, j] * 2
                    f[i, j] = f[i, j] + s[i, j]
                elif order == "read, then stored":
                    f[i, j] = f[i, j] + s[i, j]
                    s[i, j] = s[i, j] * 2
                elif i < keep:
                    s[i, j] = s[i, j] * 2
                    f[i, j] = f[i, j] + s[i, j]
                    s[i, j] = f[i, j]
        T.copy(f, B)
        T.copy(s, A)


@program(
    parameters={"per_byte": [2, 4]},
    examples="per_byte",
    expects=lambda p: {  # the least is a word
        "metal": [
            "uchar packed_vector[4]" if p.per_byte == 2 else "not uchar packed_vector[4]",
            "(device uint4*)",
        ]
    },
)
def packed_weights(W: uint8[16, 128 // per_byte], scales: float16[16, 4], C: float16[16, 128]):
    """Values with names, and loads that several iterations share."""
    bits = 8 // per_byte
    with T.Kernel(1, threads=64):
        packed = T.alloc_shared((16, 128 // per_byte), "uint8")
        T.copy(W, packed)
        for i, j in T.Parallel(16, 128):
            value = (packed[i, j // per_byte] >> (j % per_byte * bits)) & ((1 << bits) - 1)
            scale = scales[i, j // 32]
            C[i, j] = T.cast(value, "float16") * scale


@program(
    parameters={"channels": [8, 12, 32]},
    examples="channels",
    expects=lambda p: {"metal": ["X_ptr[" if p.channels == 12 else "not X_ptr["]},
)
def patches_of_an_image(X: float16[5, 6, channels], Y: float16[64, 9 * channels]):
    """Quotients that eight channels share tell where a row of a patch starts and ends."""
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((64, 24), "float16")
        for step in T.serial(T.ceildiv(9 * channels, 24)):
            for i, j in T.Parallel(64, 24):
                k = step * 24 + j
                y = i // 6 + k // (3 * channels) - 1
                x = i % 6 + k % (3 * channels) // channels - 1
                inside = (y >= 0) and (y < 5) and (x >= 0) and (x < 6)
                tile[i, j] = T.if_then_else(inside, X[y, x, k % channels], T.cast(0, "float16"))
            T.copy(tile, Y[0, step * 24])


@program(
    parameters={"form": ELEMENTWISE},
    examples="form",
    inputs={"order": lambda rng, shape: rng.permutation(96), "n": 7},
    expects=lambda p: {
        "metal": {
            "product": ["not A_ptr[", "not B_ptr[", "not C_ptr["],
            "named places": ["(device float4*)"],
            "two fragments": ["= *(device float4*)(A_ptr"],
        }.get(p.form, [])
    },
    fast=["metal"],
)
def elementwise(
    A: float32[24, 96], B: float32[24, 96], C: float32[24, 96], order: int32[96], n: T.int32
):
    """Neighbours are loaded and stored at once, but no place before what it is computed from."""
    with T.Kernel(2, threads=64) as bx:
        once = T.alloc_fragment((12, 96), "float32")
        squared = T.alloc_fragment((12, 96), "float32")
        T.assume(n > 0)
        for i, j in T.Parallel(12, 96):
            if form == "product":
                C[bx * 12 + i, j] = A[bx * 12 + i, j] * B[bx * 12 + i, j]
            elif form == "stored and then loaded":
                C[bx * 12 + i, j] = A[bx * 12 + i, j]
                C[bx * 12 + i, j] = C[bx * 12 + i, j] * 2
            elif form == "loaded under a guard":
                C[bx * 12 + i, j] = T.if_then_else(j < 48, A[bx * 12 + i, j * 2], T.float32(-1))
            elif form == "pairs":  # of iterations that share a load
                C[bx * 12 + i, j] = A[bx * 12 + i, j // 2 % 32 * 3]
            elif form == "named places":
                row = bx * 12 + i
                value = A[row, j]
                C[row, j] = value / (1.0 + T.abs(value))
            elif form == "loaded places":
                place = order[j]
                C[bx * 12 + i, j] = A[bx * 12 + i, place]
            elif form == "two fragments":
                named = A[bx * 12 + i, j]
                once[i, j] = named
                squared[i, j] = named * named
        if form == "two fragments":
            T.copy(once, B[bx * 12, 0])
            T.copy(squared, C[bx * 12, 0])
        if form == "unrolled, of a number of the call":
            for k in T.unroll(0, n, 2):
                for i, j in T.Parallel(12, 96):
                    C[bx * 12 + i, j] = C[bx * 12 + i, j] + k
