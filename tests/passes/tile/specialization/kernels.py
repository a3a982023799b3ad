"""Kernels that WarpSpecialize splits: what may stand in, before, behind and around a pipelined loop.

Each is a function that gives a `Run`. All values are small integers, so that every way to compile a
program computes the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tvmtile.language as T
from tests.pipelines import Run, named_in, numbers, product
from tvmtile.layout import (
    make_full_bank_swizzled_layout,
    make_half_bank_swizzled_layout,
    make_swizzled_layout,
)

N = 64
KERNELS: dict[str, Callable[[], Run]] = {}
"""Those with a producer and consumers."""
kernel = named_in(KERNELS)
WITH_ONE_ROLE: dict[str, tuple[Callable[[], Run], str]] = {}
"""Those that the ordinary passes pipeline, and the reason."""


def with_one_role(reason: str) -> Callable[[Callable[[], Run]], Callable[[], Run]]:
    def add(function: Callable[[], Run]) -> Callable[[], Run]:
        WITH_ONE_ROLE[function.__name__] = (function, reason)
        return function

    return add


def _gemm(name: str, steps: int, stages: int, shape: tuple[int, int, int] = (N, N, 0)) -> None:
    """A product in steps of 64; the last extent says how much less K has than the steps."""
    rows, columns, less = shape
    length = steps * N - less

    def run() -> Run:
        @T.prim_func
        def program(
            A: T.Tensor((rows, length), "float16"),
            B: T.Tensor((length, columns), "float16"),
            C: T.Tensor((rows, columns), "float32"),
        ):
            with T.Kernel(T.ceildiv(columns, N), T.ceildiv(rows, N), threads=128) as (bx, by):
                a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
                c = T.alloc_fragment((N, N), "float32")
                T.clear(c)
                for k in T.Pipelined(steps, num_stages=stages):
                    T.copy(A[by * N, k * N], a)
                    T.copy(B[k * N, bx * N], b)
                    T.gemm(a, b, c)
                T.copy(c, C[by * N, bx * N])

        a, b = numbers(rows, length), numbers(length, columns)
        return Run(program, (a, b), product(a, b))

    KERNELS[name] = run


_gemm("one_stage", 3, 1)
_gemm("one_iteration", 1, 3)
_gemm("trips_that_stages_do_not_divide", 5, 3)
_gemm("ragged_edges", 3, 2, (40, 72, 24))


@kernel
def skipped_iterations() -> Run:
    """Blocks that a mask leaves out, and a condition that counts as the stages do."""

    @T.prim_func
    def program(
        A: T.Tensor((N, 5 * N), "float16"),
        B: T.Tensor((5 * N, N), "float16"),
        mask: T.Tensor((5,), "int32"),
        C: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            c = T.alloc_fragment((N, N), "float32")
            T.clear(c)
            for k in T.Pipelined(5, num_stages=2):
                if mask[k] > 0 or (k + 1) % 2 == 0:
                    T.copy(A[0, k * N], a)
                    T.copy(B[k * N, 0], b)
                    T.gemm(a, b, c)
            T.copy(c, C)

    a, b, mask = numbers(N, 5 * N), numbers(5 * N, N), torch.tensor([0, 1, 0, 0, 1])
    kept = (mask > 0) | (torch.arange(1, 6) % 2 == 0)
    return Run(program, (a, b, mask.int()), product(a * kept.repeat_interleave(N), b))


@kernel
def names_at_the_start_of_an_iteration_and_of_a_branch() -> Run:
    @T.prim_func
    def program(
        A: T.Tensor((N, 4 * N), "float16"),
        B: T.Tensor((4 * N, N), "float16"),
        order: T.Tensor((4,), "int32"),
        C: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            c = T.alloc_fragment((N, N), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=3):
                place = order[k]
                if place < 3:
                    at = place * N
                    T.copy(A[0, at], a)
                    T.copy(B[at, 0], b)
                    T.gemm(a, b, c)
                    for i, j in T.Parallel(N, N):
                        c[i, j] += place
            T.copy(c, C)

    a, b = numbers(N, 4 * N), numbers(4 * N, N)
    order = torch.tensor([2, 0, 3, 1], dtype=torch.int32)
    return Run(program, (a, b, order), product(a[:, : 3 * N], b[: 3 * N]) + 3)


@kernel
def rows_that_threads_gather_beside_tiles() -> Run:
    @T.prim_func
    def program(
        A: T.Tensor((100, 3 * N), "float16"),
        B: T.Tensor((3 * N, N), "float16"),
        rows: T.Tensor((N,), "int32"),
        C: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            named = T.alloc_shared((N,), "int32")
            a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            c = T.alloc_fragment((N, N), "float32")
            T.copy(rows, named)
            T.clear(c)
            for k in T.Pipelined(3, num_stages=2):
                T.gather_rows(A, a, named, k * N)
                T.copy(B[k * N, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C)

    a, b = numbers(100, 3 * N), numbers(3 * N, N)
    rows = (torch.arange(N) * 37 % 101 - 1).int()  # -1: a row of zeros
    read = torch.where((rows >= 0)[:, None], a[rows.clamp(0).long()], 0)
    return Run(program, (a, b, rows), product(read, b))


@kernel
def fragments_before_the_loop_and_code_behind_it() -> Run:
    """Sums that begin with a tensor; a row of biases, and a scratch tile that threads clear."""

    @T.prim_func
    def program(
        A: T.Tensor((N, 3 * N), "float16"),
        B: T.Tensor((3 * N, N), "float16"),
        first: T.Tensor((N, N), "float32"),
        bias: T.Tensor((N,), "float32"),
        C: T.Tensor((N, N), "float32"),
    ):
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

    a, b, first = numbers(N, 3 * N), numbers(3 * N, N), numbers(N, N, dtype="float32")
    bias = numbers(N, dtype="float32")
    expected = (product(a, b) + first + bias).clamp_min(0).T
    return Run(program, (a, b, first, bias), expected)


@kernel
def dynamic_trips_and_starts() -> Run:
    """Of each block; one has no iteration, and one ends before it begins."""

    @T.prim_func
    def program(
        A: T.Tensor((N, 6 * N), "float16"),
        B: T.Tensor((6 * N, N), "float16"),
        starts: T.Tensor((5,), "int32"),
        ends: T.Tensor((5,), "int32"),
        C: T.Tensor((5, N, N), "float32"),
    ):
        with T.Kernel(5, threads=128) as bx:
            a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            c = T.alloc_fragment((N, N), "float32")
            T.clear(c)
            for k in T.Pipelined(starts[bx], ends[bx], num_stages=2):
                T.copy(A[0, k * N], a)
                T.copy(B[k * N, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C[bx, 0, 0])

    a, b = numbers(N, 6 * N), numbers(6 * N, N)
    bounds = [(0, 6), (2, 5), (3, 3), (4, 1), (5, 6)]
    expected = [product(a[:, i * N : j * N], b[i * N : j * N]) for i, j in bounds]
    starts, ends = (torch.tensor(x, dtype=torch.int32) for x in zip(*bounds, strict=True))
    return Run(program, (a, b, starts, ends), torch.stack(expected))


@kernel
def products_in_flight_over_dynamic_trips() -> Run:
    """The sums of a loop without iterations meet those of the others behind the wait for these."""

    @T.prim_func
    def program(
        A: T.Tensor((2 * N, 5 * N), "float16"),
        B: T.Tensor((5 * N, 2 * N), "float16"),
        counts: T.Tensor((4,), "int32"),
        C: T.Tensor((4, 2 * N, 2 * N), "float32"),
    ):
        with T.Kernel(4, threads=128) as bx:
            a, b = T.alloc_shared((2 * N, N), "float16"), T.alloc_shared((N, 2 * N), "float16")
            c = T.alloc_fragment((2 * N, 2 * N), "float32")
            T.clear(c)
            for k in T.Pipelined(counts[bx], num_stages=3):
                T.copy(A[0, k * N], a)
                T.copy(B[k * N, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C[bx, 0, 0])

    a, b, counts = numbers(2 * N, 5 * N), numbers(5 * N, 2 * N), (5, 0, 1, -1)
    expected = [product(a[:, : N * max(n, 0)], b[: N * max(n, 0)]) for n in counts]
    return Run(program, (a, b, torch.tensor(counts).int()), torch.stack(expected))


@kernel
def persistent_and_serial_loops_around_it() -> Run:
    """Three iterations of two stages: a phase goes on from one tile to the next."""

    @T.prim_func
    def program(
        A: T.Tensor((2, 2 * N, 3 * N), "float16"),
        B: T.Tensor((2, 3 * N, 3 * N), "float16"),
        C: T.Tensor((2, 2 * N, 3 * N), "float32"),
    ):
        with T.Kernel(4, threads=128) as bx:
            a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            c = T.alloc_fragment((N, N), "float32")
            for batch in T.serial(2):
                for i, j in T.Persistent([2, 3], 4, bx):
                    T.clear(c)
                    for k in T.Pipelined(3, num_stages=2):
                        T.copy(A[batch, i * N, k * N], a)
                        T.copy(B[batch, k * N, j * N], b)
                        T.gemm(a, b, c)
                    T.copy(c, C[batch, i * N, j * N])

    a, b = numbers(2, 2 * N, 3 * N), numbers(2, 3 * N, 3 * N)
    return Run(program, (a, b), product(a, b))


@kernel
def a_loop_in_a_branch() -> Run:
    @T.prim_func
    def program(
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

    a, b, wanted = numbers(N, 3 * N), numbers(3 * N, N), torch.tensor([1, 0, 2])
    expected = product(a, b) * (wanted > 0)[:, None, None]
    return Run(program, (a, b, wanted.int()), expected)


@kernel
def two_loops_with_the_same_tiles() -> Run:
    @T.prim_func
    def program(
        A: T.Tensor((N, 5 * N), "float16"),
        B: T.Tensor((5 * N, N), "float16"),
        C: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
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
                T.copy(A[0, k * N], a)
                T.copy(B[k * N, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C)

    a, b = numbers(N, 5 * N), numbers(5 * N, N)
    first, second = (product(a[:, s], b[s]) for s in (slice(0, 3 * N), slice(3 * N, None)))
    return Run(program, (a, b), 2 * first + second)


@kernel
def two_products_into_one_accumulator() -> Run:
    """One before the loop, of tiles that stay, and two in each iteration."""

    @T.prim_func
    def program(
        D: T.Tensor((N, N), "float16"),
        A: T.Tensor((N, 3 * N), "float16"),
        B: T.Tensor((3 * N, N), "float16"),
        C: T.Tensor((N, N), "float32"),
    ):
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

    d, a, b = numbers(N, N), numbers(N, 3 * N), numbers(3 * N, N)
    return Run(program, (d, a, b), product(d, d) + product(a + d.repeat(1, 3), b))


def _annotated(name: str, layouts: tuple[Any, Any]) -> None:
    """Tiles that lie as is asked for, and as tensor maps write them."""

    def run() -> Run:
        @T.prim_func
        def program(
            A: T.Tensor((N, 3 * N), "float16"),
            B: T.Tensor((3 * N, N), "float16"),
            C: T.Tensor((N, N), "float32"),
        ):
            with T.Kernel(1, threads=128):
                T.annotate_warp_specialize()
                a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
                T.annotate_layout({a: layouts[0](a), b: layouts[1](b)})
                c = T.alloc_fragment((N, N), "float32")
                T.clear(c)
                for k in T.Pipelined(3, num_stages=2):
                    T.copy(A[0, k * N], a)
                    T.copy(B[k * N, 0], b)
                    T.gemm(a, b, c)
                T.copy(c, C)

        a, b = numbers(N, 3 * N), numbers(3 * N, N)
        return Run(program, (a, b), product(a, b))

    KERNELS[name] = run


_annotated("layouts_that_suit_a_product", (make_swizzled_layout, make_swizzled_layout))
_annotated(
    "layouts_of_two_widths", (make_half_bank_swizzled_layout, make_full_bank_swizzled_layout)
)


@kernel
def operands_whose_place_is_computed_on_the_device() -> Run:
    """Where a group's rows begin is a variable that is stored several times."""

    @T.prim_func
    def program(
        A: T.Tensor((5 * N, 2 * N), "float16"),
        B: T.Tensor((3, 2 * N, N), "float16"),
        starts: T.Tensor((3,), "int32"),
        C: T.Tensor((5, N, N), "float32"),
    ):
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

    a, b = numbers(5 * N, 2 * N), numbers(3, 2 * N, N)
    starts = torch.tensor([0, 1, 3], dtype=torch.int32)
    groups = torch.tensor([0, 1, 1, 2, 2])
    return Run(program, (a, b, starts), product(a.view(5, N, 2 * N), b[groups]))


