"""T.cumsum and T.cummax on the CPU and on Metal, against the reference."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.tileop.scan import reference


def scanned(compiled, src, kind, dim, reverse=False, out_dtype=None):
    """Scan a tile: load, scan into another, store."""
    shape, dtype = tuple(src.shape), str(src.dtype).removeprefix("torch.")
    out_dtype = out_dtype or dtype
    scan = {"sum": T.cumsum, "max": T.cummax}[kind]

    @T.prim_func
    def main(A: T.Tensor(shape, dtype), C: T.Tensor(shape, out_dtype)):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared(shape, dtype)
            out = T.alloc_fragment(shape, out_dtype)
            T.copy(A, tile)
            scan(tile, out, dim=dim, reverse=reverse)
            T.copy(out, C)

    out = torch.zeros(shape, dtype=getattr(torch, out_dtype))
    compiled(main)(src, out)
    return out


@pytest.mark.parametrize("kind", ["sum", "max"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((100,), 0),
        ((37, 77), 0),
        ((5, 77), 1),
        ((3, 4, 21), -2),
        ((1, 9), 0),
        ((9, 1), 0),
        ((1,), 0),
    ],
)
def test_axes(tensors, close, shape, dim, reverse, kind, compiled):
    src = tensors(shape, "int32")
    expected = reference(src.numpy(), kind, dim % len(shape), reverse)
    close(scanned(compiled, src, kind, dim, reverse), expected)


@pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [
        ("float32", "float32"),
        ("float64", "float64"),
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
        ("float16", "float32"),
        ("int8", "int32"),
        ("uint8", "uint8"),
        ("int64", "int64"),
        ("bool", "int32"),
    ],
)
@pytest.mark.parametrize("dim", [0, 1])
def test_dtypes(tensors, close, dtype, out_dtype, dim, compiled):
    src = tensors((13, 40), dtype)
    expected = reference(tensors.wide(src), "sum", dim)
    close(scanned(compiled, src, "sum", dim, out_dtype=out_dtype), expected)


def test_float16_totals_are_kept_in_float32(compiled):
    """Totals of ones beyond 2048, where float16 can't add one any more."""
    out = scanned(compiled, torch.ones(4096, dtype=torch.float16), "sum", 0)
    assert out[-1].item() == 4096


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("reverse", [False, True])
def test_in_place_and_region(tensors, close, dim, reverse, compiled):
    """Only the rows 2 to 9 and the columns 3 to 40 are scanned, where they are."""

    @T.prim_func
    def main(A: T.Tensor((12, 45), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((12, 45), "float32")
            T.copy(A, tile)
            T.cumsum(tile[2:9, 3:40], dim=dim, reverse=reverse)
            T.copy(tile, A)

    src = tensors((12, 45), "float32")
    expected = src.double().numpy().copy()
    expected[2:9, 3:40] = reference(expected[2:9, 3:40], "sum", dim, reverse)
    compiled(main)(src)
    close(src, expected)


def test_tensor_of_an_extent_known_at_run_time(tensors, close, compiled):
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((4, n), "float32"), C: T.Tensor((4, n), "float32")):
        with T.Kernel(4) as bx:
            T.cumsum(A[bx, 0:n], C[bx, 0:n], dim=1)

    compiled = compiled(main)
    for extent in (1, 33):
        src, out = tensors((4, extent), "float32"), torch.zeros(4, extent)
        compiled(src, out)
        close(out, src.double().cumsum(1).numpy())


def test_nan_is_ignored_by_cummax(compiled):
    src = torch.tensor([1.0, float("nan"), 3.0, 2.0])
    assert scanned(compiled, src, "max", 0).tolist() == [1, 1, 3, 3]


@pytest.mark.parametrize(
    ("shape", "dim", "threads"),
    [
        ((1000,), 0, 128),  # a row by several simdgroups
        ((3, 500), 1, 128),  # a row by one
        ((2, 3, 64), 1, 128),  # a row in steps that are no neighbours
        ((300, 4), 1, 64),  # several rows a thread
        ((5, 7), 0, 96),
        ((2, 4500), 1, 256),  # too long for a copy in threadgroup memory
    ],
)
def test_rows_by_groups_of_threads_on_metal(tensors, close, shape, dim, threads):
    @T.prim_func
    def main(
        A: T.Tensor(shape, "float32"), C: T.Tensor(shape, "float32"), D: T.Tensor(shape, "float32")
    ):
        with T.Kernel(1, threads=threads):
            T.cumsum(A, C, dim=dim)
            T.cummax(A, D, dim=dim, reverse=True)

    src, sums, maxima = tensors(shape, "float32"), torch.zeros(shape), torch.zeros(shape)
    tvmtile.compile(main, target="metal", execution_backend="emulator")(src, sums, maxima)
    wide = src.double().numpy()
    close(sums, reference(wide, "sum", dim))
    close(maxima, reference(wide, "max", dim, reverse=True))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("rows", [8, 5])
@pytest.mark.parametrize("stages", [2, 3])
def test_a_tile_of_a_pipelined_loop(tensors, close, rows, dim, stages, compiled):
    """The source has a leading axis of versions there, the target none."""

    @T.prim_func
    def main(A: T.Tensor((rows, 64), "float16"), C: T.Tensor((rows, 64), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((rows, 16), "float16")
            totals = T.alloc_shared((rows, 16), "float32")
            for k in T.Pipelined(4, num_stages=stages):
                T.copy(A[0, k * 16], tile)
                T.cumsum(tile, totals, dim=dim)
                T.copy(totals, C[0, k * 16])

    src, out = tensors((rows, 64), "float16"), torch.zeros(rows, 64)
    compiled(main)(src, out)
    pieces = src.double().reshape(rows, 4, 16)
    expected = reference(pieces.numpy(), "sum", 0 if dim == 0 else 2)
    close(out, expected.reshape(rows, 64))


def test_a_long_row_of_a_pipelined_loop_on_metal():
    """In strips: a copy of it in float32 does not fit into threadgroup memory."""

    @T.prim_func
    def main(A: T.Tensor((2, 6000), "float16"), C: T.Tensor((2, 6000), "float16")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((1, 6000), "float16")
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[k, 0], tile)
                T.cumsum(tile, C[k : k + 1, 0:6000], dim=1)

    src, out = torch.randint(-2, 3, (2, 6000)).half(), torch.zeros(2, 6000).half()
    tvmtile.compile(main, target="metal", execution_backend="emulator")(src, out)
    assert torch.equal(out.double(), src.double().cumsum(1))
    tvmtile.compile(main, target={"kind": "cuda", "arch": "sm_80"})
