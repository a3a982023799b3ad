"""Several products in one block, and what is done with their sums: neither lost nor done twice."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import METAL4, TARGETS, program

POLICIES = ["Square", "FullRow", "FullCol"]
WAYS = [("Square", "FullRow"), ("Square", "FullCol"), ("FullCol", "FullRow")]
GPUS = ["llvm", "metal", "sm_80", "sm_90a", "gpu"]
# Extents and threads.
PRODUCTS = {
    "waited for later": (64, 64, 64, 128),
    "parts into one accumulator": (32, 32, 64, 128),
    "beside one that does not fit matmul2d": (32, 64, 32, 32),
    "in batches by CUDA's names": (64, 64, 64, 128),
    "an operand in two layouts": (64, 64, 64, 128),
    "in three threads each": (64, 64, 32, 384),
}


@program(
    parameters={"form": [*PRODUCTS]},
    examples="form",
    targets=lambda p: {
        "beside one that does not fit matmul2d": ["llvm", "metal", METAL4],
        "an operand in two layouts": GPUS[2:],
    }.get(p.form, TARGETS),
    expects=lambda p: {
        "waited for later": {
            "sm_90a": ["wait_group_sync_aligned_1();", "wait_group_sync_aligned_0();"],
            "sm_80": ["not wgmma"],
        },
        "an operand in two layouts": {"sm_80": ["mma.sync"], "sm_90a": ["mma.sync"]},
    }.get(p.form, {}),
    counts=lambda p: {METAL4: "tensor_multiplies == 0"} if p.form.startswith("beside one") else {},
    fast=["sm_90a"],
)
def products_of_one_block(A: float16[m, k], B: float16[k, n], C: float32[m, n], D: float32[m, n]):
    m, n, k, threads = PRODUCTS[form]
    scope = "fragment" if form == "an operand in two layouts" else "shared"
    with T.Kernel(1, threads=threads):
        a = getattr(T, "alloc_" + scope)((m, k), "float16")
        b = T.alloc_shared((k, n), "float16")
        c, d = T.alloc_fragment((m, n), "float32"), T.alloc_fragment((m, n), "float32")
        T.copy(A, a)
        T.copy(B, b)
        if form == "waited for later":  # C = A @ A and D = A @ B, C while D goes on
            T.wgmma_gemm(a, a, c, clear_accum=True)
            T.gemm(a, b, d, clear_accum=True, wg_wait=1)
            T.copy(c, C)
            T.wait_wgmma(0)
            T.copy(d, D)
        elif form == "in batches by CUDA's names":  # one without products counts
            T.warpgroup_fence_operand(c)
            T.warpgroup_arrive()
            T.wgmma_gemm(a, a, c, clear_accum=True)
            T.warpgroup_commit_batch()
            T.warpgroup_wait(1)
            T.warpgroup_fence_operand(c, num_regs=32)
            T.copy(c, C)
        elif form == "an operand in two layouts":
            T.gemm(a, b, c, clear_accum=True, impl="mma")
            T.gemm(b, a, d, clear_accum=True, impl="mma")
            for i, j in T.Parallel(m, n):
                d[i, j] += c[i, j]
            T.copy(d, C)
        elif form == "in three threads each":  # all read the tile before one of them stores to it
            s = T.alloc_shared((m, n), "float32")
            T.copy(C, s)
            T.gemm(a, b, c, clear_accum=True)
            for i, j in T.Parallel(m, n):
                own = T.alloc_var("float32", init=0)
                for q in T.serial(2):
                    own += s[i, j] * c[i, j]
                s[i, j] = own
            T.copy(s, C)
        else:
            T.clear(c)
            if form == "parts into one accumulator":
                T.gemm(a[:, 0:32], b[0:32, :], c)
                T.gemm(a[:, 32:64], b[32:64, :], c)
                T.gemm(b, a, c, transpose_A=True, transpose_B=True)
            else:  # so the first one has no use of it
                T.gemm(a, b, c)
                T.gemm(a[0:32, 0:8], b[0:8, 0:64], c)
            T.copy(c, C)


@program(
    tags={"pipelined"},
    parameters={
        "ways": [*WAYS, ("Square", "Square")],
        "meet": ["by elements", "in the same sums", "mirrored"],
    },
    examples=[{}, {"meet": "in the same sums"}, {"meet": "mirrored", "ways": ("Square", "Square")}],
    where=lambda p: (p.meet == "mirrored") == (p.ways == ("Square", "Square")),
    expects=lambda p: {
        "sm_80": ["mma.sync"],
        **({"sm_90a": ["mma.sync"]} if p.meet == "mirrored" else {}),
        **({"metal": ["simdgroup_multiply_accumulate"]} if p.meet == "mirrored" else {}),
    },
    fast=["metal"],
)
def products_that_meet(A: float16[n, 64], B: float16[64, n], C: float32[n, n]):
    """Products are shared out alike; no way has an element and its mirror image in one thread."""
    n = 32 if meet == "mirrored" else 64
    with T.Kernel(1, threads=128):
        a, b = T.alloc_shared((n, 32), "float16"), T.alloc_shared((32, n), "float16")
        x, y = T.alloc_fragment((n, n), "float32"), T.alloc_fragment((n, n), "float32")
        rows = T.alloc_fragment((n,), "float32")
        if meet != "mirrored":
            T.clear(x)
        T.clear(y)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[:, k * 32 : k * 32 + 32], a)
            T.copy(B[k * 32 : k * 32 + 32, :], b)
            if meet == "mirrored":
                T.gemm(a, b, x, clear_accum=True)
                T.gemm(a, b, y)
                for i, j in T.Parallel(n, n):
                    y[i, j] += x[j, i]
            else:
                T.gemm(a, b, x, policy=getattr(T.GemmWarpPolicy, ways[0]))
                if meet == "by elements":
                    T.gemm(a, b, y, policy=getattr(T.GemmWarpPolicy, ways[1]))
                else:
                    T.gemm(a, b, x, policy=getattr(T.GemmWarpPolicy, ways[1]))
        if meet != "mirrored":
            T.reduce_sum(x, rows, dim=1)
            for i, j in T.Parallel(n, n):
                y[i, j] += x[i, j] + rows[i]
        T.copy(y, C)


@program(
    parameters={"policy": POLICIES},
    targets=[*TARGETS, METAL4],
    counts=lambda p: (
        {METAL4: "tensor_multiplies == 16 and threadgroup_memory == 0"}
        if p.policy == "FullRow"
        else {}
    ),
    fast=["metal", "sm_80"],
)
def product_of_a_product(
    A: float16[32, 32], B: float16[32, 64], D: float16[64, 32], C: float32[32, 32]
):
    """The first product is an operand of the second, without going through memory of the user's."""
    with T.Kernel(1, threads=64):
        first = T.alloc_fragment((32, 64), "float32")
        first_cast = T.alloc_fragment((32, 64), "float16")
        second = T.alloc_fragment((32, 32), "float32")
        T.clear(first)
        T.clear(second)
        T.gemm(A, B, first, policy=getattr(T.GemmWarpPolicy, policy))
        for i, j in T.Parallel(32, 64):
            first[i, j] = T.max(first[i, j], 0)
        T.copy(first, first_cast)
        T.gemm(first_cast, D, second, policy=getattr(T.GemmWarpPolicy, policy))
        T.copy(second, C)


