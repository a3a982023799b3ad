"""AccumulateInPlace: which sums are kept in the tensor they go to, and that results stay right."""

import pytest
import torch

import tvmtile
import tvmtile.language as T

M, N, K = 96, 64, 48
SUMS = {"int8": "int32", "float32": "float32", "bfloat16": "float32"}


def product(dtype="float32", out=None, *, grid=(2, 3), at=None, n=N, before=None, after=None):
    """C = A @ B by tiles of 32 x 32, at a place and with statements around the last copy."""
    at = at or (lambda bx, by: (by * 32, bx * 32))
    out = out or SUMS[dtype]

    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, n), dtype), C: T.Tensor((M, n), out)):
        with T.Kernel(*grid) as (bx, by):
            row, column = at(bx, by)
            sums = T.alloc_fragment((32, 32), SUMS[dtype])
            a = T.alloc_shared((32, 16), dtype)
            b = T.alloc_shared((16, 32), dtype)
            T.clear(sums)
            for k in T.Pipelined(K // 16):
                T.copy(A[row, k * 16], a)
                T.copy(B[k * 16, column], b)
                T.gemm(a, b, sums)
            if before is not None:
                before(sums, C, row, column)
            T.copy(sums, C[row, column])
            if after is not None:
                after(sums, C, row, column)

    return main


def is_in_place(program):
    """Tell whether the tile of sums is gone."""
    lowering = dict(tvmtile.compile(program, target="llvm").lowering)
    return "sums" not in lowering["tvmtile.AccumulateInPlace"].script()


def check(program, dtype="float32", out=None, n=N):
    """Compare with float64, from a C that holds something else."""
    shapes = ((M, K), (K, n))
    if dtype == "int8":
        A, B = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in shapes)
    else:
        A, B = (torch.randn(shape).to(getattr(torch, dtype)) for shape in shapes)
    C = torch.full((M, n), 7, dtype=getattr(torch, out or SUMS[dtype]))
    tvmtile.compile(program, target="llvm")(A, B, C)
    torch.testing.assert_close(C.double(), A.double() @ B.double(), rtol=1e-2, atol=1e-2)


@pytest.mark.full
@pytest.mark.parametrize("dtype", list(SUMS))
def test_sums_that_are_only_written_out_are_kept_where_they_go(dtype):
    program = product(dtype)
    assert is_in_place(program)
    check(program, dtype)


@pytest.mark.full
def test_blocks_may_be_further_apart_than_their_tiles():
    program = product(grid=(1, 2), at=lambda bx, by: (by * 64, bx * 32))
    assert is_in_place(program)
    A, B, C = torch.randn(M, K), torch.randn(K, N), torch.full((M, N), 7.0)
    tvmtile.compile(program, target="llvm")(A, B, C)
    expected = torch.full((M, N), 7.0)
    for row in (0, 64):
        expected[row : row + 32, :32] = A[row : row + 32] @ B[:, :32]
    torch.testing.assert_close(C, expected, rtol=1e-4, atol=1e-4)


def agreeing(bx, by):
    return by // 2 * 32, bx * 32


def overlapping(bx, by):
    return by * 16, bx * 32


@T.macro
def halved(sums, C, row, column):
    for i, j in T.Parallel(32, 32):
        sums[i, j] = sums[i, j] * 0.5


@T.macro
def doubled_in_c(sums, C, row, column):
    C[row, column] = C[row, column] * 2.0


@pytest.mark.full
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(product("bfloat16", "bfloat16"), id="another dtype"),
        pytest.param(product(before=halved), id="elementwise statements"),
        pytest.param(product(after=doubled_in_c), id="another use of the tensor"),
        pytest.param(product(n=72, grid=(3, 3)), id="a ragged edge"),
        pytest.param(
            product(grid=(2, 6), at=lambda bx, by: (by // 2 * 32, bx * 32)), id="blocks that agree"
        ),
        pytest.param(
            product(grid=(2, 5), at=lambda bx, by: (by * 16, bx * 32)), id="blocks that overlap"
        ),
    ],
)
def test_other_sums_have_a_tile(program):
    assert not is_in_place(program)


