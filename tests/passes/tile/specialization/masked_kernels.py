"""Kernels that WarpSpecialize splits, of which a condition leaves out iterations.

As of `kernels.py`, values are small integers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

import tvmtile.language as T
from tests.pipelines import Run, named_in, numbers, product

N = 64
MASKED: dict[str, Callable[[], Run]] = {}
"""What one condition leaves out, both roles leave out."""
masked = named_in(MASKED)


def _kept(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Columns, those that a mask of steps leaves out being zero."""
    return tensor * (mask > 0).repeat_interleave(N)


def _sums(name: str, stages: int, masks: list[list[int]]) -> None:
    """A block for each mask. With four stages a product is in flight over the iteration."""
    blocks, steps = len(masks), len(masks[0])

    def run() -> Run:
        @T.prim_func
        def program(
            A: T.Tensor((N, steps * N), "float16"),
            B: T.Tensor((steps * N, N), "float16"),
            mask: T.Tensor((blocks, steps), "int32"),
            C: T.Tensor((blocks, N, N), "float32"),
        ):
            with T.Kernel(blocks, threads=128) as bx:
                a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
                c = T.alloc_fragment((N, N), "float32")
                T.clear(c)
                for k in T.Pipelined(steps, num_stages=stages):
                    if mask[bx, k] > 0:
                        T.copy(A[0, k * N], a)
                        T.copy(B[k * N, 0], b)
                        T.gemm(a, b, c)
                T.copy(c, C[bx, 0, 0])

        a, b = numbers(N, steps * N), numbers(steps * N, N)
        mask = torch.tensor(masks, dtype=torch.int32)
        return Run(program, (a, b, mask), torch.stack([product(_kept(a, row), b) for row in mask]))

    MASKED[name] = run


_sums(
    "in_flight_over_what_is_left_out",
    4,
    [
        [0, 1, 1, 0, 0, 1, 0, 1, 1],
        [1, 1, 1, 1, 1, 1, 1, 1, 1],
        [0, 0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 0, 0, 0, 0, 0],
        [1, 0, 0, 0, 0, 0, 0, 0, 1],
    ],
)
_sums("one_stage_of_what_is_left", 1, [[0, 1, 0, 1], [0, 0, 0, 0]])
_sums("one_iteration_or_none", 3, [[1], [0]])


@masked
def names_before_a_branch_and_in_it() -> Run:
    """An iteration is left out by an entry of a list, by its place in it, or for a whole block."""

    @T.prim_func
    def program(
        A: T.Tensor((N, 4 * N), "float16"),
        B: T.Tensor((4 * N, N), "float16"),
        order: T.Tensor((2, 5), "int32"),
        limits: T.Tensor((2,), "int32"),
        C: T.Tensor((2, N, N), "float32"),
    ):
        with T.Kernel(2, threads=128) as bx:
            a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            c = T.alloc_fragment((N, N), "float32")
            T.clear(c)
            for k in T.Pipelined(5, num_stages=2):
                place = order[bx, k]
                last = limits[bx]
                if place >= 0 and k < last:
                    at = place * N
                    T.copy(A[0, at], a)
                    T.copy(B[at, 0], b)
                    T.gemm(a, b, c)
                    for i, j in T.Parallel(N, N):
                        c[i, j] += place + k
            T.copy(c, C[bx, 0, 0])

    a, b, order = numbers(N, 4 * N), numbers(4 * N, N), [[2, -1, 3, 0, 1], [-1, -1, 1, 0, 2]]
    expected = torch.zeros(2, N, N)
    for block, places in enumerate(order):
        for k, at in enumerate(places):
            if at >= 0 and k < 3 + block:
                s = slice(at * N, at * N + N)
                expected[block] += product(a[:, s], b[s]) + at + k
    return Run(program, (a, b, torch.tensor(order).int(), torch.tensor([3, 4]).int()), expected)


