"""T.copy on the CPU, against the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tvmtile
import tvmtile.language as T
from tvmtile.tileop.copy import reference


@pytest.mark.parametrize("tile", [(16, 32), (7, 5), (1, 64), (64, 1)])
@pytest.mark.parametrize("scope", ["shared", "fragment", "local"])
def test_ragged_tiles_there_and_back(tensors, tile, scope):
    """Tiles that reach over both edges: zero is read, nothing is written outside."""
    rows, columns = tile
    allocate = {"shared": T.alloc_shared, "fragment": T.alloc_fragment, "local": T.alloc_local}[
        scope
    ]
    grid = T.ceildiv(70, columns), T.ceildiv(50, rows)

    @T.prim_func
    def main(
        A: T.Tensor((50, 70), "float32"),
        C: T.Tensor((50, 70), "float32"),
        sums: T.Tensor((grid[1], grid[0]), "float32"),
    ):
        with T.Kernel(*grid, threads=1) as (bx, by):
            held = allocate(tile, "float32")
            T.fill(held, 7)
            T.copy(A[by * rows, bx * columns], held)
            T.copy(held, C[by * rows, bx * columns])
            for i, j in T.grid(rows, columns):
                sums[by, bx] += held[i, j]

    src = tensors((50, 70), "int32").float()
    out, sums = torch.full((50, 70), -1.0), torch.zeros(grid[1], grid[0])
    tvmtile.compile(main)(src, out, sums)
    assert torch.equal(out, src)
    for by, bx in np.ndindex(*sums.shape):
        assert sums[by, bx] == reference(src.numpy(), (by * rows, bx * columns), tile).sum()


@pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [
        ("float32", "float16"),
        ("float16", "float32"),
        ("bfloat16", "float32"),
        ("float32", "bfloat16"),
        ("float64", "float32"),
        ("float32", "int32"),
        ("int32", "float32"),
        ("int8", "int32"),
        ("int32", "int8"),
        ("uint8", "float16"),
        ("bool", "float32"),
        ("int32", "bool"),
        ("int64", "float64"),
    ],
)
def test_conversions_are_those_of_torch(tensors, dtype, out_dtype):
    @T.prim_func
    def main(A: T.Tensor((9, 33), dtype), C: T.Tensor((9, 33), out_dtype)):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((9, 33), dtype)
            T.copy(A, tile)
            T.copy(tile, C)

    src, out = tensors((9, 33), dtype), torch.zeros((9, 33), dtype=getattr(torch, out_dtype))
    tvmtile.compile(main)(src, out)
    assert torch.equal(out, src.to(out.dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrowing_rounds_to_nearest_even_and_keeps_nan(dtype):
    @T.prim_func
    def main(A: T.Tensor((4096,), "float32"), C: T.Tensor((4096,), dtype)):
        with T.Kernel(1):
            T.copy(A, C)

    bits = torch.randint(-(2**31), 2**31, (4096,), dtype=torch.int64).to(torch.int32)
    bits[:4] = torch.tensor([0x7FC00000, 0x7F800000, 0x3F808000, 0x3F818000])  # NaN, inf, two ties
    src, out = bits.view(torch.float32), torch.zeros(4096, dtype=getattr(torch, dtype))
    tvmtile.compile(main)(src, out)
    expected = src.to(out.dtype)
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out[~out.isnan()], expected[~expected.isnan()])


def test_axes_of_extent_one_do_not_count(tensors):
    """A row of a tensor of four axes, a tile with units, and back."""

    @T.prim_func
    def main(A: T.Tensor((2, 3, 8, 5), "float32"), C: T.Tensor((2, 3, 5, 8), "float32")):
        with T.Kernel(2, 3) as (bx, by):
            tile = T.alloc_shared((8, 1, 5), "float32")
            row = T.alloc_shared((8,), "float32")
            T.copy(A[bx, by, 0:8, 0:5], tile)
            for k in T.serial(5):
                T.copy(tile[0:8, 0, k], row)
                T.copy(row, C[bx, by, k, 0:8])

    src, out = tensors((2, 3, 8, 5), "float32"), torch.zeros(2, 3, 5, 8)
    tvmtile.compile(main)(src, out)
    assert torch.equal(out, src.mT)


def test_tensor_to_tensor_and_tile_to_tile(tensors):
    @T.prim_func
    def main(A: T.Tensor((20, 30), "float32"), C: T.Tensor((20, 30), "float32")):
        with T.Kernel(1):
            first = T.alloc_shared((10, 30), "float32")
            second = T.alloc_fragment((30, 10, 1), "float32")
            T.copy(A[0:10, :], C[10:20, :])
            T.copy(A[10:20, :], first)
            T.copy(first[:, 0:10], second[10:20, :, 0])
            T.copy(second[10:20, 0:10, 0:1], C[0:10, 5:15])

    src, out = tensors((20, 30), "float32"), torch.zeros(20, 30)
    tvmtile.compile(main)(src, out)
    expected = torch.zeros(20, 30)
    expected[10:], expected[:10, 5:15] = src[:10], src[10:, :10]
    assert torch.equal(out, expected)


def test_single_elements_also_in_an_elementwise_loop(tensors):
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), C: T.Tensor((8,), "float16")):
        with T.Kernel(1, threads=1):
            for i in T.serial(8):
                T.copy(A[7 - i], C[i])

    src, out = tensors((8,), "float32"), torch.zeros(8, dtype=torch.float16)
    tvmtile.compile(main)(src, out)
    assert torch.equal(out, src.flip(0).half())


def test_strided_tensors(tensors):
    @T.prim_func
    def main(
        A: T.StridedTensor((12, 10), (1, 12), "float32"),
        C: T.StridedTensor((12, 10), (40, 2), "float32"),
    ):
        with T.Kernel(T.ceildiv(12, 8)) as bx:
            tile = T.alloc_shared((8, 10), "float32")
            T.copy(A[bx * 8, 0], tile)
            T.copy(tile, C[bx * 8, 0])

    src, storage = tensors((10, 12), "float32"), torch.zeros(12, 40)
    out = storage[:, 0:20:2]
    tvmtile.compile(main)(src.T, out)
    assert torch.equal(out, src.T)
    assert not storage[:, 1:20:2].any()
    assert not storage[:, 20:].any()


def test_negative_and_distant_origins(tensors):
    """Positions known at run time only, wholly and partly outside."""

    @T.prim_func
    def main(
        A: T.Tensor((10,), "float32"), at: T.Tensor((6,), "int32"), C: T.Tensor((6, 4), "float32")
    ):
        with T.Kernel(6) as bx:
            tile = T.alloc_shared((4,), "float32")
            T.copy(A[at[bx]], tile)
            T.copy(tile, C[bx, 0])

    origins = [-9, -2, 0, 7, 9, 100]
    src, out = tensors((10,), "float32"), torch.full((6, 4), 7.0)
    tvmtile.compile(main)(src, torch.tensor(origins, dtype=torch.int32), out)
    expected = [reference(src.numpy(), (origin,), (4,)) for origin in origins]
    np.testing.assert_array_equal(out.numpy(), expected)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_tile_at_any_place(data):
    """A tile of up to three axes at an origin inside or outside, through a tile, to another place."""
    rank = data.draw(st.integers(1, 3), label="rank")

    def draw(low, high, label):
        return tuple(data.draw(st.integers(low, high), label=label) for _ in range(rank))

    shape, out_shape = draw(1, 12, "shape"), draw(1, 12, "out_shape")
    tile, source, target = draw(1, 9, "tile"), draw(-6, 14, "source"), draw(-6, 14, "target")

    @T.prim_func
    def main(
        A: T.Tensor(shape, "int32"),
        C: T.Tensor(out_shape, "int32"),
        at: T.Tensor((2, rank), "int32"),
    ):
        with T.Kernel(1, threads=32):
            held = T.alloc_shared(tile, "int32")
            T.copy(A[tuple(at[0, axis] for axis in range(rank))], held)
            T.copy(held, C[tuple(at[1, axis] for axis in range(rank))])

    src = torch.randint(1, 1000, shape, dtype=torch.int32)
    out = torch.full(out_shape, -1, dtype=torch.int32)
    expected = out.numpy().copy()
    held = reference(src.numpy(), source, tile)
    for index in np.ndindex(*tile):
        place = tuple(int(i + t) for i, t in zip(index, target, strict=True))
        if all(0 <= p < extent for p, extent in zip(place, out_shape, strict=True)):
            expected[place] = held[index]
    tvmtile.compile(main)(src, out, torch.tensor([source, target], dtype=torch.int32))
    np.testing.assert_array_equal(out.numpy(), expected)


def test_program_parses_back():
    from tvm.ir import assert_structural_equal
    from tvm.script import from_source

    @T.prim_func
    def main(A: T.Tensor((8, 8), "float32"), C: T.Tensor((8, 8), "float32")):
        with T.Kernel(1) as bx:
            T.copy(A, C, disable_tma=True)
            T.copy(A[bx, 0:4], C[0, 4:8], annotations={"direct": False})

    assert_structural_equal(from_source(main.script()), main)


def test_an_element_to_an_element_inside_parallel() -> None:
    @T.prim_func
    def kernel(A: T.Tensor((50,), "float32"), B: T.Tensor((50,), "float16")):
        with T.Kernel(T.ceildiv(50, 16)) as block:
            for i in T.Parallel(16):
                T.copy(A[block * 16 + i], B[block * 16 + i])

    a = torch.randn(50)
    assert torch.equal(tvmtile.compile(kernel, out_idx=-1)(a), a.half())


def test_asynchronous_copies_that_are_waited_for() -> None:
    @T.prim_func
    def pipelined(A: T.Tensor((4, 32), "float32"), C: T.Tensor((4, 32), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((2, 32), "float32")
            T.async_copy(A[0, :], tile[0, :])
            for i in T.serial(1, 5):
                if i < 4:
                    T.async_copy(A[i, :], tile[i % 2, :])
                    T.ptx_commit_group()
                    T.ptx_wait_group(1)
                else:
                    T.ptx_wait_group(0)
                for j in T.Parallel(32):
                    C[i - 1, j] = tile[(i - 1) % 2, j] * 2

    source = torch.randn(4, 32)
    result = torch.zeros(4, 32)
    tvmtile.compile(pipelined)(source, result)
    assert torch.equal(result, source * 2)