@kernel
def two_products_with_a_sum_between_them() -> Run:
    """As attention: the second product goes on under the next iteration's first one."""

    @T.prim_func
    def program(
        Q: T.Tensor((2 * N, N), "float16"),
        K: T.Tensor((3 * N, N), "float16"),
        V: T.Tensor((3 * N, N), "float16"),
        C: T.Tensor((2 * N, N), "float32"),
    ):
        with T.Kernel(1, threads=256):
            q = T.alloc_shared((2 * N, N), "float16")
            k, v = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            scores = T.alloc_fragment((2 * N, N), "float32")
            weights = T.alloc_fragment((2 * N, N), "float16")
            total = T.alloc_fragment((2 * N,), "float32")
            c = T.alloc_fragment((2 * N, N), "float32")
            T.copy(Q, q)
            T.clear(c)
            T.clear(total)
            for i in T.Pipelined(3, num_stages=2):
                T.copy(K[i * N, 0], k)
                T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                for r, s in T.Parallel(2 * N, N):
                    scores[r, s] = T.max(T.min(scores[r, s], 2), -2)
                T.reduce_sum(scores, total, dim=1, clear=False)
                T.copy(scores, weights)
                for r, s in T.Parallel(2 * N, N):
                    c[r, s] *= -1
                T.copy(V[i * N, 0], v)
                T.gemm(weights, v, c)
            for r, s in T.Parallel(2 * N, N):
                c[r, s] += total[r]
            T.copy(c, C)

    q, k, v = numbers(2 * N, N), numbers(3 * N, N), numbers(3 * N, N)
    weights = product(q, k.T).clamp(-2, 2)
    parts = [product(weights[:, s], v[s]) for s in torch.arange(3 * N).split(N)]
    expected = parts[0] - parts[1] + parts[2] + weights.sum(1, keepdim=True)
    return Run(program, (q, k, v), expected)


