"""ElideSharedStaging: which tiles are staged, and that it makes no difference to the result."""

import re

import pytest
import torch
import tvm
from tvm import ir

import tvmtile
import tvmtile.language as T
from tvmtile.passes import LowerTilePrograms

FullRow, FullCol, Square = (
    T.GemmWarpPolicy.FullRow,
    T.GemmWarpPolicy.FullCol,
    T.GemmWarpPolicy.Square,
)


def product(m=64, n=64, k=64, policy=Square, direct=None, stages=0):
    annotations = {} if direct is None else {"direct": direct}

    @T.prim_func
    def main(
        A: T.Tensor((m, k), "float16"),
        B: T.Tensor((k, n), "float16"),
        C: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(T.ceildiv(n, 32), T.ceildiv(m, 32), threads=128) as (bx, by):
            A_shared = T.alloc_shared((32, 32), "float16")
            B_shared = T.alloc_shared((32, 32), "float16")
            C_local = T.alloc_fragment((32, 32), "float32")
            T.clear(C_local)
            for step in T.Pipelined(T.ceildiv(k, 32), num_stages=stages):
                T.copy(A[by * 32, step * 32], A_shared, annotations=annotations)
                T.copy(B[step * 32, bx * 32], B_shared, annotations=annotations)
                T.gemm(A_shared, B_shared, C_local, policy=policy)
            T.copy(C_local, C[by * 32, bx * 32])

    return main


def staged(kernel):
    """The names of the tiles in threadgroup memory."""
    tiles = set(re.findall(r"threadgroup \w+ (\w+)\[", kernel.get_kernel_source()))
    return tiles & {"A_shared", "B_shared", "tile"}  # there are others, for the edges


@pytest.mark.full
@pytest.mark.parametrize(
    ("policy", "direct", "expected"),
    [
        (Square, None, {"A_shared", "B_shared"}),
        (FullRow, None, {"B_shared"}),
        (FullCol, None, {"A_shared"}),
        (Square, True, set()),
        (FullRow, False, {"A_shared", "B_shared"}),
    ],
)
@pytest.mark.parametrize("extents", [(64, 64, 64), (40, 72, 56)])
def test_a_tile_is_staged_where_several_simdgroups_read_it(policy, direct, expected, extents):
    m, n, k = extents
    kernel = tvmtile.compile(
        product(m, n, k, policy, direct), target="metal", execution_backend="emulator"
    )
    assert staged(kernel) == expected
    A, B, C = torch.randn(m, k).half(), torch.randn(k, n).half(), torch.empty(m, n)
    kernel(A, B, C)
    torch.testing.assert_close(C.double(), A.double() @ B.double(), rtol=1e-4, atol=1e-4)


def test_a_tile_that_is_read_in_an_inner_loop_is_staged():
    @T.prim_func
    def main(A: T.Tensor((32, 32), "float16"), C: T.Tensor((32, 32), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((32, 32), "float16")
            C_local = T.alloc_fragment((32, 32), "float32")
            T.copy(A, tile, annotations={"direct": True})
            T.clear(C_local)
            for _ in T.serial(2):
                T.gemm(tile, tile, C_local, policy=FullRow)
            T.copy(C_local, C)

    kernel = tvmtile.compile(main, target="metal", execution_backend="emulator")
    assert staged(kernel) == {"tile"}


def test_a_tensor_that_the_kernel_writes_is_staged():
    @T.prim_func
    def main(A: T.Tensor((32, 32), "float16"), B: T.Tensor((32, 32), "float16")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((32, 32), "float16")
            C_local = T.alloc_fragment((32, 32), "float32")
            T.copy(A, tile)
            T.clear(C_local)
            T.gemm(tile, B, C_local, policy=FullRow)
            T.copy(C_local, A)

    kernel = tvmtile.compile(main, target="metal", execution_backend="emulator")
    assert staged(kernel) == {"tile"}
    A, B = torch.randn(32, 32).half(), torch.randn(32, 32).half()
    expected = (A.double() @ B.double()).half()
    kernel(A, B)
    torch.testing.assert_close(A, expected, rtol=2e-3, atol=2e-3)


def test_a_tile_whose_rows_are_no_neighbouring_axis_of_the_tensor_is_staged():
    @T.prim_func
    def main(
        A: T.Tensor((2, 32, 3, 32), "float16"),
        B: T.Tensor((32, 32), "float16"),
        C: T.Tensor((32, 32), "float32"),
    ):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32, 32), "float16")
            C_local = T.alloc_fragment((32, 32), "float32")
            T.copy(A[1, 0:32, 2, :], tile)
            T.clear(C_local)
            T.gemm(tile, B, C_local)
            T.copy(C_local, C)

    kernel = tvmtile.compile(main, target="metal", execution_backend="emulator")
    A, B, C = torch.randn(2, 32, 3, 32).half(), torch.randn(32, 32).half(), torch.empty(32, 32)
    kernel(A, B, C)
    torch.testing.assert_close(C.double(), A[1, :, 2].double() @ B.double(), rtol=1e-4, atol=1e-4)


def test_a_loop_without_copies_has_nothing_to_pipeline(recwarn):
    @T.prim_func
    def main(
        A: T.Tensor((32, 64), "float16"),
        B: T.Tensor((64, 32), "float16"),
        C: T.Tensor((32, 32), "float32"),
    ):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared((32, 32), "float16")
            b = T.alloc_shared((32, 32), "float16")
            c = T.alloc_fragment((32, 32), "float32")
            T.clear(c)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[0, k * 32], a)
                T.copy(B[k * 32, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C)

    kernel = tvmtile.compile(main, target="metal", execution_backend="emulator")
    assert not recwarn.list
    assert not staged(kernel)


@pytest.mark.full
def test_a_loop_with_stages_given_by_hand_keeps_its_statements():
    @T.prim_func
    def main(
        A: T.Tensor((32, 64), "float16"),
        B: T.Tensor((64, 32), "float16"),
        C: T.Tensor((32, 32), "float32"),
    ):
        with T.Kernel(1, threads=32):
            A_shared = T.alloc_shared((32, 32), "float16")
            B_shared = T.alloc_shared((32, 32), "float16")
            c = T.alloc_fragment((32, 32), "float32")
            T.clear(c)
            for k in T.Pipelined(2, order=[0, 1, 2], stage=[0, 0, 1]):
                T.copy(A[0, k * 32], A_shared)
                T.copy(B[k * 32, 0], B_shared)
                T.gemm(A_shared, B_shared, c)
            T.copy(c, C)

    kernel = tvmtile.compile(main, target="metal", execution_backend="emulator")
    assert staged(kernel) == {"A_shared", "B_shared"}
    A, B, C = torch.randn(32, 64).half(), torch.randn(64, 32).half(), torch.empty(32, 32)
    kernel(A, B, C)
    torch.testing.assert_close(C.double(), A.double() @ B.double(), rtol=1e-4, atol=1e-4)


CPU = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "znver4"}


def product_of_bytes(m=64, k=64, direct=None, aliased=False):
    @T.prim_func
    def main(
        A: T.Tensor((m, k), "int8"), B: T.Tensor((k, 64), "int8"), C: T.Tensor((m, 64), "int32")
    ):
        if aliased:
            T.func_attr({"tvmtile.may_alias": ["A", "B", "C"]})
        with T.Kernel(T.ceildiv(m, 32), 2) as (by, bx):
            A_shared, B_shared = (T.alloc_shared((32, 32), "int8") for _ in range(2))
            C_local = T.alloc_fragment((32, 32), "int32")
            T.clear(C_local)
            for step in T.Pipelined(T.ceildiv(k, 32), num_stages=2):
                T.copy(A[by * 32, step * 32], A_shared, annotations={"direct": direct})
                T.copy(B[step * 32, bx * 32], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * 32, bx * 32])

    return main