def test_a_tile_that_other_operators_use_stays():
    @T.prim_func
    def main(
        A: T.Tensor((32, 32), "float32"),
        B: T.Tensor((32, 32), "float32"),
        copied: T.Tensor((1, 32, 32), "float32"),
        summed: T.Tensor((1, 32), "float32"),
        C: T.Tensor((1, 32, 32), "float32"),
    ):
        with T.Kernel(1):
            left = T.alloc_shared((32, 32), "float32")
            sums = T.alloc_fragment((32, 32), "float32")
            totals = T.alloc_fragment((32,), "float32")
            T.copy(A, left)
            T.gemm(left, B, sums, clear_accum=True)
            T.gemm(left, B, sums)
            T.reduce_sum(left, totals, dim=0)
            T.copy(left, copied[0, 0:32, 0:32])
            T.copy(totals, summed[0, 0:32])
            T.copy(sums, C[0, 0:32, 0:32])

    kernel = tvmtile.compile(main, target="llvm")
    text = dict(kernel.lowering)["tvmtile.AccumulateInPlace"].script()
    assert "left = " in text
    assert "sums = " not in text
    A, B = torch.randn(32, 32), torch.randn(32, 32)
    copied, summed, C = torch.empty(1, 32, 32), torch.empty(1, 32), torch.empty(1, 32, 32)
    kernel(A, B, copied, summed, C)
    torch.testing.assert_close(copied[0], A)
    torch.testing.assert_close(summed[0], A.sum(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(C[0], 2 * A @ B, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("outside", [True, False], ids=["before the kernel", "in the kernel"])
@pytest.mark.parametrize("of", ["tensor", "tile"])
def test_sums_stay_where_the_tensor_or_the_tile_has_another_name(outside, of):
    """The old values of C, or the sums, are read by their other name in front of the last copy."""

    @T.prim_func
    def main(
        A: T.Tensor((32, 32), "float32"),
        B: T.Tensor((32, 32), "float32"),
        O: T.Tensor((1024,), "float32"),
        C: T.Tensor((32, 32), "float32"),
    ):
        if outside:
            flat = T.reshape(C, (1024,))
        with T.Kernel(1):
            sums = T.alloc_fragment((32, 32), "float32")
            if of == "tile":
                flat = T.reshape(sums, (1024,))
            elif not outside:
                flat = T.reshape(C, (1024,))
            T.clear(sums)
            T.gemm(A, B, sums)
            T.copy(flat, O)
            if of == "tile":
                T.fill(flat, 1)
            T.copy(sums, C)

    A, B, O, C = (
        torch.randn(32, 32),
        torch.randn(32, 32),
        torch.empty(1024),
        torch.full((32, 32), 7.0),
    )
    old = C.clone()
    tvmtile.compile(main, target="llvm")(A, B, O, C)
    product, read = A @ B, O.view(32, 32)
    torch.testing.assert_close(read, product if of == "tile" else old, rtol=1e-4, atol=1e-4)
    expected = torch.ones(32, 32) if of == "tile" else product
    torch.testing.assert_close(C, expected, rtol=1e-4, atol=1e-4)


def test_results_of_sums_with_a_tile_are_right():
    check(product("bfloat16", "bfloat16"), "bfloat16", "bfloat16")
    check(product(n=72, grid=(3, 3)), n=72)
    check(product(grid=(2, 6), at=agreeing))
    check(product(grid=(2, 5), at=overlapping))


@pytest.mark.full
def test_sums_that_a_loop_leaves_behind_are_not_written():
    @T.prim_func
    def main(
        A: T.Tensor((32, 64), "float32"),
        B: T.Tensor((64, 32), "float32"),
        last: T.Tensor((2,), "int32"),
        C: T.Tensor((32, 32), "float32"),
    ):
        with T.Kernel(1):
            for step in T.serial(2):
                sums = T.alloc_fragment((32, 32), "float32")
                T.clear(sums)
                T.gemm(
                    A[0:32, step * 32 : step * 32 + 32], B[step * 32 : step * 32 + 32, 0:32], sums
                )
                if last[step] > 0:
                    break
                T.copy(sums, C)

    assert not is_in_place(main)
    A, B, C = torch.randn(32, 64), torch.randn(64, 32), torch.zeros(32, 32)
    tvmtile.compile(main, target="llvm")(A, B, torch.tensor([0, 1], dtype=torch.int32), C)
    torch.testing.assert_close(C, A[:, :32] @ B[:32], rtol=1e-4, atol=1e-4)
