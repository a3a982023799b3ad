"""Programs that show planted mistakes which no other program does (see tests/mutation)."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

N = 64
HOPPER = ["sm_90a", "gpu"]


@program(tags={"roles", "pipelined"}, targets=HOPPER, expects={"sm_90a": [": two roles"]})
def tiles_read_behind_the_product_that_reads_them(
    A: T.Tensor((N, 5 * N), "float16"),
    B: T.Tensor((5 * N, N), "float16"),
    C: T.Tensor((N, N), "float32"),
):
    """Tiles are given back behind the statement that reads them, once the product is done too."""
    with T.Kernel(1, threads=128):
        T.annotate_warp_specialize()
        a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        part, c = T.alloc_fragment((N, N), "float32"), T.alloc_fragment((N, N), "float32")
        T.clear(c)
        for k in T.Pipelined(5, num_stages=2):
            T.copy(A[0, k * N], a)
            T.copy(B[k * N, 0], b)
            T.gemm(a, b, part, clear_accum=True)
            for i, j in T.Parallel(N, N):
                c[i, j] += a[i, j] + b[i, j]
            for i, j in T.Parallel(N, N):
                c[i, j] += part[i, j]
        T.copy(c, C)


@program(
    tags={"roles", "attention"}, targets=HOPPER, expects={"sm_90a": [", skewed"]}, fast=["sm_90a"]
)
def factor_of_the_iteration_before(
    Q: T.Tensor((N, N), "float16"),
    K: T.Tensor((4 * N, N), "float16"),
    C: T.Tensor((N, N), "float32"),
):
    """The statement that sets the next factor waits for this one's use, and so for a product."""
    with T.Kernel(1, threads=128):
        T.annotate_warp_specialize()
        q, k = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
        scores = T.alloc_fragment((N, N), "float32")
        weights = T.alloc_fragment((N, N), "float16")
        factor = T.alloc_fragment((N,), "float32")
        c = T.alloc_fragment((N, N), "float32")
        T.copy(Q, q)
        T.clear(c)
        T.fill(factor, 1)
        for i in T.Pipelined(4, num_stages=2):
            T.copy(K[i * N, 0], k)
            T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
            for r, s in T.Parallel(N, N):
                scores[r, s] = T.max(T.min(scores[r, s], 2), -2)
            T.copy(scores, weights)
            for r, s in T.Parallel(N, N):
                c[r, s] *= factor[r]
            for r in T.Parallel(N):
                factor[r] = i + 1
            T.gemm(weights, k, c)
        T.copy(c, C)


@program(tags={"threads"}, fast=["metal"])
def one_of_the_threads_that_come(A: T.Tensor((64,), "int32"), C: T.Tensor((2,), "int32")):
    """The first of the threads that take a branch does what is the same for all of them."""
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        count = T.alloc_shared((1,), "int32")
        if tx >= 32:
            count[0] = A[0] + 1
            C[0] = A[1]
        T.sync_threads()
        if tx > 40 and tx < 60:
            C[1] = count[0]


@program(tags={"fragments"}, fast=["metal"])
def loop_over_the_middle_of_a_fragment(
    A: T.Tensor((N, N), "float32"), C: T.Tensor((N, N), "float32")
):
    """Threads that hold elements before the first one leave theirs."""
    with T.Kernel(1, threads=128):
        c = T.alloc_fragment((N, N), "float32")
        T.copy(A, c)
        for i, j in T.Parallel(N // 2, N):
            c[i + 16, j] = c[i + 16, j] * 2 + 1
        T.copy(c, C)


@program(
    tags={"floats"},
    parameters={"dtype": ["bfloat16", "float8_e4m3fn"]},
    inputs={"places": lambda rng, shape: np.array([0, 63, -(2**30), 5])[rng.integers(0, 4, shape)]},
)
def rounded_product_of_what_a_condition_guards(
    A: T.Tensor((64,), dtype), places: T.Tensor((128,), "int32"), C: T.Tensor((128,), "float32")
):
    """The place is far from all memory where the condition does not hold."""
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64,), dtype)
        T.copy(A, a)
        for i in T.Parallel(128):
            at = places[i]
            C[i] = T.if_then_else(at >= 0, T.cast(a[at] * a[at], "float32"), 0)


@program(tags={"integers"}, fast=["metal"])
def magnitudes_of_typed_constants(C: T.Tensor((4,), "int32")):
    with T.Kernel(1, threads=32):
        C[0] = T.abs(T.int32(2))
        C[1] = T.abs(T.int32(-7))
        C[2] = T.cast(T.abs(T.int8(-127)), "int32")
        C[3] = T.cast(T.abs(T.int64(-5)), "int32")
