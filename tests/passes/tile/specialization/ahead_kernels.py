"""Kernels that WarpSpecialize splits, whose products are all waited for in their iteration.

The tiles of the next iteration are waited for behind the last product then. As of `kernels.py`, values
are small integers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

import tvmtile.language as T
from tests.pipelines import Run, named_in, numbers, product

N = 64
AHEAD: dict[str, Callable[[], Run]] = {}
ahead = named_in(AHEAD)


@T.macro
def _add(a, b, row, partial, total):
    """Products of a step of K, and what they are scaled by."""
    T.gemm(a, b, partial, clear_accum=True)
    for i, j in T.Parallel(N, N):
        total[i, j] += partial[i, j] * row[i]


def _scaled(a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor, steps: range) -> torch.Tensor:
    """The same of whole tensors; a row of scales for each step."""
    parts = (product(a[:, k * N : k * N + N], b[k * N : k * N + N]) for k in steps)
    return sum((p * rows[k, :, None] for k, p in zip(steps, parts, strict=True)), torch.zeros(N, N))


@ahead
def sums_that_are_scaled_in_each_of_dynamic_trips() -> Run:
    """Six, two, none, one; one loop ends before it begins."""
    bounds = [(0, 6), (2, 4), (3, 3), (4, 1), (5, 6)]

    @T.prim_func
    def program(
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
                T.copy(A[0, k * N], a)
                T.copy(B[k * N, 0], b)
                T.copy(rows[k, 0:N], row)
                _add(a, b, row, partial, c)
            T.copy(c, C[bx, 0, 0])

    a, b, rows = numbers(N, 6 * N), numbers(6 * N, N), numbers(6, N, dtype="float32")
    expected = torch.stack([_scaled(a, b, rows, range(*each)) for each in bounds])
    starts, ends = (torch.tensor(x, dtype=torch.int32) for x in zip(*bounds, strict=True))
    return Run(program, (a, b, rows, starts, ends), expected)


@ahead
def parts_that_share_their_partial_sums_in_persistent_blocks() -> Run:
    """As FP8 with scales of blocks: two products in turn; five trips of four stages count on."""

    @T.prim_func
    def program(
        A: T.Tensor((4 * N, 5 * N), "float16"),
        B: T.Tensor((5 * N, 3 * N), "float16"),
        rows: T.Tensor((5, 4 * N), "float32"),
        C: T.Tensor((4 * N, 3 * N), "float32"),
    ):
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

    a, b, rows = numbers(4 * N, 5 * N), numbers(5 * N, 3 * N), numbers(5, 4 * N, dtype="float32")
    expected = torch.cat(
        [
            torch.cat(
                [
                    _scaled(a[i : i + N], b[:, j : j + N], rows[:, i : i + N], range(5))
                    for j in range(0, 3 * N, N)
                ],
                dim=1,
            )
            for i in range(0, 4 * N, N)
        ]
    )
    return Run(program, (a, b, rows), expected)


@ahead
def two_loops_whose_tiles_go_on_in_a_loop_that_is_left() -> Run:
    """Trips of both are known in the kernel only, and none of some turns."""
    turns = [(2, 1, 0), (3, 3, 1), (0, 2, 0), (1, 0, 0), (1, 4, 2), (5, 5, 0)]

    @T.prim_func
    def program(
        A: T.Tensor((N, 5 * N), "float16"),
        B: T.Tensor((5 * N, N), "float16"),
        rows: T.Tensor((5, N), "float32"),
        turns: T.Tensor((6, 3), "int32"),
        C: T.Tensor((6, N, N), "float32"),
    ):
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
                    T.copy(A[0, k * N], a)
                    T.copy(B[k * N, 0], b)
                    T.copy(rows[k, 0:N], row)
                    _add(a, b, row, partial, c)
                for k in T.Pipelined(turns[turn, 1], num_stages=4):
                    T.copy(A[0, k * N], a)
                    T.copy(B[k * N, 0], b)
                    T.copy(rows[k, 0:N], row)
                    _add(a, b, row, partial, c)
                T.copy(c, C[turn, 0, 0])
                if turns[turn, 2] == 2:
                    break

    a, b, rows = numbers(N, 5 * N), numbers(5 * N, N), numbers(5, N, dtype="float32")
    expected = torch.full((6, N, N), 77.0)
    for turn in (0, 2, 3, 4):
        first, second, _ = turns[turn]
        expected[turn] = sum(_scaled(a, b, rows, range(n)) for n in (first, second))
    return Run(program, (a, b, rows, torch.tensor(turns, dtype=torch.int32)), expected)