@kernel
def a_row_that_moves_to_registers() -> Run:
    """The copies of a tile of one axis are no rows that a swizzle sets apart."""

    @T.prim_func
    def program(
        A: T.Tensor((N, 3 * N), "float16"),
        B: T.Tensor((3 * N, N), "float16"),
        scales: T.Tensor((3 * N,), "float32"),
        C: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            scale = T.alloc_shared((N,), "float32")
            own = T.alloc_fragment((N,), "float32")
            part, c = T.alloc_fragment((N, N), "float32"), T.alloc_fragment((N, N), "float32")
            T.clear(c)
            for k in T.Pipelined(3, num_stages=2):
                T.copy(A[0, k * N], a)
                T.copy(B[k * N, 0], b)
                T.copy(scales[k * N], scale)
                T.gemm(a, b, part, clear_accum=True)
                T.copy(scale, own)
                for i, j in T.Parallel(N, N):
                    c[i, j] += part[i, j] * own[i]
            T.copy(c, C)

    a, b, scales = numbers(N, 3 * N), numbers(3 * N, N), numbers(3 * N, dtype="float32")
    steps = [slice(k * N, (k + 1) * N) for k in range(3)]
    expected = sum(product(a[:, s], b[s]) * scales[s, None] for s in steps)
    return Run(program, (a, b, scales), expected)


# What TileLang's compiler was reported to hang on, to refuse or to compute wrongly ----------------


@kernel
def one_iteration_of_whole_rows() -> Run:
    """The only tile is all of its tensor: a copy of one run of bytes has to arrive too."""

    @T.prim_func
    def program(
        X: T.Tensor((N,), "bfloat16"),
        W: T.Tensor((N, 512), "bfloat16"),
        P: T.Tensor((512,), "float32"),
    ):
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

    x, w = numbers(N, dtype="bfloat16"), numbers(N, 512, dtype="bfloat16")
    return Run(program, (x, w), product(x[None], w)[0])


@kernel
def rows_of_numbers_beside_tiles() -> Run:
    """As in attention's backward pass: a product, the row that its sums need, another product."""

    @T.prim_func
    def program(
        Q: T.Tensor((4 * N, N), "float16"),
        K: T.Tensor((N, N), "float16"),
        row: T.Tensor((4 * N,), "float32"),
        D: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            k, q = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            own = T.alloc_shared((N,), "float32")
            scores = T.alloc_fragment((N, N), "float32")
            weights = T.alloc_fragment((N, N), "float16")
            d = T.alloc_fragment((N, N), "float32")
            T.copy(K, k)
            T.clear(d)
            for i in T.Pipelined(4, num_stages=2):
                T.copy(Q[i * N, 0], q)
                T.gemm(k, q, scores, transpose_B=True, clear_accum=True)
                T.copy(row[i * N], own)
                for r, s in T.Parallel(N, N):
                    scores[r, s] = T.max(T.min(scores[r, s], 2), -2) * own[s]
                T.copy(scores, weights)
                T.gemm(weights, q, d)
            T.copy(d, D)

    q, k, row = numbers(4 * N, N), numbers(N, N), numbers(4 * N, dtype="float32")
    weights = product(k, q.T).clamp(-2, 2) * row
    return Run(program, (q, k, row), product(weights, q))


def _steps_of(width: int) -> None:
    """A step along K that is no power of two: no swizzle is as wide."""

    def run() -> Run:
        @T.prim_func
        def program(
            A: T.Tensor((N, 2 * width), "float16"),
            B: T.Tensor((2 * width, N), "float16"),
            C: T.Tensor((N, N), "float32"),
        ):
            with T.Kernel(1, threads=128):
                a = T.alloc_shared((N, width), "float16")
                b = T.alloc_shared((width, N), "float16")
                c = T.alloc_fragment((N, N), "float32")
                T.clear(c)
                for k in T.Pipelined(2, num_stages=2):
                    T.copy(A[0, k * width], a)
                    T.copy(B[k * width, 0], b)
                    T.gemm(a, b, c)
                T.copy(c, C)

        a, b = numbers(N, 2 * width), numbers(2 * width, N)
        return Run(program, (a, b), product(a, b))

    KERNELS[f"steps_of_{width}"] = run


_steps_of(48)
_steps_of(80)


@kernel
def a_loop_around_that_is_left() -> Run:
    """Both roles leave it: between a copy and the loop that uses it, and behind the loop."""

    @T.prim_func
    def program(
        A: T.Tensor((5, N, N), "float16"),
        B: T.Tensor((5, 3 * N, N), "float16"),
        flags: T.Tensor((5,), "int32"),
        C: T.Tensor((5, N, N), "float32"),
    ):
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

    a, b = numbers(5, N, N), numbers(5, 3 * N, N)
    expected = torch.full((5, N, N), 77.0)
    sums = torch.zeros(N, N)
    for turn, place in ((0, 0), (2, 2), (3, 4)):
        sums += product(a[turn], b[turn].reshape(3, N, N).sum(0))
        expected[place] = sums
    return Run(program, (a, b, torch.tensor([0, 1, 0, 2, 0], dtype=torch.int32)), expected)


@kernel
def a_row_used_with_a_tile_that_the_product_uses_too() -> Run:
    """The row comes with the other tile of the product, and so with both."""

    @T.prim_func
    def program(
        A: T.Tensor((N, 3 * N), "float16"),
        B: T.Tensor((3 * N, N), "float16"),
        scales: T.Tensor((3 * N,), "float32"),
        C: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            scale = T.alloc_shared((N,), "float32")
            c, d = T.alloc_fragment((N, N), "float32"), T.alloc_fragment((N,), "float32")
            T.clear(c)
            T.clear(d)
            for k in T.Pipelined(3, num_stages=2):
                T.copy(A[0, k * N], a)
                T.copy(B[k * N, 0], b)
                T.copy(scales[k * N], scale)
                for i in T.Parallel(N):
                    d[i] = d[i] + scale[i] * T.cast(a[i, 3], "float32")
                T.gemm(a, b, c)
            for i, j in T.Parallel(N, N):
                c[i, j] += d[i]
            T.copy(c, C)

    a, b, scales = numbers(N, 3 * N), numbers(3 * N, N), numbers(3 * N, dtype="float32")
    d = (a[:, 3::N].float() * scales.view(3, N).T).sum(1)
    return Run(program, (a, b, scales), product(a, b) + d[:, None])


# What is no candidate -----------------------------------------------------------------------------


@with_one_role("scale[0:32] float16 may not begin where its swizzle does")
def a_short_row_of_several_stages() -> Run:
    """The second copy of 64 bytes would begin where no tensor map can write."""

    @T.prim_func
    def program(
        A: T.Tensor((N, 3 * N), "float16"),
        B: T.Tensor((3 * N, N), "float16"),
        scales: T.Tensor((3 * 32,), "float16"),
        C: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            scale = T.alloc_shared((32,), "float16")
            c = T.alloc_fragment((N, N), "float32")
            T.clear(c)
            for k in T.Pipelined(3, num_stages=3):
                T.copy(A[0, k * N], a)
                T.copy(B[k * N, 0], b)
                T.copy(scales[k * 32], scale)
                T.gemm(a, b, c)
                for i, j in T.Parallel(N, N):
                    c[i, j] += scale[j % 32]
            T.copy(c, C)

    a, b, scales = numbers(N, 3 * N), numbers(3 * N, N), numbers(96)
    expected = product(a, b) + scales.view(3, 32).float().sum(0).repeat(2)
    return Run(program, (a, b, scales), expected)


@with_one_role("rows of row[2, 250] float32 may not begin at multiples of 16 bytes")
def rows_that_begin_anywhere() -> Run:
    """Threads copy what tensor maps don't describe, while tiles come that they could."""

    @T.prim_func
    def program(
        A: T.Tensor((N, 4 * N), "float16"),
        B: T.Tensor((4 * N, N), "float16"),
        row: T.Tensor((2, 250), "float32"),
        C: T.Tensor((2, N, N), "float32"),
    ):
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

    a, b, row = numbers(N, 4 * N), numbers(4 * N, N), numbers(2, 250, dtype="float32")
    added = torch.nn.functional.pad(row, (0, 6)).view(2, 1, 4, N).sum(2)
    return Run(program, (a, b, row), product(a, b) + added)


@with_one_role("the loop is inside of a statement that only consumers do")
def a_loop_in_a_while() -> Run:
    """As parts of stream-K's tiles follow each other."""

    @T.prim_func
    def program(
        A: T.Tensor((N, 6 * N), "float16"),
        B: T.Tensor((6 * N, N), "float16"),
        lengths: T.Tensor((3,), "int32"),
        C: T.Tensor((3, N, N), "float32"),
    ):
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

    a, b, lengths = numbers(N, 6 * N), numbers(6 * N, N), torch.tensor([1, 3, 4])
    parts = [slice(0, N), slice(N, 4 * N), slice(4 * N, None)]
    expected = torch.stack([product(a[:, part], b[part]) for part in parts])
    return Run(program, (a, b, lengths.int()), expected)


@with_one_role("it depends on the statement in line")
def a_tile_that_is_read_before_it_is_copied() -> Run:
    """An iteration multiplies what the one before has copied, or what was there at first."""

    @T.prim_func
    def program(
        A: T.Tensor((N, 4 * N), "float16"),
        B: T.Tensor((N, N), "float16"),
        C: T.Tensor((N, N), "float32"),
    ):
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

    a, b = numbers(N, 4 * N), numbers(N, N)
    read = sum(a[:, k * N : (k + 1) * N] for k in (0, 0, 1, 2))
    return Run(program, (a, b), product(read, b))


@with_one_role("blocks fit on a multiprocessor, each under the others' products")
def copies_that_need_arithmetic() -> Run:
    """One converts, one decodes two numbers of a byte."""

    @T.prim_func
    def program(
        A: T.Tensor((N, 3 * N), "float32"),
        B: T.Tensor((N, 3 * N // 2), "uint8"),
        C: T.Tensor((N, N), "float32"),
    ):
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

    a = numbers(N, 3 * N, dtype="float32")
    b = torch.arange(N * 3 * N // 2).mul(37).remainder(256).to(torch.uint8).view(N, -1)
    decoded = torch.stack([b & 15, b >> 4], dim=-1).flatten(1)
    return Run(program, (a, b), product(a, decoded.T))


@with_one_role("the layout of a[64, 64] float16 is none that a tensor map describes")
def a_layout_that_tensor_maps_do_not_carry() -> Run:
    @T.prim_func
    def program(
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

    a, b = numbers(N, 3 * N), numbers(3 * N, N)
    return Run(program, (a, b), product(a, b))


@with_one_role("the copies depend on c, which only consumers know")
def a_loop_around_that_is_left_by_what_was_computed() -> Run:
    a, b = numbers(N, 3 * N), numbers(3 * N, N)
    whole = product(a, b)
    first = float(whole[0, 0])
    assert first, "two turns are more than one and a half"

    @T.prim_func
    def program(
        A: T.Tensor((N, 3 * N), "float16"),
        B: T.Tensor((3 * N, N), "float16"),
        C: T.Tensor((N, N), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            c, total = T.alloc_fragment((N, N), "float32"), T.alloc_shared((N, N), "float32")
            T.clear(c)
            for _ in T.serial(4):
                for k in T.Pipelined(3, num_stages=2):
                    T.copy(A[0, k * N], a)
                    T.copy(B[k * N, 0], b)
                    T.gemm(a, b, c)
                T.copy(c, total)
                if T.abs(total[0, 0]) > 1.5 * abs(first):
                    break
            T.copy(c, C)

    return Run(program, (a, b), 2 * whole)


@with_one_role("nothing copies from global memory into a shared tile")
def only_a_fragment_that_nobody_uses_is_copied() -> Run:
    """What threads copy ahead fills no shared tile."""

    @T.prim_func
    def program(A: T.Tensor((N, N), "float32"), C: T.Tensor((N, N), "float32")):
        with T.Kernel(1, threads=128):
            T.annotate_warp_specialize()
            a, c = T.alloc_fragment((N, N), "float16"), T.alloc_fragment((N, N), "float32")
            T.clear(c)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A, a)
                for i, j in T.Parallel(N, N):
                    c[i, j] += k
            T.copy(c, C)

    return Run(program, (numbers(N, N, dtype="float32"),), torch.ones(N, N))
