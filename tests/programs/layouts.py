"""Fragments whose elements are needed in different threads: shared out alike, or staged."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

WAYS = [("Square", "FullRow"), ("Square", "FullCol"), ("FullCol", "FullRow")]
STAGED = dict.fromkeys(["rows", "displaced axis", "view"], "g") | dict.fromkeys(
    ["largest", "columns", "pairs", "own"], "f"
)
"""Forms, and the fragment that is staged."""


@program(
    tags={"gemm", "layout"},
    parameters={"ways": WAYS, "meet": ["by elements", "in the same sums"]},
    examples=[{}, {"meet": "in the same sums"}],
    expects={"sm_80": ["mma.sync"]},
    fast=["metal"],
)
def products_that_meet(
    A: T.Tensor((64, 64), "float16"),
    B: T.Tensor((64, 64), "float16"),
    C: T.Tensor((64, 64), "float32"),
):
    """They are shared out alike."""
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        x = T.alloc_fragment((64, 64), "float32")
        y = T.alloc_fragment((64, 64), "float32")
        rows = T.alloc_fragment((64,), "float32")
        T.clear(x)
        T.clear(y)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[:, k * 32 : k * 32 + 32], a)
            T.copy(B[k * 32 : k * 32 + 32, :], b)
            T.gemm(a, b, x, policy=getattr(T.GemmWarpPolicy, ways[0]))
            if meet == "by elements":
                T.gemm(a, b, y, policy=getattr(T.GemmWarpPolicy, ways[1]))
            else:
                T.gemm(a, b, x, policy=getattr(T.GemmWarpPolicy, ways[1]))
        T.reduce_sum(x, rows, dim=1)
        for i, j in T.Parallel(64, 64):
            y[i, j] += x[i, j] + rows[i]
        T.copy(y, C)


@program(
    tags={"gemm", "layout", "pipelined"},
    fast=["sm_80"],
    expects={
        "sm_80": ["mma.sync"],
        "sm_90a": ["mma.sync"],
        "metal": ["simdgroup_multiply_accumulate"],
    },
)
def sums_and_their_mirror_image(
    A: T.Tensor((32, 64), "float16"),
    B: T.Tensor((64, 32), "float16"),
    C: T.Tensor((32, 32), "float32"),
):
    """No way to share out a product has an element and its mirror image in one thread."""
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((32, 32), "float16")
        b = T.alloc_shared((32, 32), "float16")
        x = T.alloc_fragment((32, 32), "float32")
        y = T.alloc_fragment((32, 32), "float32")
        T.clear(y)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[:, k * 32 : k * 32 + 32], a)
            T.copy(B[k * 32 : k * 32 + 32, :], b)
            T.gemm(a, b, x, clear_accum=True)
            T.gemm(a, b, y)
            for i, j in T.Parallel(32, 32):
                y[i, j] += x[j, i]
        T.copy(y, C)


@program(
    tags={"gemm", "layout"},
    targets=("sm_80", "sm_90a", "gpu"),
    expects={"sm_80": ["mma.sync"], "sm_90a": ["mma.sync"]},
)
def operand_in_two_layouts(
    A: T.Tensor((64, 64), "float16"),
    B: T.Tensor((64, 64), "float16"),
    C: T.Tensor((64, 64), "float32"),
):
    with T.Kernel(1, threads=128):
        a = T.alloc_fragment((64, 64), "float16")
        b = T.alloc_shared((64, 64), "float16")
        x = T.alloc_fragment((64, 64), "float32")
        y = T.alloc_fragment((64, 64), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, x, clear_accum=True, impl="mma")
        T.gemm(b, a, y, clear_accum=True, impl="mma")
        for i, j in T.Parallel(64, 64):
            y[i, j] += x[i, j]
        T.copy(y, C)


@program(
    tags={"gemm", "layout"},
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
def product_of_a_masked_product(
    A: T.Tensor((64, 64), dtypes[0]),
    B: T.Tensor((64, 64), dtypes[0]),
    C: T.Tensor((64, 64), dtypes[1]),
):
    """Warpgroups side by side need all columns of p, each of them has some, and int8 lies otherwise."""
    dtype, sums = dtypes
    with T.Kernel(1, threads=threads):
        a = T.alloc_shared((64, 64), dtype)
        b = T.alloc_shared((64, 64), dtype)
        x = T.alloc_fragment((64, 64), sums)
        y = T.alloc_fragment((64, 64), sums)
        p = T.alloc_fragment((64, 64), dtype)
        T.copy(A, a)
        T.copy(B, b)
        T.clear(y)
        for k in T.serial(2):
            T.gemm(
                a,
                b,
                x,
                transpose_B=True,
                clear_accum=True,
                policy=getattr(T.GemmWarpPolicy, policy),
            )
            if is_viewed:
                flat = T.reshape(p, (4096,))
                T.clear(flat)
            for i, j in T.Parallel(64, 64):
                p[i, j] = T.if_then_else(i >= j, T.clamp(x[i, j], -8, 8), k)
            T.gemm(p, b, y, transpose_B=True, policy=getattr(T.GemmWarpPolicy, policy))
            T.gemm(a, b, y, transpose_B=True, policy=getattr(T.GemmWarpPolicy, policy))
        T.copy(y, C)


@program(tags={"gemm", "layout"})
def products_that_keep_their_ways(
    A: T.Tensor((128, 64), "float16"),
    B: T.Tensor((64, 16), "float16"),
    C: T.Tensor((128, 64), "float32"),
):
    """Half of 16 columns is less than an instruction of Hopper's reads of rows of 32 bytes."""
    with T.Kernel(1, threads=256):
        a = T.alloc_shared((128, 64), "float16")
        b = T.alloc_shared((64, 16), "float16")
        p = T.alloc_shared((128, 16), "float16")
        s = T.alloc_fragment((128, 16), "float32")
        c = T.alloc_fragment((128, 64), "float32")
        m = T.alloc_fragment((128,), "float32")
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
    tags={"layout"},
    expects={"sm_80": ["not __shared__"], "metal": ["not threadgroup float"]},
)
def axis_that_a_serial_loop_counts(A: T.Tensor((8,), "float32"), C: T.Tensor((128,), "float32")):
    """Parts of a sum that are put together one by one: every thread has all parts of its columns."""
    with T.Kernel(1, threads=128):
        parts = T.alloc_fragment((8, 128), "float32")
        largest = T.alloc_fragment((128,), "float32")
        total = T.alloc_fragment((128,), "float32")
        for k, j in T.Parallel(8, 128):
            parts[k, j] = A[k] * j
        T.reduce_max(parts, largest, dim=0)
        T.clear(total)
        for k in T.serial(8):
            for j in T.Parallel(128):
                total[j] += T.exp(parts[k, j] - largest[j])
        T.copy(total, C)


