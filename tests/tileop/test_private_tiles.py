"""Operators on tiles of T.alloc_local and T.alloc_var: each thread does all of them for itself."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import TileWarning

THREADS, ROWS, COLUMNS = 64, 4, 8


@T.macro
def copied_from_tensor(A, own, out, thread):
    T.copy(A[thread : thread + 1, 2:10], own[1:2, 0:COLUMNS])


@T.macro
def copied_from_fragment(A, own, out, thread):
    tile = T.alloc_fragment((ROWS, COLUMNS), "float32")
    T.copy(A[8:12, 0:COLUMNS], tile)
    T.copy(tile, own)


@T.macro
def copied_from_shared(A, own, out, thread):
    tile = T.alloc_shared((THREADS, COLUMNS), "float32")
    T.copy(A[0:THREADS, 0:COLUMNS], tile)
    T.copy(tile[8 : 8 + ROWS, 0:COLUMNS], own)


@T.macro
def copied_to_tensor(A, own, out, thread):
    T.copy(own[2:3, 0:COLUMNS], A[thread : thread + 1, 0:COLUMNS])
    T.copy(A[thread : thread + 1, 0:COLUMNS], own[0:1, 0:COLUMNS])


@T.macro
def copied_over_the_edge(A, own, out, thread):
    T.copy(A[thread, 28], own)


@T.macro
def shifted_within(A, own, out, thread):
    T.copy(own[0:3, 0:COLUMNS], own[1:4, 0:COLUMNS])


@T.macro
def filled(A, own, out, thread):
    T.fill(own[1:3, 0:COLUMNS], thread)


@T.macro
def cleared(A, own, out, thread):
    T.clear(own)


@T.macro
def cleared_by_some(A, own, out, thread):
    if thread < 20:
        T.clear(own)


@T.macro
def summed(A, own, out, thread):
    T.reduce_sum(own, out, dim=1)


@T.macro
def largest_added(A, own, out, thread):
    T.reduce_max(own, out, dim=1, clear=False)


@T.macro
def summed_from_fragment(A, own, out, thread):
    tile = T.alloc_fragment((ROWS, COLUMNS), "float32")
    T.copy(A[8:12, 0:COLUMNS], tile)
    T.reduce_sum(tile, out, dim=1)


@T.macro
def scanned(A, own, out, thread):
    T.cumsum(own, dim=1)


@T.macro
def transposed(A, own, out, thread):
    turned = T.alloc_local((COLUMNS, ROWS), "float32")
    T.transpose(own, turned)
    for i in T.serial(ROWS):
        out[i] = turned[7 - i, i]


@T.macro
def a_variable(A, own, out, thread):
    total = T.alloc_var("float32")
    tile = T.alloc_fragment((COLUMNS,), "float32")
    T.copy(A[3, 0:COLUMNS], tile)
    T.reduce_sum(tile, total, dim=0)
    out[1] = total


@T.macro
def added_to_tensor(A, own, out, thread):
    T.atomic_add(A[thread : thread + 1, 0:COLUMNS], own[2:3, 0:COLUMNS])
    T.copy(A[thread : thread + 1, 0:COLUMNS], own[0:1, 0:COLUMNS])


@T.macro
def seen_as_a_vector(A, own, out, thread):
    T.fill(T.reshape(own, (ROWS * COLUMNS,))[5:9], thread)


@T.macro
def multiplied(A, own, out, thread):
    b = T.alloc_local((COLUMNS, COLUMNS), "float32")
    T.copy(A[0:COLUMNS, 0:COLUMNS], b)
    c = T.alloc_local((ROWS, COLUMNS), "float32")
    T.clear(c)
    T.gemm(own, b, c)
    T.copy(c, own)


@T.macro
def copied_in_a_pipeline(A, own, out, thread):
    tile = T.alloc_shared((ROWS, COLUMNS), "float32")
    row = T.alloc_local((COLUMNS,), "float32")
    for k in T.Pipelined(5, num_stages=2):
        T.copy(A[k * ROWS : k * ROWS + ROWS, 0:COLUMNS], tile)
        T.copy(tile[k % ROWS, 0:COLUMNS], row)
        for j in T.serial(COLUMNS):
            own[0, j] += row[j]


def expected(name, A, own, out):
    """What the threads' tiles, (THREADS, ROWS, COLUMNS) and (THREADS, ROWS), hold behind it."""
    thread = torch.arange(THREADS).float()
    if name == "copied_from_tensor":
        own[:, 1] = A[:, 2:10]
    elif name in ("copied_from_fragment", "copied_from_shared"):
        own[:] = A[8:12, 0:COLUMNS]
    elif name == "copied_to_tensor":
        own[:, 0] = own[:, 2]
    elif name == "copied_over_the_edge":
        wide = torch.zeros(THREADS + ROWS, 28 + COLUMNS)
        wide[:THREADS, :32] = A
        own[:] = torch.stack([wide[t : t + ROWS, 28:] for t in range(THREADS)])
    elif name == "shifted_within":
        own[:, 1:] = own[:, :-1].clone()
    elif name == "filled":
        own[:, 1:3] = thread[:, None, None]
    elif name == "cleared":
        own[:] = 0
    elif name == "cleared_by_some":
        own[:20] = 0
    elif name == "summed":
        out[:] = own.sum(2)
    elif name == "largest_added":
        out[:] = torch.maximum(out, own.amax(2))
    elif name == "summed_from_fragment":
        out[:] = A[8:12, 0:COLUMNS].sum(1)
    elif name == "scanned":
        own[:] = own.cumsum(2)
    elif name == "transposed":
        out[:] = torch.stack([own[:, i, 7 - i] for i in range(ROWS)], 1)
    elif name == "a_variable":
        out[:, 1] = A[3, 0:COLUMNS].sum()
    elif name == "added_to_tensor":
        own[:, 0] = A[:, 0:COLUMNS] + own[:, 2]
    elif name == "seen_as_a_vector":
        own.view(THREADS, -1)[:, 5:9] = thread[:, None]
    elif name == "multiplied":
        own[:] = own @ A[0:COLUMNS, 0:COLUMNS]
    elif name == "copied_in_a_pipeline":
        own[:, 0] += sum(A[k * ROWS + k % ROWS, 0:COLUMNS] for k in range(5))