@pytest.mark.full(but=4)
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (product_of_bytes(), set()),
        (product_of_bytes(m=60), {"A_shared"}),
        (product_of_bytes(k=60), {"A_shared", "B_shared"}),
        (product_of_bytes(direct=False), {"A_shared"}),
        (product_of_bytes(aliased=True), {"A_shared", "B_shared"}),
    ],
)
def test_a_micro_kernel_that_packs_reads_whole_tiles_in_place(program, expected):
    with tvm.target.Target(CPU) as target:
        lowered = LowerTilePrograms()(ir.IRModule({"main": program.with_attr("target", target)}))
    assert set(re.findall(r"(\w+_shared) = T.alloc_buffer", lowered.script())) == expected


@pytest.mark.full
@pytest.mark.parametrize("outside", [False, True])
def test_a_tile_of_a_view_of_a_tensor_that_is_written_by_its_name_is_staged(outside):
    @T.prim_func
    def main(
        A: T.Tensor((32, 32), "float32"),
        B: T.Tensor((32, 32), "float32"),
        C: T.Tensor((32, 32), "float32"),
    ):
        before = T.reshape(A, (1, 32, 32)) if outside else A
        with T.Kernel(1, threads=32):
            view = before if outside else T.reshape(A, (1, 32, 32))
            tile = T.alloc_shared((32, 32), "float32")
            other = T.alloc_shared((32, 32), "float32")
            C_local = T.alloc_fragment((32, 32), "float32")
            T.copy(view[0, 0:32, 0:32], tile)
            T.copy(B, other)
            for i, j in T.Parallel(32, 32):
                A[i, j] = T.float32(0)
            T.gemm(tile, other, C_local, clear_accum=True)
            T.copy(C_local, C)

    kernel = tvmtile.compile(main, target="metal", execution_backend="emulator")
    assert "tile" in staged(kernel)
    A, B = (torch.randint(-3, 4, (32, 32)).float() for _ in range(2))
    C, expected = torch.empty(32, 32), A @ B
    kernel(A, B, C)
    assert torch.equal(C, expected)
    assert not A.any()
