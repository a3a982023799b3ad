"""GEMM on Metal with operands and accumulators in every place, chained, offset, scaled, swapped."""

from __future__ import annotations

import pytest
import torch

import tvmtile.language as T
from tests.metal.programs import assert_close, emulated, operands, random
from tvmtile import errors
from tvmtile.errors import TileWarning

PLACES = {"device": None, "shared": T.alloc_shared, "fragment": T.alloc_fragment}


def placed(place, tensor, shape, dtype):
    """A tensor itself, or a tile with its elements; called while a kernel is written."""
    allocate = PLACES[place]
    if allocate is None:
        return tensor
    tile = allocate(shape, dtype)
    T.copy(tensor, tile)
    return tile


@pytest.mark.parametrize("transposes", [(False, False), (True, True)])
@pytest.mark.parametrize("B_place", PLACES)
@pytest.mark.parametrize("A_place", PLACES)
def test_places_of_operands(compiled, A_place, B_place, transposes):
    M, N, K = 32, 48, 24
    transpose_A, transpose_B = transposes
    A_shape, B_shape = (K, M) if transpose_A else (M, K), (N, K) if transpose_B else (K, N)

    @T.prim_func
    def main(
        A: T.Tensor(A_shape, "float16"),
        B: T.Tensor(B_shape, "float16"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(1, threads=64):
            A_tile = placed(A_place, A, A_shape, "float16")
            B_tile = placed(B_place, B, B_shape, "float16")
            C_local = T.alloc_fragment((M, N), "float32")
            T.clear(C_local)
            T.gemm(A_tile, B_tile, C_local, transpose_A, transpose_B)
            T.copy(C_local, C)

    a, b, product = operands(M, N, K, transposes=transposes)
    c = torch.empty(M, N)
    compiled(main)(a, b, c)
    assert_close(c, product)


@pytest.mark.parametrize("clear_accum", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_places_of_the_accumulator(compiled, place, clear_accum):
    @T.prim_func
    def main(
        A: T.Tensor((32, 16), "float16"),
        B: T.Tensor((16, 32), "float16"),
        C: T.Tensor((32, 32), "float32"),
    ):
        with T.Kernel(1, threads=128):
            C_tile = placed(place, C, (32, 32), "float32")
            T.gemm(A, B, C_tile, clear_accum=clear_accum)
            if place != "device":
                T.copy(C_tile, C)

    a, b, product = operands(32, 32, 16)
    c = random(32, 32)
    expected = product if clear_accum else product + c.double()
    compiled(main)(a, b, c)
    assert_close(c, expected)


@pytest.mark.parametrize("policy", ["Square", "FullRow", "FullCol"])
def test_chained(compiled, policy):
    """The first product is an operand of the second, without going through memory of the user's."""

    @T.prim_func
    def main(
        A: T.Tensor((32, 32), "float16"),
        B: T.Tensor((32, 64), "float16"),
        D: T.Tensor((64, 16), "float16"),
        C: T.Tensor((32, 16), "float32"),
    ):
        with T.Kernel(1, threads=64):
            first = T.alloc_fragment((32, 64), "float32")
            first_cast = T.alloc_fragment((32, 64), "float16")
            second = T.alloc_fragment((32, 16), "float32")
            T.clear(first)
            T.clear(second)
            T.gemm(A, B, first, policy=getattr(T.GemmWarpPolicy, policy))
            for i, j in T.Parallel(32, 64):
                first[i, j] = T.max(first[i, j], 0)
            T.copy(first, first_cast)
            T.gemm(first_cast, D, second, policy=getattr(T.GemmWarpPolicy, policy))
            T.copy(second, C)

    a, b, product = operands(32, 64, 32)
    d = random(64, 16, dtype="float16")
    c = torch.empty(32, 16)
    compiled(main)(a, b, d, c)
    assert_close(c, torch.relu(product).half().double() @ d.double(), "float16")


def test_several_products_into_one_accumulator(compiled):
    @T.prim_func
    def main(
        A: T.Tensor((32, 64), "float16"),
        B: T.Tensor((64, 32), "float16"),
        C: T.Tensor((32, 32), "float32"),
    ):
        with T.Kernel(1, threads=128):
            A_shared = T.alloc_shared((32, 64), "float16")
            B_shared = T.alloc_shared((64, 32), "float16")
            C_local = T.alloc_fragment((32, 32), "float32")
            T.copy(A, A_shared)
            T.copy(B, B_shared)
            T.clear(C_local)
            T.gemm(A_shared[:, 0:32], B_shared[0:32, :], C_local)
            T.gemm(A_shared[:, 32:64], B_shared[32:64, :], C_local)
            T.gemm(B_shared, A_shared, C_local, transpose_A=True, transpose_B=True)
            T.copy(C_local, C)

    a, b, product = operands(32, 32, 64)
    c = torch.empty(32, 32)
    compiled(main)(a, b, c)
    assert_close(c, product + product.T)


def test_operands_that_are_swapped_scaled_and_offset_by_a_tile(compiled):
    """C = (2 B)[:, 32:] @ (A + 1)[32:, :], the roles of the parameters exchanged."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 48), "float16"),
        B: T.Tensor((40, 64), "float16"),
        C: T.Tensor((40, 48), "float32"),
    ):
        with T.Kernel(T.ceildiv(48, 16), T.ceildiv(40, 16), threads=64) as (bx, by):
            A_shared = T.alloc_shared((32, 16), "float16")
            B_shared = T.alloc_shared((16, 32), "float16")
            C_local = T.alloc_fragment((16, 16), "float32")
            T.copy(A[32, bx * 16], A_shared)
            T.copy(B[by * 16, 32], B_shared)
            for i, j in T.Parallel(32, 16):
                A_shared[i, j] += 1
            for i, j in T.Parallel(16, 32):
                B_shared[i, j] *= 2
            T.clear(C_local)
            T.gemm(B_shared, A_shared, C_local)
            T.copy(C_local, C[by * 16, bx * 16])

    a, b = random(64, 48, dtype="float16"), random(40, 64, dtype="float16")
    c = torch.empty(40, 48)
    compiled(main)(a, b, c)
    shifted = (a[32:] + 1).double()
    assert_close(c, 2 * b[:, 32:].double() @ shifted)


@pytest.mark.parametrize("padding", [1, 2, 8])
@pytest.mark.parametrize("transpose_B", [False, True])
def test_tiles_with_padded_rows(compiled, padding, transpose_B):
    """The stride of the rows in memory is not their length, nor a multiple of 4."""
    rows, columns = (32, 64) if transpose_B else (64, 32)

    @T.prim_func
    def main(
        A: T.Tensor((32, 64), "float16"),
        B: T.Tensor((rows, columns), "float16"),
        C: T.Tensor((32, 32), "float32"),
    ):
        with T.Kernel(1, threads=128):
            A_shared = T.alloc_shared((32, 64 + padding), "float16")
            B_shared = T.alloc_shared((rows, columns + padding), "float16")
            C_local = T.alloc_fragment((32, 32), "float32")
            T.copy(A, A_shared[:, 0:64])
            T.copy(B, B_shared[:, padding : columns + padding])
            T.clear(C_local)
            B_tile = B_shared[:, padding : columns + padding]
            T.gemm(A_shared[:, 0:64], B_tile, C_local, transpose_B=transpose_B)
            T.copy(C_local, C)

    a, b, product = operands(32, 32, 64, transposes=(False, transpose_B))
    c = torch.empty(32, 32)
    compiled(main)(a, b, c)
    assert_close(c, product)


@pytest.mark.filterwarnings("ignore:gemm. .* is computed element by element")
@pytest.mark.parametrize("accum_dtype", ["int32", "float32"])
@pytest.mark.parametrize("dtypes", [("int8", "int8"), ("uint8", "int8")])
def test_integers(compiled, dtypes, accum_dtype):
    A_dtype, B_dtype = dtypes

    @T.prim_func
    def main(
        A: T.Tensor((33, 40), A_dtype),
        B: T.Tensor((40, 20), B_dtype),
        C: T.Tensor((33, 20), accum_dtype),
    ):
        with T.Kernel(T.ceildiv(20, 16), T.ceildiv(33, 16), threads=64) as (bx, by):
            A_shared = T.alloc_shared((16, 16), A_dtype)
            B_shared = T.alloc_shared((16, 16), B_dtype)
            C_local = T.alloc_fragment((16, 16), accum_dtype)
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(40, 16), num_stages=2):
                T.copy(A[by * 16, k * 16], A_shared)
                T.copy(B[k * 16, bx * 16], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * 16, bx * 16])

    a, b = random(33, 40, dtype=A_dtype), random(40, 20, dtype=B_dtype)
    c = torch.empty(33, 20, dtype=getattr(torch, accum_dtype))
    compiled(main)(a, b, c)
    expected = a.long() @ b.long()
    assert_close(c, expected.double() if accum_dtype == "float32" else expected)


@pytest.mark.parametrize("dtypes", [("float16", "float32"), ("float32", "float16")])
def test_operands_of_different_dtypes(compiled, dtypes):
    A_dtype, B_dtype = dtypes
    errors._SHOWN_WARNINGS.clear()
    with pytest.warns(TileWarning, match="gemm: .* differ in dtype"):

        @T.prim_func
        def main(
            A: T.Tensor((32, 32), A_dtype),
            B: T.Tensor((32, 32), B_dtype),
            C: T.Tensor((32, 32), "float32"),
        ):
            with T.Kernel(1, threads=32):
                C_local = T.alloc_fragment((32, 32), "float32")
                T.clear(C_local)
                T.gemm(A, B, C_local)
                T.copy(C_local, C)

    a, b = random(32, 32, dtype=A_dtype), random(32, 32, dtype=B_dtype)
    c = torch.empty(32, 32)
    compiled(main)(a, b, c)
    assert_close(c, a.double() @ b.double())


def test_batches_in_one_tensor(compiled):
    @T.prim_func
    def main(
        A: T.Tensor((3, 32, 2, 24), "float16"),
        B: T.Tensor((3, 2, 24, 40), "float16"),
        C: T.Tensor((3, 2, 32, 40), "float32"),
    ):
        with T.Kernel(2, 3, threads=64) as (bx, by):
            C_local = T.alloc_fragment((32, 40), "float32")
            A_shared = T.alloc_shared((32, 24), "float16")
            T.copy(A[by, 0:32, bx, 0:24], A_shared)
            T.clear(C_local)
            T.gemm(A_shared, B[by, bx, 0:24, 0:40], C_local)
            T.copy(C_local, C[by, bx, 0:32, 0:40])

    a, b = random(3, 32, 2, 24, dtype="float16"), random(3, 2, 24, 40, dtype="float16")
    c = torch.empty(3, 2, 32, 40)
    compiled(main)(a, b, c)
    assert_close(c, torch.einsum("bmhk,bhkn->bhmn", a.double(), b.double()))


@pytest.mark.parametrize("dtypes", [("float16", "bfloat16"), ("bfloat16", "float32")])
def test_float16_and_bfloat16_are_multiplied_element_by_element(dtypes):
    """No matrix unit mixes them: slower than one would expect, so that a warning says it."""
    of_B, of_C = dtypes

    def program(of_B, of_C):
        @T.prim_func
        def main(
            A: T.Tensor((32, 32), "float16"),
            B: T.Tensor((32, 32), of_B),
            C: T.Tensor((32, 32), of_C),
        ):
            with T.Kernel(1, threads=64):
                product = T.alloc_fragment((32, 32), of_C)
                T.gemm(A, B, product, clear_accum=True)
                T.copy(product, C)

        return main

    a = torch.randint(-2, 3, (32, 32)).half()
    b, c = a.to(getattr(torch, of_B)), torch.zeros(32, 32, dtype=getattr(torch, of_C))
    errors._SHOWN_WARNINGS.clear()
    with pytest.warns(TileWarning, match="differ in dtype|float16 and bfloat16 matrices are not"):
        kernel = emulated(program(of_B, of_C))
    kernel(a, b, c)
    assert torch.equal(c, (a.float() @ b.float()).to(c.dtype))