@masked
def dynamic_trips_and_starts_and_a_mask() -> Run:
    @T.prim_func
    def program(
        A: T.Tensor((2 * N, 6 * N), "float16"),
        B: T.Tensor((6 * N, 2 * N), "float16"),
        starts: T.Tensor((5,), "int32"),
        ends: T.Tensor((5,), "int32"),
        mask: T.Tensor((6,), "int32"),
        C: T.Tensor((5, 2 * N, 2 * N), "float32"),
    ):
        with T.Kernel(5, threads=128) as bx:
            a, b = T.alloc_shared((2 * N, N), "float16"), T.alloc_shared((N, 2 * N), "float16")
            c = T.alloc_fragment((2 * N, 2 * N), "float32")
            T.clear(c)
            for k in T.Pipelined(starts[bx], ends[bx], num_stages=3):
                if mask[k] > 0:
                    T.copy(A[0, k * N], a)
                    T.copy(B[k * N, 0], b)
                    T.gemm(a, b, c)
            T.copy(c, C[bx, 0, 0])

    a, b, mask = numbers(2 * N, 6 * N), numbers(6 * N, 2 * N), torch.tensor([0, 1, 1, 0, 1, 0])
    bounds = [(0, 6), (2, 5), (3, 3), (4, 1), (5, 6)]
    parts = _kept(a, mask)
    expected = [product(parts[:, i * N : j * N], b[i * N : j * N]) for i, j in bounds]
    starts, ends = (torch.tensor(x, dtype=torch.int32) for x in zip(*bounds, strict=True))
    return Run(program, (a, b, starts, ends, mask.int()), torch.stack(expected))


@masked
def loops_with_the_same_tiles_in_others() -> Run:
    """One leaves out what a mask says, the next none: their phases go on from one to the other."""

    @T.prim_func
    def program(
        A: T.Tensor((2, 2 * N, 5 * N), "float16"),
        B: T.Tensor((2, 5 * N, 3 * N), "float16"),
        mask: T.Tensor((2, 2, 3), "int32"),
        C: T.Tensor((2, 2 * N, 3 * N), "float32"),
    ):
        with T.Kernel(4, threads=128) as bx:
            a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            c = T.alloc_fragment((N, N), "float32")
            for batch in T.serial(2):
                for i, j in T.Persistent([2, 3], 4, bx):
                    T.clear(c)
                    for k in T.Pipelined(3, num_stages=2):
                        if mask[batch, i, k] > 0:
                            T.copy(A[batch, i * N, k * N], a)
                            T.copy(B[batch, k * N, j * N], b)
                            T.gemm(a, b, c)
                    for r, s in T.Parallel(N, N):
                        c[r, s] *= 2
                    for k in T.Pipelined(3, 3 + i + 1, num_stages=2):
                        T.copy(A[batch, i * N, k * N], a)
                        T.copy(B[batch, k * N, j * N], b)
                        T.gemm(a, b, c)
                    T.copy(c, C[batch, i * N, j * N])

    a, b = numbers(2, 2 * N, 5 * N), numbers(2, 5 * N, 3 * N)
    mask = torch.tensor([[[0, 1, 0], [1, 0, 1]], [[0, 0, 0], [1, 1, 1]]])
    expected = torch.zeros(2, 2 * N, 3 * N)
    for n in range(2):
        for i in range(2):
            row, end = a[n, i * N : i * N + N], (4 + i) * N
            first = product(_kept(row[:, : 3 * N], mask[n, i]), b[n, : 3 * N])
            second = product(row[:, 3 * N : end], b[n, 3 * N : end])
            expected[n, i * N : i * N + N] = 2 * first + second
    return Run(program, (a, b, mask.int()), expected)


