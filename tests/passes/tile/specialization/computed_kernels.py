"""Kernels whose producer computes tiles: conversions, dequantisation, elementwise steps on the way.

As of `kernels.py`, values are small integers. All of them ask for two roles: blocks as small as these
would share a multiprocessor.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

import tvmtile.language as T
from tests.pipelines import Run, named_in, numbers, product

N = 64
COMPUTED: dict[str, Callable[[], Run]] = {}
"""Those of which threads of the producer compute tiles."""
computed = named_in(COMPUTED)


def _converted(
    name: str, steps: int, stages: int, shape: tuple[int, int, int] = (N, N, 0), threads: int = 128
) -> None:
    """A product in steps of 64 of float32 by float16; the last extent is what K has less."""
    rows, columns, less = shape
    length, block = steps * N - less, threads // 2

    def run() -> Run:
        @T.prim_func
        def program(
            A: T.Tensor((rows, length), "float32"),
            B: T.Tensor((length, columns), "float16"),
            C: T.Tensor((rows, columns), "float32"),
        ):
            with T.Kernel(T.ceildiv(columns, N), T.ceildiv(rows, block), threads=threads) as (
                bx,
                by,
            ):
                T.annotate_warp_specialize()
                a, b = T.alloc_shared((block, N), "float16"), T.alloc_shared((N, N), "float16")
                c = T.alloc_fragment((block, N), "float32")
                T.clear(c)
                for k in T.Pipelined(steps, num_stages=stages):
                    T.copy(A[by * block, k * N], a)
                    T.copy(B[k * N, bx * N], b)
                    T.gemm(a, b, c)
                T.copy(c, C[by * block, bx * N])

        a, b = numbers(rows, length, dtype="float32"), numbers(length, columns)
        return Run(program, (a, b), product(a, b))

    COMPUTED[name] = run


_converted("converted_beside_tiles", 5, 3)
_converted("converted_with_one_stage", 3, 1)
_converted("converted_in_one_iteration", 1, 2)
_converted("converted_at_ragged_edges", 3, 2, (40, 72, 24))
_converted("registers_move_from_threads_that_convert", 3, 2, (128, 64, 0), 256)


@computed
def weights_times_scales() -> Run:
    """Bytes that become bfloat16, times a number of their row."""

    @T.prim_func
    def program(
        A: T.Tensor((N, 3 * N), "bfloat16"),
        W: T.Tensor((N, 3 * N), "int8"),
        scales: T.Tensor((N,), "bfloat16"),
        C: T.Tensor((N, N), "float32"),
    ):
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

    a, scales = numbers(N, 3 * N, dtype="bfloat16"), numbers(N, dtype="bfloat16")
    w = numbers(N, 3 * N, dtype="int8")
    return Run(program, (a, w, scales), product(a, (w * scales[:, None]).T))


@computed
def packed_weights_by_way_of_fragments() -> Run:
    """Two numbers of four bits a byte: loaded, unpacked, and stored where the product reads them."""

    @T.prim_func
    def program(
        A: T.Tensor((N, 4 * N), "float16"),
        W: T.Tensor((N, 2 * N), "uint8"),
        C: T.Tensor((N, N), "float32"),
    ):
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

    a, low, high = numbers(N, 4 * N), numbers(N, 2 * N) + 5, numbers(N, 2 * N) + 8
    packed = (low.int() | high.int() << 4).to(torch.uint8)
    plain = torch.stack((low, high), 2).view(N, 4 * N) - 8
    return Run(program, (a, packed), product(a, plain.T))


@computed
def both_operands_converted_and_nothing_else_copied() -> Run:
    @T.prim_func
    def program(
        A: T.Tensor((N, 3 * N), "float32"),
        B: T.Tensor((3 * N, N), "int8"),
        C: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            T.annotate_warp_specialize()
            a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            c = T.alloc_fragment((N, N), "float32")
            T.clear(c)
            for k in T.Pipelined(3, num_stages=2):
                T.copy(A[0, k * N], a)
                T.copy(B[k * N, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C)

    a, b = numbers(N, 3 * N, dtype="float32"), numbers(3 * N, N, dtype="int8")
    return Run(program, (a, b), product(a, b))


@computed
def converted_where_a_mask_and_a_bound_say() -> Run:
    """Iterations that all roles leave out, blocks without any, and a loop around."""

    @T.prim_func
    def program(
        A: T.Tensor((2, N, 4 * N), "float32"),
        B: T.Tensor((4 * N, N), "float16"),
        mask: T.Tensor((4,), "int32"),
        counts: T.Tensor((3,), "int32"),
        C: T.Tensor((3, 2, N, N), "float32"),
    ):
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

    a, b = numbers(2, N, 4 * N, dtype="float32"), numbers(4 * N, N)
    mask, counts = torch.tensor([1, 0, 1, 1]), (4, 0, 2)
    kept = a * mask.repeat_interleave(N)
    expected = torch.stack([product(kept[..., : n * N], b[: n * N]) for n in counts])
    return Run(program, (a, b, mask.int(), torch.tensor(counts).int()), expected)


@computed
def a_conversion_that_a_condition_leaves_out() -> Run:
    """The rest of the iteration is done: the tile is one of zeros then."""

    @T.prim_func
    def program(
        A: T.Tensor((N, 4 * N), "float32"),
        B: T.Tensor((4 * N, N), "float16"),
        C: T.Tensor((N, N), "float32"),
    ):
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

    a, b = numbers(N, 4 * N, dtype="float32"), numbers(4 * N, N)
    kept = a * (torch.arange(4) % 2 == 0).repeat_interleave(N)
    return Run(program, (a, b), product(kept, b))


@computed
def two_loops_that_convert_into_the_same_tiles() -> Run:
    @T.prim_func
    def program(
        A: T.Tensor((N, 5 * N), "float32"),
        B: T.Tensor((5 * N, N), "float16"),
        C: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            T.annotate_warp_specialize()
            a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            c = T.alloc_fragment((N, N), "float32")
            T.clear(c)
            for k in T.Pipelined(3, num_stages=2):
                T.copy(A[0, k * N], a)
                T.copy(B[k * N, 0], b)
                T.gemm(a, b, c)
            for i, j in T.Parallel(N, N):
                c[i, j] *= 2
            for k in T.Pipelined(3, 5, num_stages=2):
                for i, j in T.Parallel(N, N):
                    a[i, j] = A[i, k * N + j] + 1
                T.copy(B[k * N, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C)

    a, b = numbers(N, 5 * N, dtype="float32"), numbers(5 * N, N)
    first, second = slice(0, 3 * N), slice(3 * N, None)
    expected = 2 * product(a[:, first], b[first]) + product(a[:, second] + 1, b[second])
    return Run(program, (a, b), expected)


@computed
def converted_beside_rows_that_are_gathered() -> Run:
    """One stage is filled by cp.async, by stores, and by a tensor map."""

    @T.prim_func
    def program(
        A: T.Tensor((100, 3 * N), "float16"),
        B: T.Tensor((3 * N, N), "float32"),
        D: T.Tensor((3 * N, N), "float16"),
        rows: T.Tensor((N,), "int32"),
        C: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            T.annotate_warp_specialize()
            a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            d = T.alloc_shared((N, N), "float16")
            c = T.alloc_fragment((N, N), "float32")
            T.clear(c)
            for k in T.Pipelined(3, num_stages=2):
                T.gather_rows(A, a, rows, k * N)
                T.copy(B[k * N, 0], b)
                T.copy(D[k * N, 0], d)
                T.gemm(a, b, c)
                T.gemm(a, d, c)
            T.copy(c, C)

    a, b, d = numbers(100, 3 * N), numbers(3 * N, N, dtype="float32"), numbers(3 * N, N)
    rows = (torch.arange(N) * 37 % 100).int()
    return Run(program, (a, b, d, rows), product(a[rows.long()], b + d))


@computed
def converted_values_of_attention() -> Run:
    """Two products that are skewed, of which the second's tile is computed."""

    @T.prim_func
    def program(
        Q: T.Tensor((2 * N, N), "float16"),
        K: T.Tensor((3 * N, N), "float16"),
        V: T.Tensor((3 * N, N), "float32"),
        C: T.Tensor((2 * N, N), "float32"),
    ):
        with T.Kernel(1, threads=256):
            T.annotate_warp_specialize()
            q = T.alloc_shared((2 * N, N), "float16")
            k, v = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            scores = T.alloc_fragment((2 * N, N), "float32")
            weights = T.alloc_fragment((2 * N, N), "float16")
            c = T.alloc_fragment((2 * N, N), "float32")
            T.copy(Q, q)
            T.clear(c)
            for i in T.Pipelined(3, num_stages=2):
                T.copy(K[i * N, 0], k)
                T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                for r, s in T.Parallel(2 * N, N):
                    scores[r, s] = T.max(T.min(scores[r, s], 2), -2)
                T.copy(scores, weights)
                T.copy(V[i * N, 0], v)
                T.gemm(weights, v, c)
            T.copy(c, C)

    q, k, v = numbers(2 * N, N), numbers(3 * N, N), numbers(3 * N, N, dtype="float32")
    return Run(program, (q, k, v), product(product(q, k.T).clamp(-2, 2), v))


@computed
def converted_once_beside_what_is_converted_in_each_iteration() -> Run:
    """Threads convert a tile in front of the loop, too: no tensor map does."""

    @T.prim_func
    def program(
        A: T.Tensor((N, N), "float32"),
        B: T.Tensor((N, 3 * N), "float32"),
        C: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            T.annotate_warp_specialize()
            a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            c = T.alloc_fragment((N, N), "float32")
            T.clear(c)
            T.copy(A, a)
            for k in T.Pipelined(3, num_stages=2):
                T.copy(B[0, k * N], b)
                T.gemm(a, b, c)
            T.copy(c, C)

    a, b = numbers(N, N, dtype="float32"), numbers(N, 3 * N, dtype="float32")
    return Run(program, (a, b), product(a, b.view(N, 3, N).sum(1)))
