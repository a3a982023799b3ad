"""Scalar work of a block, and loops whose iterations store to elements that others have stored."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

GPUS = ["llvm", "metal", "sm_80", "sm_90a", "gpu"]


@program(
    parameters={"form": ["a branch", "loops", "names and variables"]},
    examples="form",
    inputs={"Y": [0, 1, 2, 5]},
    expects={"sm_80": ["if (((int)threadIdx.x) == 0)", "not if (Y_ptr", "not while (Y_ptr"]},
    fast=["metal"],
)
def scalars_of_an_element_that_changes(Y: int32[4]):
    """A statement that names no thread is done once a block, though its element changes."""
    with T.Kernel(4, threads=128) as bx:
        if form == "a branch":
            if Y[bx] < 3:
                Y[bx] += 1
            else:
                Y[bx] = Y[bx] - 4
        elif form == "loops":
            while Y[bx] < 8:
                Y[bx] = Y[bx] + 3
            for j in T.serial(Y[bx] % 4, Y[bx]):
                Y[bx] += j
        else:
            flat = T.view(Y, (2, 2))
            total = T.alloc_var("int32", 0)
            for step in T.serial(3):
                n = flat[bx // 2, bx % 2]
                Y[bx] = n + 1
                total += Y[bx]
                if total > 8:
                    tile = T.alloc_fragment((32,), "int32")
                    T.fill(tile, total)
                    T.reduce_max(tile, Y[bx : bx + 1])
                Y[bx] = Y[bx] + n


@program(
    parameters={
        "form": ["elements", "a tile", "two loops", "a view", "pipelined", "while", "dynamic"],
        "step": [64, 0, 128],
    },
    examples=[
        *({"form": form} for form in ("elements", "a tile", "two loops", "a view", "pipelined")),
        *({"form": form} for form in ("while", "dynamic")),
        {"form": "elements", "step": 0},
        {"form": "elements", "step": 128},
    ],
    targets=GPUS,
    fast=["metal", "sm_90a"],
)
def stores_of_later_iterations_stay(A: float32[128], C: float32[512], n: int32[2]):
    rows = T.reshape(C, (8, 64))
    with T.Kernel(1, threads=128):
        held = T.alloc_fragment((128,), "float32")
        loaded = T.alloc_shared((128,), "float32")
        if form == "elements":
            for m in T.serial(3):
                for i in T.Parallel(128):
                    C[m * step + i] = A[i] + m
        elif form == "a tile":
            for m in T.serial(3):
                for i in T.Parallel(128):
                    held[i] = A[i] + m
                T.copy(held, C[m * step])
        elif form == "two loops":
            for l in T.serial(2):
                for m in T.serial(3):
                    for i in T.Parallel(128):
                        C[l * step + m * 128 + i] = A[i] + m + l
        elif form == "a view":
            for m in T.serial(3):
                for i, j in T.Parallel(2, 64):
                    rows[m * step // 64 + i, j] = A[i * 64 + j] + m
        elif form == "pipelined":
            for m in T.Pipelined(3, num_stages=2):
                T.copy(A, loaded)
                for i in T.Parallel(128):
                    C[m * step + i] = loaded[127 - i] + m
        elif form == "while":
            at = T.alloc_var("int32", 0)
            while at < 3:
                for i in T.Parallel(128):
                    C[at * step + i] = A[i] + at
                at = at + 1
        else:
            for m in T.serial(3):
                for i in T.Parallel(128):
                    C[m * step + i + 0 * T.min(n[1], 0)] = A[i] + m


@program(targets=GPUS)
def stores_of_persistent_blocks(A: float32[128], C: float32[512]):
    with T.Kernel(2, threads=128) as block:
        for (m,) in T.Persistent([4], 2, block):
            for i in T.Parallel(128):
                C[m * 128 + i] = A[i] + m


@program(targets=["llvm", "sm_90a", "gpu"], fast=["sm_90a"])
def stores_of_consumers(A: float16[128, 64], B: float16[64, 64], C: float32[256, 64]):
    """Consumers wait for each other's stores, and the producer does not."""
    with T.Kernel(1, threads=256):
        a, b = T.alloc_shared((128, 32), "float16"), T.alloc_shared((64, 32), "float16")
        c = T.alloc_fragment((128, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[0, k * 32], a)
            T.copy(B[0, k * 32], b)
            T.gemm(a, b, c, transpose_B=True)
        for m in T.serial(3):
            for i, j in T.Parallel(128, 64):
                c[i, j] += 1
            T.copy(c, C[m * 64, 0], disable_tma=True)


@program(
    parameters={"extents": [(50, 128), (64, 128), (64, 100), (33, 65)]},
    examples=[{}, {"extents": (64, 128)}, {"extents": (33, 65)}],
    expects=lambda p: {
        "sm_80": ["*(uint4*)(((uint*)B_ptr)", "*(uint4*)(((uint*)A_vector_ptr)"]
        if p.extents[1] == 128
        else []
    },
    fast=["metal", "sm_80"],
)
def guards_of_the_users_own(
    A: T.Tensor(extents, "float16"), s: float16[1], B: T.Tensor(extents, "float16")
):
    """A factor in a fragment of one element, and a bounds check that is decided before the loop."""
    M, N = extents
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 32), threads=64) as (bx, by):
        factor = T.alloc_fragment((1,), "float16")
        factor[0] = s[0]
        for i, j in T.Parallel(32, 64):
            y = by * 32 + i
            x = bx * 64 + j
            if (y < M) and (x < N):
                B[y, x] = A[y, x] * factor[0]


@program(sizes=[{"n": 11}, {"n": 8}], fast=["metal"])
def guards_that_no_block_passes(A: float32[23, 24], B: float32[n, 24]):
    """A guard is dropped under a condition that can't hold, and later nothing shows that it can't."""
    with T.Kernel(T.ceildiv(n, 8), T.ceildiv(24, 24), threads=32) as (by, bx):
        s = T.alloc_shared((8, 24), "float32")
        T.clear(s)
        if bx >= 2:
            T.copy(A[0, bx * 24], s)
        T.copy(s, B[by * 8, bx * 24])


@program(
    parameters={"count": [32, 7, 0], "factor": [8, 1, 4, 64]},
    examples=[{}, {"count": 0, "factor": 4}, {"count": 7, "factor": 64}],
    sizes=[{"n": 29}, {"n": 3}],
)
def unrolled_by_a_factor(A: int32[64], B: int32[n]):
    """All iterations run once and in order, as many as there are; one that is left ends."""
    with T.Kernel(1, threads=32):
        for i in T.unroll(count if count else n, unroll_factor=factor):
            A[i] = A[i] * 3 + i
        for i in T.unroll(3, 40, 4, unroll_factor=factor):
            A[i] = A[i] + i
        for i in T.unroll(64, unroll_factor=4):
            if i == n:
                break
            A[i] = A[i] + 1