@masked
def two_products_of_the_blocks_of_a_mask() -> Run:
    """As attention: the second product of what was done last goes on under the next first one.

    The tile that all iterations read is copied for the next turn while this one has work.
    """

    @T.prim_func
    def program(
        Q: T.Tensor((3, 2 * N, N), "float16"),
        K: T.Tensor((5 * N, N), "float16"),
        V: T.Tensor((5 * N, N), "float16"),
        mask: T.Tensor((3, 5), "int32"),
        C: T.Tensor((3, 2 * N, N), "float32"),
    ):
        with T.Kernel(1, threads=256):
            q = T.alloc_shared((2 * N, N), "float16")
            k, v = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            scores = T.alloc_fragment((2 * N, N), "float32")
            weights = T.alloc_fragment((2 * N, N), "float16")
            c = T.alloc_fragment((2 * N, N), "float32")
            for turn in T.serial(3):
                T.copy(Q[turn, 0, 0], q)
                T.clear(c)
                for i in T.Pipelined(5, num_stages=2):
                    if mask[turn, i] > 0:
                        T.copy(K[i * N, 0], k)
                        T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                        T.copy(V[i * N, 0], v)
                        for r, s in T.Parallel(2 * N, N):
                            scores[r, s] = T.max(T.min(scores[r, s], 2 + i), -2)
                        T.copy(scores, weights)
                        for r, s in T.Parallel(2 * N, N):
                            c[r, s] *= -1
                        T.gemm(weights, v, c)
                T.copy(c, C[turn, 0, 0])

    q, k, v = numbers(3, 2 * N, N), numbers(5 * N, N), numbers(5 * N, N)
    mask = torch.tensor([[0, 1, 0, 1, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]], dtype=torch.int32)
    expected = torch.zeros(3, 2 * N, N)
    for turn in range(3):
        for i in range(5):
            if mask[turn, i]:
                s = slice(i * N, i * N + N)
                scores = product(q[turn], k[s].T).clamp(-2, 2 + i)
                expected[turn] = -expected[turn] + product(scores, v[s])
    return Run(program, (q, k, v, mask), expected)


@masked
def rows_that_threads_gather_for_a_tile_of_flags() -> Run:
    """The producer is a warpgroup, and copies the flags that it decides by into a tile of its own."""

    @T.prim_func
    def program(
        A: T.Tensor((100, 5 * N), "float16"),
        B: T.Tensor((5 * N, N), "float16"),
        rows: T.Tensor((N,), "int32"),
        mask: T.Tensor((32,), "int32"),
        C: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            named, flags = T.alloc_shared((N,), "int32"), T.alloc_shared((32,), "int32")
            a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            c = T.alloc_fragment((N, N), "float32")
            T.copy(rows, named)
            T.copy(mask, flags)
            T.clear(c)
            for k in T.Pipelined(5, num_stages=2):
                if flags[k] > 0:
                    T.gather_rows(A, a, named, k * N)
                    T.copy(B[k * N, 0], b)
                    T.gemm(a, b, c)
            T.copy(c, C)

    a, b = numbers(100, 5 * N), numbers(5 * N, N)
    rows = (torch.arange(N) * 37 % 101 - 1).int()  # -1: a row of zeros
    read = torch.where((rows >= 0)[:, None], a[rows.clamp(0).long()], 0)
    mask = torch.zeros(32, dtype=torch.int32)
    mask[[0, 2, 3]] = 1
    return Run(program, (a, b, rows, mask), product(_kept(read, mask[:5]), b))


@masked
def moved_beside_constants() -> Run:
    """A guard makes two loops of one that moves rows, in iterations that a condition leaves some of."""

    @T.prim_func
    def program(
        A: T.Tensor((N, 5 * N), "float16"),
        B: T.Tensor((5 * N, N), "float16"),
        C: T.Tensor((N, N), "float32"),
    ):
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

    a, b = numbers(N, 5 * N), numbers(5 * N, N)
    kept = torch.zeros_like(a)
    for k in (1, 4):
        kept[1:, k * N : k * N + N] = a[:-1, k * N : k * N + N]
    return Run(program, (a, b), product(kept, b))