@program(parameters={"tensor_copies": [True]}, fast=["sm_80"])
def products_of_products_in_a_loop(A: float16[4, 64, 64], B: float16[64, 64], C: float32[64, 64]):
    """A product is an operand of the next, whose warps hold other rows of it, in each iteration."""
    with T.Kernel(1, threads=128):
        left, right = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 64), "float16")
        product = T.alloc_fragment((64, 64), "float32")
        operand = T.alloc_fragment((64, 64), "float16")
        total = T.alloc_fragment((64, 64), "float32")
        T.copy(B, right)
        T.clear(total)
        for step in T.serial(4):
            T.copy(A[step, :, :], left)
            T.clear(product)
            T.gemm(left, right, product, policy=T.GemmWarpPolicy.FullRow)
            T.copy(product, operand)
            T.gemm(operand, right, total, policy=T.GemmWarpPolicy.FullCol)
        T.copy(total, C, disable_tma=not tensor_copies)


@program(
    parameters={
        "dtypes": [("float16", "float32"), ("int8", "int32")],
        "threads": [256, 128],
        "policy": ["FullCol", "Square", "FullRow"],
        "is_viewed": [False, True],
    },
    examples=[{}, {"dtypes": ("int8", "int32"), "threads": 128, "is_viewed": True}],
    targets=("sm_90a", "gpu"),
    # Views show plain rows, in which wgmma finds nothing.
    expects=lambda p: {
        "sm_90a": ["mma.sync"] if p.is_viewed else ["wgmma.mma_async", "not mma.sync"]
    },
)
def product_of_a_masked_product(A: dtype[64, 64], B: dtype[64, 64], C: sums[64, 64]):
    """Warpgroups side by side need all columns of p, each of them has some, and int8 lies otherwise."""
    dtype, sums = dtypes
    with T.Kernel(1, threads=threads):
        a, b = T.alloc_shared((64, 64), dtype), T.alloc_shared((64, 64), dtype)
        x, y = T.alloc_fragment((64, 64), sums), T.alloc_fragment((64, 64), sums)
        p = T.alloc_fragment((64, 64), dtype)
        T.copy(A, a)
        T.copy(B, b)
        T.clear(y)
        for k in T.serial(2):
            T.gemm(a, b, x, False, True, policy=getattr(T.GemmWarpPolicy, policy), clear_accum=True)
            if is_viewed:
                flat = T.reshape(p, (4096,))
                T.clear(flat)
            for i, j in T.Parallel(64, 64):
                p[i, j] = T.if_then_else(i >= j, T.clamp(x[i, j], -8, 8), k)
            T.gemm(p, b, y, transpose_B=True, policy=getattr(T.GemmWarpPolicy, policy))
            T.gemm(a, b, y, transpose_B=True, policy=getattr(T.GemmWarpPolicy, policy))
        T.copy(y, C)