@program(
    tags={"layout"},
    parameters={"form": [*STAGED], "is_viewed": [False, True]},
    examples=[*({"form": form} for form in STAGED), {"form": "columns", "is_viewed": True}],
    expects=lambda p: {"sm_80": ["not for ("]} if p.form == "own" else {},
    fast=["metal"],
)
def fragment_in_shared_memory(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
    """Iterations that change one element come one after the other; `own`: each changes its own."""
    with T.Kernel(1, threads=64):
        f = T.alloc_fragment((64,), "float32")
        g = T.alloc_fragment((64, 64), "float32")
        T.copy(A, g)
        T.clear(f)
        if form == "rows":  # whose threads were chosen freely
            T.copy(g[41:55, 0:64], g[5:19, 0:64])
        elif form == "displaced axis":  # iterations of j are not those of the elements
            for i, j in T.Parallel(64, 4):
                total = T.alloc_var("float32", init=0)
                for v in T.serial(3):
                    g[i, j + v * 5] = g[i, j + v * 5] + v
                    total = total + g[i, j + v * 5]
                A[i, j] = total
        elif form == "view":  # of a view
            row = T.reshape(g, (4096,))
            square = T.reshape(row, (128, 32))
            for i, j in T.Parallel(128, 32):
                square[i, j] *= 2
        elif form == "own":
            own = T.reshape(f, (8, 8))
            for i in T.Parallel(64):
                own[i // 8, i % 8] += A[0, i]
        else:
            for i, j in T.Parallel(64, 8):
                if form == "largest":
                    if A[j, i] > 0:
                        f[i] = T.max(f[i], A[j, i])
                else:
                    f[i // 2 if form == "pairs" else i] += A[j, i]
        if is_viewed:
            viewed = T.reshape(f, (8, 8))
            for i, j in T.Parallel(8, 8):
                viewed[i, j] = viewed[i, j] + 1
        if STAGED[form] == "g":
            T.copy(g, C)
        else:
            for i in T.Parallel(64):
                C[0, i] = f[63 - i]
