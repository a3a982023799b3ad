"""Operators on tiles of T.alloc_local and T.alloc_var: each thread does all of them for itself."""

from __future__ import annotations

import warnings

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import TileWarning

THREADS, ROWS, COLUMNS = 64, 4, 8
EMULATED = {"execution_backend": "emulator"}
TARGETS = {
    "llvm": {"target": "llvm"},
    "metal": {"target": "metal", **EMULATED},
    "sm_80": {"target": {"kind": "cuda", "arch": "sm_80"}, **EMULATED},
}


@T.macro
def copied_from_tensor(A, B, own, out, thread):
    T.copy(A[thread : thread + 1, 2:10], own[1:2, 0:COLUMNS])


@T.macro
def copied_from_fragment(A, B, own, out, thread):
    tile = T.alloc_fragment((ROWS, COLUMNS), "float32")
    T.copy(A[8:12, 0:COLUMNS], tile)
    T.copy(tile, own)


@T.macro
def copied_from_shared(A, B, own, out, thread):
    tile = T.alloc_shared((THREADS, COLUMNS), "float32")
    T.copy(A[0:THREADS, 0:COLUMNS], tile)
    T.copy(tile[8 : 8 + ROWS, 0:COLUMNS], own)


@T.macro
def copied_to_tensor(A, B, own, out, thread):
    T.copy(own[2:3, 0:COLUMNS], B[thread : thread + 1, 0:COLUMNS])
    T.copy(B[thread : thread + 1, 0:COLUMNS], own[0:1, 0:COLUMNS])


@T.macro
def copied_over_the_edge(A, B, own, out, thread):
    T.copy(A[thread, 28], own)


@T.macro
def shifted_within(A, B, own, out, thread):
    T.copy(own[0:3, 0:COLUMNS], own[1:4, 0:COLUMNS])


@T.macro
def filled(A, B, own, out, thread):
    T.fill(own[1:3, 0:COLUMNS], thread)


@T.macro
def cleared(A, B, own, out, thread):
    T.clear(own)


@T.macro
def cleared_by_some(A, B, own, out, thread):
    if thread < 20:
        T.clear(own)


@T.macro
def summed(A, B, own, out, thread):
    T.reduce_sum(own, out, dim=1)


@T.macro
def largest_added(A, B, own, out, thread):
    T.reduce_max(own, out, dim=1, clear=False)


@T.macro
def summed_from_fragment(A, B, own, out, thread):
    tile = T.alloc_fragment((ROWS, COLUMNS), "float32")
    T.copy(A[8:12, 0:COLUMNS], tile)
    T.reduce_sum(tile, out, dim=1)


@T.macro
def scanned(A, B, own, out, thread):
    T.cumsum(own, dim=1)


@T.macro
def transposed(A, B, own, out, thread):
    turned = T.alloc_local((COLUMNS, ROWS), "float32")
    T.transpose(own, turned)
    for i in T.serial(ROWS):
        out[i] = turned[7 - i, i]


@T.macro
def a_variable(A, B, own, out, thread):
    total = T.alloc_var("float32")
    tile = T.alloc_fragment((COLUMNS,), "float32")
    T.copy(A[3, 0:COLUMNS], tile)
    T.reduce_sum(tile, total, dim=0)
    out[1] = total


@T.macro
def added_to_tensor(A, B, own, out, thread):
    T.atomic_add(B[thread : thread + 1, COLUMNS:16], own[2:3, 0:COLUMNS])
    T.copy(B[thread : thread + 1, COLUMNS:16], own[0:1, 0:COLUMNS])


@T.macro
def seen_as_a_vector(A, B, own, out, thread):
    T.fill(T.reshape(own, (ROWS * COLUMNS,))[5:9], thread)


@T.macro
def multiplied(A, B, own, out, thread):
    b = T.alloc_local((COLUMNS, COLUMNS), "float32")
    T.copy(A[0:COLUMNS, 0:COLUMNS], b)
    c = T.alloc_local((ROWS, COLUMNS), "float32")
    T.clear(c)
    T.gemm(own, b, c)
    T.copy(c, own)


@T.macro
def copied_in_a_pipeline(A, B, own, out, thread):
    tile = T.alloc_shared((ROWS, COLUMNS), "float32")
    row = T.alloc_local((COLUMNS,), "float32")
    for k in T.Pipelined(5, num_stages=2):
        T.copy(A[k * ROWS : k * ROWS + ROWS, 0:COLUMNS], tile)
        T.copy(tile[k % ROWS, 0:COLUMNS], row)
        for j in T.serial(COLUMNS):
            own[0, j] += row[j]


def over_the_edge(A):
    """The tiles of every thread that begin in column 28 of its row; zero outside of A."""
    wide = torch.nn.functional.pad(A, (0, COLUMNS, 0, ROWS))
    return torch.stack([wide[t : t + ROWS, 28 : 28 + COLUMNS] for t in range(THREADS)])


