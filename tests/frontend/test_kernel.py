"""`T.Kernel`: the grid, the threads and their indices."""

from __future__ import annotations

import pytest
import torch
from tvm import tirx

import tvmtile
import tvmtile.language as T
from tests.metal.programs import runnable
from tvmtile.errors import InvalidValue, NestingError


def test_blocks_of_one_two_and_three_axes():
    @T.prim_func
    def mark(
        A: T.Tensor((3,), "int32"), B: T.Tensor((2, 3), "int32"), C: T.Tensor((2, 3, 4), "int32")
    ):
        with T.Kernel(3) as x:
            A[x] = x + 1
        with T.Kernel(2, 3) as (x, y):
            B[x, y] = x * 10 + y
        with T.Kernel(2, 3, 4) as (x, y, z):
            C[x, y, z] = x * 100 + y * 10 + z

    a, b = torch.zeros(3, dtype=torch.int32), torch.zeros(2, 3, dtype=torch.int32)
    c = torch.zeros(2, 3, 4, dtype=torch.int32)
    tvmtile.compile(mark)(a, b, c)
    assert a.tolist() == [1, 2, 3]
    assert b.tolist() == [[x * 10 + y for y in range(3)] for x in range(2)]
    assert all(
        c[x, y, z] == x * 100 + y * 10 + z for x in range(2) for y in range(3) for z in range(4)
    )


def test_names_for_blocks():
    @T.prim_func
    def count(A: T.Tensor((4,), "int32")):
        with T.Kernel(2) as (x,):
            A[x] = 1
        with T.Kernel(1) as _:
            A[2] = 1
        with T.Kernel(threads=64):
            A[3] = 1

    a = torch.zeros(4, dtype=torch.int32)
    tvmtile.compile(count)(a)
    assert a.tolist() == [1] * 4


def test_a_grid_that_only_the_call_knows():
    n = T.dynamic("n")

    @T.prim_func
    def mark(A: T.Tensor((n,), "int32"), blocks: T.int32):
        with T.Kernel(T.min(n, blocks)) as x:
            A[x] = x

    a = torch.full((5,), -1, dtype=torch.int32)
    kernel = tvmtile.compile(mark)
    kernel(a, 3)
    assert a.tolist() == [0, 1, 2, -1, -1]
    kernel(a, 0)
    kernel(torch.zeros(0, dtype=torch.int32), 7)
    assert a.tolist() == [0, 1, 2, -1, -1]


def test_indices_and_extents_by_axis():
    seen = {}

    @T.prim_func
    def look(A: T.Tensor((1,), "int32")):
        with T.Kernel(2, 3, threads=(8, 4)) as (x, y):
            seen["extents"] = (T.get_block_extents(), T.get_thread_extents())
            seen["each"] = [(T.get_block_extent(i), T.get_thread_extent(i)) for i in [0, 1, 2]]
            seen["blocks"] = (T.get_block_binding(0).same_as(x), T.get_block_binding(1).same_as(y))
            seen["third"] = (T.get_block_binding(2), T.get_thread_binding(2))
            seen["threads"] = len(T.get_thread_bindings())

    assert seen["extents"] == ([2, 3], [8, 4, 1])
    assert seen["each"] == [(2, 8), (3, 4), (1, 1)]
    assert seen["blocks"] == (True, True)
    assert [int(value) for value in seen["third"]] == [0, 0]
    assert seen["threads"] == 3


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", ["llvm", "metal"])
def test_an_index_along_z_where_y_has_one_thread(target):
    @T.prim_func
    def program(C: T.Tensor((8, 4, 2), "int32")):
        with T.Kernel(1, threads=(8, 1, 4)):
            x, y, z = T.get_thread_bindings()
            C[x, z, 0] = T.get_thread_binding(2)
            C[x, z, 1] = T.get_thread_binding(1) + y

    c = torch.full((8, 4, 2), -1, dtype=torch.int32)
    runnable(program, target)(c)
    assert c[:, :, 0].tolist() == [[0, 1, 2, 3]] * 8
    assert not c[:, :, 1].any()


@pytest.mark.parametrize("threads", [0, -1, [64, 0], (1, 2, 3, 4), [], "32"])
def test_numbers_of_threads(threads):
    with pytest.raises(InvalidValue, match="is no number of threads"):
        T.Kernel(1, threads=threads)


OUTSIDE = {
    "alloc_global": lambda a: T.alloc_global((4,), "float32"),
    "any_of": T.any_of,
    "all_of": T.all_of,
    "device_assert": lambda a: T.device_assert(True),
    "view": lambda a: T.view(a, (8, 4), "uint16"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_statements_outside_a_program(name):
    tensor = tirx.decl_buffer((4, 8), "float16")
    with pytest.raises(NestingError, match=rf"^T\.{name} stands outside T\.Kernel"):
        OUTSIDE[name](tensor)


def test_the_next_kernel_is_traced_after_one_that_failed():
    with pytest.raises(ZeroDivisionError):

        @T.prim_func
        def broken(A: T.Tensor((1,), "int32")):
            with T.Kernel(1):
                A[0] = 1 // 0

    @T.prim_func
    def one(A: T.Tensor((1,), "int32")):
        with T.Kernel(1):
            A[0] = 1

    a = torch.zeros(1, dtype=torch.int32)
    tvmtile.compile(one)(a)
    assert a.item() == 1