CASES = (
    copied_from_tensor,
    copied_from_fragment,
    copied_from_shared,
    copied_to_tensor,
    copied_over_the_edge,
    shifted_within,
    filled,
    cleared,
    cleared_by_some,
    summed,
    largest_added,
    summed_from_fragment,
    scanned,
    transposed,
    a_variable,
    added_to_tensor,
    seen_as_a_vector,
    multiplied,
    copied_in_a_pipeline,
)
NAMES = [case.__name__ for case in CASES]
cases = pytest.mark.parametrize("case", CASES, ids=NAMES)


def program(case):
    @T.prim_func
    def main(
        A: T.Tensor((THREADS, 32), "float32"),
        given: T.Tensor((THREADS, ROWS, COLUMNS), "float32"),
        result: T.Tensor((THREADS, ROWS, COLUMNS), "float32"),
        totals: T.Tensor((THREADS, ROWS), "float32"),
    ):
        with T.Kernel(1, threads=THREADS):
            thread = T.get_thread_binding()
            own = T.alloc_local((ROWS, COLUMNS), "float32")
            out = T.alloc_local((ROWS,), "float32")
            for i in T.serial(ROWS):
                out[i] = 1
                for j in T.serial(COLUMNS):
                    own[i, j] = given[thread, i, j]
            case(A, own, out, thread)
            for i in T.serial(ROWS):
                totals[thread, i] = out[i]
                for j in T.serial(COLUMNS):
                    result[thread, i, j] = own[i, j]

    return main


def check(case, compile_):
    torch.manual_seed(0)
    a, given = torch.randint(-4, 5, (THREADS, 32)), torch.randint(-4, 5, (THREADS, ROWS, COLUMNS))
    a, given = a.float(), given.float()
    result, totals = torch.empty(THREADS, ROWS, COLUMNS), torch.empty(THREADS, ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TileWarning)
        kernel = compile_(program(case))
    own, out = given.clone(), torch.ones(THREADS, ROWS)
    expected(case.__name__, a.clone(), own, out)
    kernel(a, given, result, totals)
    assert torch.equal(result, own)
    assert torch.equal(totals, out)


@cases
def test_values(case, compiled):
    check(case, compiled)


@cases
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_values_on_emulated_gpus(case, arch):
    target = {"kind": "cuda", "arch": arch}
    check(case, partial(tvmtile.compile, target=target, execution_backend="emulator"))


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