THREAD = torch.arange(THREADS).float()
CASES = {
    copied_from_tensor: lambda A, B, own, out: own[:, 1].copy_(A[:, 2:10]),
    copied_from_fragment: lambda A, B, own, out: own.copy_(A[8:12, :COLUMNS]),
    copied_from_shared: lambda A, B, own, out: own.copy_(A[8:12, :COLUMNS]),
    copied_to_tensor: lambda A, B, own, out: own[:, 0].copy_(own[:, 2]),
    copied_over_the_edge: lambda A, B, own, out: own.copy_(over_the_edge(A)),
    shifted_within: lambda A, B, own, out: own[:, 1:].copy_(own[:, :-1].clone()),
    filled: lambda A, B, own, out: own[:, 1:3].copy_(THREAD[:, None, None].expand(-1, 2, COLUMNS)),
    cleared: lambda A, B, own, out: own.zero_(),
    cleared_by_some: lambda A, B, own, out: own[:20].zero_(),
    summed: lambda A, B, own, out: out.copy_(own.sum(2)),
    largest_added: lambda A, B, own, out: out.copy_(torch.maximum(out, own.amax(2))),
    summed_from_fragment: lambda A, B, own, out: out.copy_(A[8:12, :COLUMNS].sum(1)),
    scanned: lambda A, B, own, out: own.copy_(own.cumsum(2)),
    transposed: lambda A, B, own, out: out.copy_(own.flip(2).diagonal(dim1=1, dim2=2)),
    a_variable: lambda A, B, own, out: out[:, 1].fill_(A[3, :COLUMNS].sum()),
    added_to_tensor: lambda A, B, own, out: own[:, 0].copy_(B[:, COLUMNS:16] + own[:, 2]),
    seen_as_a_vector: lambda A, B, own, out: own.flatten(1)[:, 5:9].copy_(THREAD[:, None]),
    multiplied: lambda A, B, own, out: own.copy_(own @ A[:COLUMNS, :COLUMNS]),
    copied_in_a_pipeline: lambda A, B, own, out: own[:, 0].add_(
        sum(A[k * ROWS + k % ROWS, :COLUMNS] for k in range(5))
    ),
}
"""Each case, and what it does to all threads' tiles: (THREADS, ROWS, COLUMNS) and (THREADS, ROWS)."""
GROUPS = [list(CASES)[first::3] for first in range(3)]


def program(cases):
    """All cases, one after the other, each with tiles of its own that have their first values."""

    @T.prim_func
    def main(
        A: T.Tensor((THREADS, 32), "float32"),
        B: T.Tensor((THREADS, 32), "float32"),
        given: T.Tensor((THREADS, ROWS, COLUMNS), "float32"),
        result: T.Tensor((len(cases), THREADS, ROWS, COLUMNS), "float32"),
        totals: T.Tensor((len(cases), THREADS, ROWS), "float32"),
    ):
        with T.Kernel(1, threads=THREADS):
            thread = T.get_thread_binding()
            for number, case in enumerate(cases):
                own = T.alloc_local((ROWS, COLUMNS), "float32")
                out = T.alloc_local((ROWS,), "float32")
                for i in T.serial(ROWS):
                    out[i] = 1
                    for j in T.serial(COLUMNS):
                        own[i, j] = given[thread, i, j]
                case(A, B, own, out, thread)
                for i in T.serial(ROWS):
                    totals[number, thread, i] = out[i]
                    for j in T.serial(COLUMNS):
                        result[number, thread, i, j] = own[i, j]

    return main


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", ["llvm", "metal", "sm_80"])
@pytest.mark.parametrize("cases", GROUPS, ids=lambda cases: cases[0].__name__)
def test_each_thread_has_tiles_of_its_own(cases, target):
    torch.manual_seed(0)
    a, b, given = (
        torch.randint(-4, 5, shape).float()
        for shape in ((THREADS, 32), (THREADS, 32), (THREADS, ROWS, COLUMNS))
    )
    result, totals = (
        torch.empty(len(cases), THREADS, ROWS, COLUMNS),
        torch.empty(len(cases), THREADS, ROWS),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TileWarning)
        kernel = tvmtile.compile(program(cases), **TARGETS[target])
    kernel(a, b.clone(), given, result, totals)
    for case, found, total in zip(cases, result, totals, strict=True):
        own, out = given.clone(), torch.ones(THREADS, ROWS)
        CASES[case](a, b, own, out)
        assert torch.equal(found, own), case.__name__
        assert torch.equal(total, out), case.__name__


def test_rows_move_as_vectors():
    """A row of 16 bytes is one load and one store, as in a loop of T.vectorized."""

    @T.prim_func
    def main(A: T.Tensor((32, 8), "float16"), B: T.Tensor((32, 8), "float16")):
        with T.Kernel(1, threads=32):
            thread = T.get_thread_binding()
            own = T.alloc_local((8,), "float16")
            T.copy(A[thread, 0:8], own)
            T.copy(own, B[thread, 0:8])

    source = tvmtile.compile(main, target={"kind": "cuda", "arch": "sm_80"}).get_kernel_source()
    assert source.count("uint4") >= 2
    assert "for (" not in source
