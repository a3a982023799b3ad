"""FlattenBuffers: 64 bits where the number of an element needs them, and nowhere else."""

from __future__ import annotations

import pytest
import torch
import tvm
from tvm import tirx

import tvmtile
import tvmtile.language as T
from tvmtile.ir.extents import count_of, is_large, widened

M, N = T.dynamic("M, N")
CUDA = {"kind": "cuda", "arch": "sm_90a"}


def tensor(*shape, strides=None):
    return tirx.decl_buffer(shape, "int8", name="A", strides=strides)


@pytest.mark.parametrize(
    ("shape", "strides", "large"),
    [
        ((65536, 32768), None, False),
        ((65536, 32769), None, True),
        ((1 << 31,), None, False),
        ((1 << 12, 1 << 12, 1 << 12), None, True),
        ((M,), None, False),
        ((M, 1), None, False),
        ((M, 2), None, True),
        ((8, N), None, True),
        ((16, 16), (1 << 27, 1), False),
        ((17, 16), (1 << 27, 1), True),
        ((2, 1), (N, 1), False),
        ((4, 4), (N, 1), True),
    ],
)
def test_which_tensors_are_large(shape, strides, large):
    assert is_large(tensor(*shape, strides=strides)) == large


def test_products_of_extents_do_not_wrap():
    small, large = count_of([tirx.const(3, "int32"), M]), count_of([M, N])
    assert [str(count.ty.dtype) for count in (small, large)] == ["int64", "int64"]
    assert int(count_of([tirx.const(65536, "int32")] * 2)) == 1 << 32
    assert str(count_of([tirx.const(4, "int32"), tirx.const(5, "int32")]).ty.dtype) == "int32"


def test_what_can_wrap_is_computed_in_64_bits():
    i, j = tirx.Var("i", "int32"), tirx.Var("j", "int32")
    wide = widened(i * 4096 - (i // 3 + j))
    a, b = tirx.Cast("int64", i), tirx.Cast("int64", j)
    expected = a * tirx.const(4096, "int64") - (tirx.Cast("int64", i // 3) + b)
    tvm.ir.assert_structural_equal(wide, expected)
    tvm.ir.assert_structural_equal(widened(wide), wide)


def numbered_by_tvm(indices):
    """A store to A[indices(k)] after TVM's passes, which this one replaces."""
    k = tirx.Var("k", "int32")
    matrix = tirx.decl_buffer((65536, 65536), "int8", name="A")
    bits = tirx.decl_buffer((65536,), "int8", name="B")
    store = tirx.BufferStore(matrix, tirx.const(0, "int8"), indices(k, bits))
    loop = tirx.For(k, 0, 65536, tirx.ForKind.SERIAL, store)
    module = tvm.ir.IRModule({"main": tirx.PrimFunc([matrix, bits], loop)})
    return tirx.transform.NarrowDataType(32)(tirx.transform.FlattenBuffer()(module))


@pytest.mark.parametrize(
    "indices",
    [
        pytest.param(lambda k, B: [k, k], id="numbers beyond 32 bits"),
        pytest.param(
            lambda k, B: [0, tirx.Cast("int64", B[k]) >> tirx.const(40, "int64")],
            id="shifts of 64 bits",
        ),
    ],
)
def test_tvms_own_passes_still_fail(indices):
    """Once they do not, they may take the place of this one."""
    with pytest.raises((ValueError, tvm.error.InternalError)):
        numbered_by_tvm(indices)


def rows(height, width):
    @T.prim_func
    def main(A: T.Tensor((height, width), "int8"), B: T.Tensor((4096, 1024), "int8")):
        with T.Kernel(height, threads=64) as by:
            for i in T.Parallel(1024):
                A[by, i] = B[by % 4096, i]

    return main


@pytest.mark.parametrize(
    ("target", "options", "wide"),
    [(CUDA, {}, "(int64_t)"), ("metal", {"execution_backend": "emulator"}, "(long)")],
    ids=["cuda", "metal"],
)
@pytest.mark.parametrize("height", [300000, M], ids=["static", "dynamic"])
def test_only_accesses_of_a_large_tensor_are_wide(target, options, wide, height):
    kernel = tvmtile.compile(rows(height, 32768), target=target, **options)
    lines = kernel.get_kernel_source().splitlines()
    accesses = [x for x in lines if ("A_ptr[" in x or "A_ptr)" in x) and "=" in x]
    assert accesses
    for line in accesses:
        written, read = line.split("=")
        assert wide in written
        assert wide not in read


def test_an_axis_of_more_than_2_31_elements():
    extent = 2_200_000_000

    @T.prim_func
    def main(A: T.Tensor((extent,), "int8")):
        with T.Kernel(2098, threads=128) as bx:
            for i in T.Parallel(1 << 18):  # not by vectors, whose words have smaller numbers
                A[bx * (1 << 20) + i * 4] = T.int8(3)

    source = tvmtile.compile(main, target=CUDA).get_kernel_source()
    assert "((int64_t)((int)blockIdx.x)) * (int64_t)1048576" in source


@pytest.mark.nightly
@pytest.mark.parametrize("height", [32769, M], ids=["static", "dynamic"])
def test_the_end_of_two_gigabytes(height):
    @T.prim_func
    def main(A: T.Tensor((height, 65536), "int8"), ends: T.Tensor((2, 64), "int32")):
        with T.Kernel(T.ceildiv(height, 64), threads=32) as by:
            tile = T.alloc_shared((64, 64), "int8")
            if by == 0:
                T.copy(A[height - 1, 0], ends[0, :])
            T.fill(tile, 3)
            T.copy(tile, A[by * 64, 64])
            if by == T.ceildiv(height, 64) - 1:
                for i in T.Parallel(64):
                    ends[1, i] = T.cast(A[height - 1, 64 + i], "int32")

    a = torch.empty(32769, 65536, dtype=torch.int8)
    a[-1, :64] = torch.arange(64)
    ends = torch.zeros(2, 64, dtype=torch.int32)
    tvmtile.compile(main)(a, ends)
    assert torch.equal(ends, torch.stack([torch.arange(64), torch.full((64,), 3)]).int())
    assert (a[:, 64:128] == 3).all()