@program()
def products_that_keep_their_ways(A: float16[128, 64], B: float16[64, 16], C: float32[128, 64]):
    """Half of 16 columns is less than an instruction of Hopper's reads of rows of 32 bytes."""
    with T.Kernel(1, threads=256):
        a, b = T.alloc_shared((128, 64), "float16"), T.alloc_shared((64, 16), "float16")
        p, s = T.alloc_shared((128, 16), "float16"), T.alloc_fragment((128, 16), "float32")
        c, m = T.alloc_fragment((128, 64), "float32"), T.alloc_fragment((128,), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.clear(c)
        T.gemm(a, b, s, clear_accum=True)
        T.reduce_max(s, m, dim=1)
        T.copy(s, p)
        T.gemm(p, b, c, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
        for i, j in T.Parallel(128, 64):
            c[i, j] = c[i, j] + m[i]
        T.copy(c, C)


@program(
    parameters={"form": ["read in an inner loop", "written by the kernel", "written by a name"]},
    examples="form",
    expects={"metal": ["threadgroup half tile["]},
)
def product_of_tiles_that_are_needed(A: float16[32, 32], B: float16[32, 32], C: float16[32, 32]):
    """Metal's simdgroups could read them from a tensor."""
    before = T.reshape(A, (1, 32, 32))
    with T.Kernel(1, threads=128):
        tile, other = T.alloc_shared((32, 32), "float16"), T.alloc_shared((32, 32), "float16")
        sums = T.alloc_fragment((32, 32), "float32")
        T.clear(sums)
        T.copy(B, other)
        if form == "read in an inner loop":
            T.copy(A, tile, annotations={"direct": True})
            for turn in T.serial(2):
                T.gemm(tile, tile, sums, policy=T.GemmWarpPolicy.FullRow)
        elif form == "written by the kernel":
            T.copy(A, tile)
            T.gemm(tile, other, sums, policy=T.GemmWarpPolicy.FullRow)
            T.copy(sums, A)
        else:
            T.copy(before[0, 0:32, 0:32], tile)
            for i, j in T.Parallel(32, 32):
                A[i, j] = 0
            T.gemm(tile, other, sums, policy=T.GemmWarpPolicy.FullRow)
        if form != "written by the kernel":
            T.copy(sums, C)


# Extents, the dtype of C, and threads.
EPILOGUES = {
    "reductions": (64, 64, 32, "float32", 128),
    "scalars of the call": (32, 32, 32, "float32", 64),
    "largest of rows": (64, 64, 32, "float16", 128),
    "two outputs and a mask": (32, 32, 32, "bfloat16", 32),
    "rows that warps repeat": (16, 16, 32, "float32", 256),
}


@program(
    parameters={"form": [*EPILOGUES]},
    examples="form",
    targets=lambda p: [*TARGETS, *([METAL4] if p.form == "largest of rows" else [])],
    # B, with rows of at most 16 bytes more: A is read once, by the simdgroup that needs it.
    counts=lambda p: (
        {METAL4: "threadgroup_memory <= 32 * (64 + 8) * 2"} if p.form == "largest of rows" else {}
    ),
    fast=["metal", "sm_80"],
)
def epilogues(
    A: float16[m, k],
    B: float16[k, n],
    C: out[m, n],
    D: float32[m, n],
    mask: uint8[m, n],
    bias: float32[n],
    of_rows: float32[m],
    total: float32[1],
    alpha: T.float32,
    beta: T.float32,
):
    """An epilogue works on the product of its own block."""
    m, n, k, out, threads = EPILOGUES[form]
    with T.Kernel(1, threads=threads):
        a, b = T.alloc_shared((m, k), "float16"), T.alloc_shared((k, n), "float16")
        x, narrow = T.alloc_fragment((m, n), "float32"), T.alloc_fragment((m, n), out)
        rows, columns = T.alloc_fragment((m,), "float32"), T.alloc_fragment((n,), "float32")
        if form == "largest of rows" or form == "rows that warps repeat":
            T.copy(A, a)
            T.copy(B, b)
        if form == "largest of rows":
            T.gemm(a, b, x, clear_accum=True, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(m, n):
                x[i, j] = T.max(x[i, j] + bias[j], T.float32(0)) * T.float32(0.5)
            T.reduce_max(x, rows, dim=1)
            T.copy(x, C)
            T.copy(rows, of_rows)
        elif (
            form == "rows that warps repeat"
        ):  # more warps than work: what they repeat is added once
            T.gemm(a, b, x, clear_accum=True)
            T.reduce_sum(x, rows, dim=1)
            T.copy(rows, of_rows)
            for i, j in T.Parallel(m, n):
                T.atomic_add(total[0], x[i, j])
        else:
            T.clear(x)
            T.gemm(A, B, x)
            if form == "reductions":
                T.reduce_absmax(x, rows, dim=1)
                T.reduce_sum(x, columns, dim=0)
                for i, j in T.Parallel(m, n):
                    x[i, j] = x[i, j] / rows[i] - columns[j]
                T.copy(x, C)
                T.copy(rows, of_rows)
            elif form == "scalars of the call":
                for i, j in T.Parallel(m, n):
                    C[i, j] = x[i, j] * alpha + C[i, j] * beta
            else:
                T.copy(x, narrow)
                T.copy(narrow, C)
                for i, j in T.Parallel(m, n):
                    mask[i, j] = T.cast(x[i, j] > 0, "uint8")
                    D[j, i] = x[i, j]


@program(
    parameters={"policy": POLICIES, "extents": [(61, 59), (64, 64)], "out": ["float32", "float16"]},
    fast=["metal"],
)
def epilogue_bias_relu_and_residual(
    A: float16[M, 32],
    B: float16[32, N],
    bias: float32[N],
    row_bias: float16[M],
    residual: out[M, N],
    C: out[M, N],
):
    M, N = extents
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
        a, b = T.alloc_shared((32, 32), "float16"), T.alloc_shared((32, 32), "float16")
        x, own = T.alloc_fragment((32, 32), "float32"), T.alloc_fragment((32,), "float32")
        T.copy(A[by * 32, 0], a)
        T.copy(B[0, bx * 32], b)
        T.copy(bias[bx * 32], own)
        T.clear(x)
        T.gemm(a, b, x, policy=getattr(T.GemmWarpPolicy, policy))
        for i, j in T.Parallel(32, 32):
            biased = x[i, j] + own[j] + row_bias[by * 32 + i]
            x[i, j] = T.max(biased, 0) + residual[by * 32 + i, bx * 32 + j]
        T.copy(x, C[by * 32, bx * 32])


@program(
    parameters={
        "extents": [(50, 37, 100, 3), (32, 32, 128, 4), (8, 8, 64, 1), (50, 40, 70, 3)],
        "dtypes": [("float16", "float32"), ("float32", "float32"), ("float32", "float16")],
        "adds": ["a tile", "elements", "a fragment"],
    },
    examples=[
        {"extents": (32, 32, 128, 4), "dtypes": ("float32", "float32"), "adds": "elements"},
        {},
        {"extents": (50, 40, 70, 3), "dtypes": ("float32", "float32"), "adds": "a fragment"},
        {"extents": (50, 40, 70, 3), "dtypes": ("float32", "float16"), "adds": "a fragment"},
    ],
    inputs={
        "A": lambda rng, shape: rng.integers(-3, 4, shape),
        "B": lambda rng, shape: rng.integers(-3, 4, shape),
        "C": lambda rng, shape: np.zeros(shape),
    },
    fast=["metal", "sm_80", "sm_90a"],
)
def epilogue_split_k(A: dtypes[0][M, K], B: dtypes[0][K, N], C: dtypes[1][M, N]):
    """Blocks add products of parts of K atomically; sums of small integers are exact in any order."""
    M, N, K, splits = extents
    part = -(-K // (splits * 16)) * 16
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), splits, threads=128) as (bx, by, bz):
        a, b = T.alloc_shared((32, 16), dtypes[0]), T.alloc_shared((16, 32), dtypes[0])
        x, shared = T.alloc_fragment((32, 32), "float32"), T.alloc_shared((32, 32), "float32")
        T.clear(x)
        for k in T.Pipelined(part // 16, num_stages=2):
            T.copy(A[by * 32, bz * part + k * 16], a)
            T.copy(B[bz * part + k * 16, bx * 32], b)
            T.gemm(a, b, x)
        if adds == "a tile":
            T.copy(x, shared)
            T.atomic_add(C[by * 32, bx * 32], shared)
        elif adds == "a fragment":
            T.atomic_add(C[by * 32, bx * 32], x)
        else:
            for i, j in T.Parallel(32, 32):
                T.atomic_add(C[by * 32 + i, bx * 32 + j], x[i, j])


@program(
    tags={"blocks that stay"},
    parameters={"form": ["an epilogue", "a loop around", "a mask"], "stages": [2, 1, 4]},
    examples=[
        {},
        {"form": "a loop around"},
        {"form": "a mask"},
        {"form": "a mask", "stages": 1},
        {"form": "a mask", "stages": 4},
    ],
    targets=["llvm", "sm_80", "sm_90a", "gpu"],
    inputs={
        "mask": lambda rng, shape: (
            rng.integers(0, 2, shape) * np.array([1, 0, 1, 1, 1])[:, None, None]
        )
    },
)
def persistent_code_around_the_loop(
    A: float16[640, 320],
    B: float16[320, 256],
    bias: float16[256],
    mask: int32[5, 2, 5],
    C: float32[640, 256],
):
    """The count of iterations that were done goes on from one turn to the next."""
    with T.Kernel(2, 5, threads=256) as (bx, by):
        T.annotate_persistent()
        a, b = T.alloc_shared((128, 64), "float16"), T.alloc_shared((64, 128), "float16")
        row = T.alloc_shared((128,), "float16")
        c = T.alloc_fragment((128, 128), "float32")
        T.copy(bias[bx * 128], row)
        T.clear(c)
        if form == "a mask":
            for k in T.Pipelined(5, num_stages=stages):
                if mask[by, bx, k] > 0:
                    T.copy(A[by * 128, k * 64], a)
                    T.copy(B[k * 64, bx * 128], b)
                    T.gemm(a, b, c)
        elif form == "a loop around":
            for half in T.serial(2):
                for k in T.Pipelined(2, num_stages=stages):
                    T.copy(A[by * 128, (half * 3 + k) * 64], a)
                    T.copy(B[(half * 2 + k) * 64, bx * 128], b)
                    T.gemm(a, b, c)
        else:
            for k in T.Pipelined(5, num_stages=stages):
                T.copy(A[by * 128, k * 64], a)
                T.copy(B[k * 64, bx * 128], b)
                T.gemm(a, b, c)
        for i, j in T.Parallel(128, 128):
            c[i, j] = T.max(c[i, j] + row[j], 0)
        T.copy(c, C[by * 128, bx * 128])
