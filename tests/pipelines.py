"""Programs with pipelined loops of every kind, and what they compute.

A case is a function of the number of stages that gives a `Run`. All values are small integers, so every
target computes the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import tvmtile.language as T
from tests.metal.programs import gemm

TILE = 32
THREADS = 64


@dataclass(frozen=True)
class Run:
    """A program, its arguments but the last one, which is written, and what that is then."""

    program: Any
    arguments: tuple[torch.Tensor, ...]
    expected: torch.Tensor

    def check(self, kernel: Any, device: str = "cpu") -> None:
        """Compare what a kernel of the program computes."""
        result = torch.full(self.expected.shape, 77, dtype=self.expected.dtype, device=device)
        kernel(*(argument.to(device) for argument in self.arguments), result)
        assert torch.equal(result.cpu(), self.expected)


def named_in(table: dict[str, Callable[..., Run]]) -> Callable[..., Callable[..., Run]]:
    """A decorator that puts a function into a table, by its name."""

    def add(function: Callable[..., Run]) -> Callable[..., Run]:
        table[function.__name__] = function
        return function

    return add


CASES: dict[str, Callable[[int], Run]] = {}
case = named_in(CASES)


def numbers(*shape: int, dtype: str = "float16") -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(-3, 4, shape, generator=generator).to(getattr(torch, dtype))


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.double() @ b.double()).float()


def _products(name: str, m: int, n: int, k: int, **options: Any) -> None:
    def run(stages: int) -> Run:
        program = gemm(m, n, k, block=(32, 32, 16), threads=THREADS, stages=stages, **options)
        a, b = numbers(m, k), numbers(k, n)
        return Run(program, (a, b), product(a, b))

    CASES[name] = run


for _trips in (1, 2, 3, 7):
    _products(f"product_of_{_trips}_steps", 32, 64, 16 * _trips)
_products("ragged_product", 40, 72, 88)
_products("product_of_unaligned_rows", 40, 30, 90)
_products("product_of_rows_of_odd_length", 40, 33, 45)


def _sums(rows: torch.Tensor) -> torch.Tensor:
    """What loops that compute `total = total * 2 + row` end with."""
    total = torch.zeros(rows.shape[1:], dtype=torch.float64)
    for row in rows.double():
        total = total * 2 + row
    return total.float()


@case
def dynamic_trips_and_starts(stages: int) -> Run:
    bounds = [(1, 6), (0, 0), (0, 1), (0, 2), (0, 6), (1, 4), (3, 6), (5, 6), (4, 2)]

    @T.prim_func
    def program(
        A: T.Tensor((6, TILE, TILE), "float16"),
        starts: T.Tensor((len(bounds),), "int32"),
        stops: T.Tensor((len(bounds),), "int32"),
        C: T.Tensor((len(bounds), TILE, TILE), "float32"),
    ):
        with T.Kernel(len(bounds), threads=THREADS) as bx:
            tile = T.alloc_shared((TILE, TILE), "float16")
            total = T.alloc_fragment((TILE, TILE), "float32")
            T.clear(total)
            for k in T.Pipelined(starts[bx], stops[bx], num_stages=stages):
                T.copy(A[k, :, :], tile)
                for i, j in T.Parallel(TILE, TILE):
                    total[i, j] = total[i, j] * 2 + tile[j, i]
            T.copy(total, C[bx, :, :])

    a = numbers(6, TILE, TILE)
    starts, stops = (torch.tensor(bound, dtype=torch.int32) for bound in zip(*bounds, strict=True))
    expected = [_sums(a[first:last].mT) for first, last in bounds]
    return Run(program, (a, starts, stops), torch.stack(expected))


@case
def dynamic_length(stages: int) -> Run:
    n = T.dynamic("n")

    @T.prim_func
    def program(A: T.Tensor((n, 64), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=THREADS):
            tile = T.alloc_shared((64,), "float32")
            total = T.alloc_fragment((64,), "float32")
            T.clear(total)
            for k in T.Pipelined(n, num_stages=stages):
                T.copy(A[k, :], tile)
                for i in T.Parallel(64):
                    total[i] = total[i] * 2 + tile[63 - i]
            T.copy(total, C)

    a = numbers(5, 64, dtype="float32")
    return Run(program, (a,), _sums(a.flip(1)))


@case
def a_ragged_vector(stages: int) -> Run:
    @T.prim_func
    def program(A: T.Tensor((1237,), "float16"), C: T.Tensor((512,), "float32")):
        with T.Kernel(1, threads=THREADS):
            tile = T.alloc_shared((512,), "float16")
            total = T.alloc_fragment((512,), "float32")
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(1237, 512), num_stages=stages):
                T.copy(A[k * 512], tile)
                for i in T.Parallel(512):
                    total[i] = total[i] * 2 + tile[511 - i]
            T.copy(total, C)

    a = numbers(1237)
    padded = torch.nn.functional.pad(a, (0, 3 * 512 - 1237)).reshape(3, 512)
    return Run(program, (a,), _sums(padded.flip(1)))


@case
def loops_after_each_other_that_share_a_tile(stages: int) -> Run:
    @T.prim_func
    def program(A: T.Tensor((5, TILE, TILE), "float16"), C: T.Tensor((2, TILE, TILE), "float32")):
        with T.Kernel(1, threads=THREADS):
            tile = T.alloc_shared((TILE, TILE), "float16")
            total = T.alloc_fragment((TILE, TILE), "float32")
            T.copy(A[4, :, :], tile)
            T.copy(tile, total)
            for k in T.Pipelined(5, num_stages=stages):
                T.copy(A[k, :, :], tile)
                for i, j in T.Parallel(TILE, TILE):
                    total[i, j] = total[i, j] * 2 + tile[j, i]
            for k in T.Pipelined(1, 4, num_stages=2):
                T.copy(A[k, :, :], tile)
                for i, j in T.Parallel(TILE, TILE):
                    total[i, j] = total[i, j] * 2 + tile[j, i]
            T.copy(tile, C[1, :, :])
            T.copy(total, C[0, :, :])

    a = numbers(5, TILE, TILE)
    rows = torch.cat([a[4:], a.mT, a[1:4].mT])
    return Run(program, (a,), torch.stack([_sums(rows), a[3].float()]))


@case
def loops_in_persistent_and_serial_loops(stages: int) -> Run:
    @T.prim_func
    def program(
        A: T.Tensor((6, 5, TILE, TILE), "float16"), C: T.Tensor((6, TILE, TILE), "float32")
    ):
        with T.Kernel(2, threads=THREADS) as bx:
            tile = T.alloc_shared((TILE, TILE), "float16")
            total = T.alloc_fragment((TILE, TILE), "float32")
            for r, c in T.Persistent([3, 2], 2, bx):
                T.clear(total)
                for half in T.serial(2):
                    for k in T.Pipelined(half * 2, 2 + half * 3, num_stages=stages):
                        T.copy(A[r * 2 + c, k, :, :], tile)
                        for i, j in T.Parallel(TILE, TILE):
                            total[i, j] = total[i, j] * 2 + tile[j, i]
                T.copy(total, C[r * 2 + c, :, :])

    a = numbers(6, 5, TILE, TILE)
    return Run(program, (a,), torch.stack([_sums(rows.mT) for rows in a]))


@case
def a_loop_in_a_loop(stages: int) -> Run:
    @T.prim_func
    def program(
        A: T.Tensor((4, 64), "float32"),
        B: T.Tensor((4, 3, 64), "float32"),
        C: T.Tensor((64,), "float32"),
    ):
        with T.Kernel(1, threads=THREADS):
            outer = T.alloc_shared((64,), "float32")
            inner = T.alloc_shared((64,), "float32")
            total = T.alloc_fragment((64,), "float32")
            T.clear(total)
            for k in T.Pipelined(4, num_stages=stages):
                T.copy(A[k, :], outer)
                for j in T.Pipelined(3, num_stages=3):
                    T.copy(B[k, j, :], inner)
                    for i in T.Parallel(64):
                        total[i] = total[i] * 2 + outer[63 - i] * inner[i ^ 1]
            T.copy(total, C)

    a, b = numbers(4, 64, dtype="float32"), numbers(4, 3, 64, dtype="float32")
    swapped = b.reshape(4, 3, 32, 2).flip(3).reshape(4, 3, 64)
    return Run(program, (a, b), _sums((a.flip(1)[:, None] * swapped).reshape(12, 64)))


@case
def blocks_that_a_mask_leaves_out(stages: int) -> Run:
    masks = torch.tensor([[1, 0, 1, 1, 0, 0, 1], [0] * 7, [1] * 7, [0] * 6 + [1]])

    @T.prim_func
    def program(
        A: T.Tensor((32, 112), "float16"),
        B: T.Tensor((112, 32), "float16"),
        mask: T.Tensor((4, 7), "int32"),
        C: T.Tensor((4, 32, 32), "float32"),
    ):
        with T.Kernel(4, threads=THREADS) as bx:
            A_s = T.alloc_shared((32, 16), "float16")
            B_s = T.alloc_shared((16, 32), "float16")
            total = T.alloc_fragment((32, 32), "float32")
            T.clear(total)
            for k in T.Pipelined(7, num_stages=stages):
                if mask[bx, k] != 0:
                    at = k * 16
                    T.copy(A[0, at], A_s)
                    T.copy(B[at, 0], B_s)
                    T.gemm(A_s, B_s, total)
            T.copy(total, C[bx, :, :])

    a, b = numbers(32, 112), numbers(112, 32)
    columns = masks.repeat_interleave(16, 1).double()
    expected = (a.double() * columns[:, None]) @ b.double()
    return Run(program, (a, b, masks.int()), expected.float())


@case
def rows_by_a_table(stages: int) -> Run:
    @T.prim_func
    def program(
        A: T.Tensor((8, TILE, TILE), "float16"),
        rows: T.Tensor((6,), "int32"),
        C: T.Tensor((9, TILE, TILE), "float16"),
    ):
        with T.Kernel(1, threads=THREADS):
            tile = T.alloc_shared((TILE, TILE), "float16")
            for k in T.Pipelined(6, num_stages=stages):
                row = rows[k]
                other = row + 1
                T.copy(A[row, :, :], tile)
                for i, j in T.Parallel(TILE, TILE):
                    C[other, i, j] = tile[j, i] + row
            for i, j in T.Parallel(TILE, TILE):
                C[0, i, j] = 0
            for i, j in T.Parallel(TILE, TILE):
                C[2, i, j] = 0
            for i, j in T.Parallel(TILE, TILE):
                C[6, i, j] = 0

    a, rows = numbers(8, TILE, TILE), torch.tensor([3, 0, 6, 2, 7, 4], dtype=torch.int32)
    expected = torch.zeros(9, TILE, TILE, dtype=torch.float16)
    expected[rows.long() + 1] = a[rows.long()].mT + rows[:, None, None].half()
    return Run(program, (a, rows), expected)


@case
def a_consumer_that_writes_back(stages: int) -> Run:
    @T.prim_func
    def program(A: T.Tensor((5, TILE, TILE), "float16"), C: T.Tensor((5, TILE, TILE), "float16")):
        with T.Kernel(1, threads=THREADS):
            tile = T.alloc_shared((TILE, TILE), "float16")
            for k in T.Pipelined(5, num_stages=stages):
                T.copy(A[k, :, :], tile)
                for i, j in T.Parallel(TILE, TILE):
                    tile[i, j] = tile[i, j] * 2 + 1
                for i, j in T.Parallel(TILE, TILE):
                    C[k, i, j] = tile[j, i]

    a = numbers(5, TILE, TILE)
    return Run(program, (a,), a.mT * 2 + 1)


def _by_hand(name: str, order: list[int], stage: list[int]) -> None:
    def run(stages: int) -> Run:
        del stages

        @T.prim_func
        def program(
            A: T.Tensor((32, 80), "float16"),
            B: T.Tensor((80, 32), "float16"),
            C: T.Tensor((32, 32), "float32"),
        ):
            with T.Kernel(1, threads=THREADS):
                A_s = T.alloc_shared((32, 16), "float16")
                B_s = T.alloc_shared((16, 32), "float16")
                total = T.alloc_fragment((32, 32), "float32")
                T.clear(total)
                for k in T.Pipelined(5, order=order, stage=stage):
                    T.copy(A[0, k * 16], A_s)
                    T.copy(B[k * 16, 0], B_s)
                    T.gemm(A_s, B_s, total)
                T.copy(total, C)

        a, b = numbers(32, 80), numbers(80, 32)
        return Run(program, (a, b), product(a, b))

    CASES[name] = run


_by_hand("copies_first", [0, 1, 2], [0, 0, 2])
_by_hand("product_first", [1, 2, 0], [0, 0, 1])
_by_hand("product_first_two_ahead", [1, 2, 0], [0, 0, 2])
_by_hand("copies_of_two_stages", [0, 1, 2], [0, 1, 3])
_by_hand("copies_around_the_product", [2, 0, 1], [0, 1, 3])
_by_hand("one_copy_does_not_run_ahead", [0, 1, 2], [0, 1, 1])


@case
def a_copy_and_a_conversion(stages: int) -> Run:
    @T.prim_func
    def program(
        A: T.Tensor((32, 64), "float16"),
        B: T.Tensor((32, 64), "int8"),
        scales: T.Tensor((4, 32), "float16"),
        C: T.Tensor((32, 32), "float32"),
    ):
        with T.Kernel(1, threads=THREADS):
            A_s = T.alloc_shared((32, 16), "float16")
            B_s = T.alloc_shared((32, 16), "float16")  # converted on the way
            scales_s = T.alloc_shared((32,), "float16")
            total = T.alloc_fragment((32, 32), "float32")
            part = T.alloc_fragment((32, 32), "float32")
            T.clear(total)
            for k in T.Pipelined(4, num_stages=stages):
                T.copy(A[0, k * 16], A_s)
                T.copy(B[0, k * 16], B_s)
                T.copy(scales[k, :], scales_s)
                T.clear(part)
                T.gemm(A_s, B_s, part, transpose_B=True)
                for i, j in T.Parallel(32, 32):
                    total[i, j] += part[i, j] * scales_s[i]
            T.copy(total, C)

    a, b, scales = numbers(32, 64), numbers(32, 64, dtype="int8"), numbers(4, 32)
    left, right = (x.double().reshape(32, 4, 16) for x in (a, b))
    products = torch.einsum("mkc,nkc->kmn", left, right)
    return Run(program, (a, b, scales), (products * scales.double()[:, :, None]).sum(0).float())


@case
def a_tile_in_parts(stages: int) -> Run:
    @T.prim_func
    def program(A: T.Tensor((5, TILE, 24), "float16"), C: T.Tensor((5, TILE, TILE), "float16")):
        with T.Kernel(1, threads=THREADS):
            tile = T.alloc_shared((TILE, TILE), "float16")
            for k in T.Pipelined(5, num_stages=stages):
                T.fill(tile, 7)
                T.copy(A[k, :, 0:16], tile[:, 0:16])
                T.copy(A[k, :, 16:24], tile[:, 16:24])
                for i, j in T.Parallel(TILE, TILE):
                    C[k, i, j] = tile[j, i]

    a = numbers(5, TILE, 24)
    return Run(program, (a,), torch.nn.functional.pad(a, (0, 8), value=7).mT)


@case
def the_last_tile_after_the_loop(stages: int) -> Run:
    @T.prim_func
    def program(
        A: T.Tensor((6, TILE, TILE), "float16"),
        trips: T.Tensor((4,), "int32"),
        C: T.Tensor((4, TILE, TILE), "float16"),
    ):
        with T.Kernel(4, threads=THREADS) as bx:
            tile = T.alloc_shared((TILE, TILE), "float16")
            total = T.alloc_fragment((TILE, TILE), "float16")
            T.clear(total)
            count = trips[bx]
            T.copy(A[5, :, :], tile)
            for k in T.Pipelined(count, num_stages=stages):
                T.copy(A[k, :, :], tile)
                for i, j in T.Parallel(TILE, TILE):
                    total[i, j] = tile[j, i]
            for i, j in T.Parallel(TILE, TILE):
                C[bx, i, j] = tile[j, i] + total[i, j]

    a, trips = numbers(6, TILE, TILE), torch.tensor([0, 1, 2, 5], dtype=torch.int32)
    turned = a.mT
    expected = [turned[5], *(turned[count - 1] * 2 for count in (1, 2, 5))]
    return Run(program, (a, trips), torch.stack(expected))


@case
def rows_of_a_group_found_at_run_time(stages: int) -> Run:
    """The rows that are copied are named by variables that are stored again and again."""
    sizes, starts = (20, 40, 36), (0, 20, 60)

    @T.prim_func
    def program(
        A: T.Tensor((96, 64), "float16"),
        B: T.Tensor((3, 64, TILE), "float16"),
        first: T.Tensor((3,), "int32"),
        C: T.Tensor((3, TILE, TILE), "float32"),
    ):
        with T.Kernel(3, threads=THREADS) as bx:
            A_s = T.alloc_shared((TILE, 16), "float16")
            B_s = T.alloc_shared((16, TILE), "float16")
            total = T.alloc_fragment((TILE, TILE), "float32")
            group = T.alloc_var("int32", 0)
            for i in T.serial(3):
                group = T.if_then_else(bx >= i, i, group)
            row = first[group]
            T.clear(total)
            for k in T.Pipelined(4, num_stages=stages):
                T.copy(A[row : row + TILE, k * 16 : (k + 1) * 16], A_s)
                T.copy(B[group, k * 16 : (k + 1) * 16, 0:TILE], B_s)
                T.gemm(A_s, B_s, total)
            T.copy(total, C[bx, 0, 0])

    a, b = numbers(sum(sizes), 64), numbers(3, 64, TILE)
    first = torch.tensor(starts, dtype=torch.int32)
    rows = [torch.nn.functional.pad(a, (0, 0, 0, TILE))[start : start + TILE] for start in starts]
    return Run(program, (a, b, first), product(torch.stack(rows), b))


@case
def a_sum_that_the_next_copy_needs(stages: int) -> Run:
    """It can't be pipelined: what is copied depends on what was computed."""

    @T.prim_func
    def program(
        A: T.Tensor((8, 64), "int32"),
        C: T.Tensor((64,), "int32"),
    ):
        with T.Kernel(1, threads=THREADS):
            tile = T.alloc_shared((64,), "int32")
            where = T.alloc_shared((1,), "int32")
            total = T.alloc_fragment((64,), "int32")
            T.clear(total)
            T.clear(where)
            for _ in T.Pipelined(5, num_stages=stages):
                T.copy(A[where[0], :], tile)
                for i in T.Parallel(64):
                    total[i] = total[i] * 2 + tile[63 - i]
                where[0] = (where[0] + 3) % 8
            T.copy(total, C)

    a = numbers(8, 64, dtype="int32")
    return Run(program, (a,), _sums(a[[0, 3, 6, 1, 4]].flip(1)).int())
