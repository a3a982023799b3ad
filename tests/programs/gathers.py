"""Gathers and scatters of rows, and windows of images."""

from __future__ import annotations

import tvmtile.language as T
from tests.programs import program

DTYPES = ["float32", "float16", "bfloat16", "int8", "float8_e4m3fn"]
ROWS = [3, 3, -1, 19, 20, 0, 7, 1 << 30]  # twice the same, none, and out of range


@program(
    parameters={"dtype": DTYPES, "index": ["int32", "int64"], "four": [False, True]},
    examples=[{}, {"index": "int64", "four": True}, {"dtype": "float8_e4m3fn"}],
    inputs={"R": lambda rng, shape: np.array(ROWS) * (1 if index == "int32" else 1 << 10)},
    fast=["metal", "sm_80"],
)
def gather(A: dtype[20, 72], R: index[8], C: dtype[8, 96]):
    """Eight rows, in parts of 32 columns of 72."""
    with T.Kernel(3, 2, threads=32) as (bx, by):
        tile = T.alloc_shared((4, 32), dtype)
        if four:
            at = by * 4
            T.gather4(A, tile, bx * 32, [R[at], R[at + 1], R[at + 2], R[at + 3]])
        else:
            T.gather_rows(A, tile, R[by * 4 : by * 4 + 4], bx * 32)
        T.copy(tile, C[by * 4, bx * 32])


@program(
    parameters={"dtype": DTYPES}, inputs={"R": lambda rng, shape: ROWS}, fast=["metal", "sm_80"]
)
def scatter(C: dtype[8, 96], R: int32[8], A: dtype[20, 72], B: dtype[20, 72]):
    """A row that is named twice keeps what is written last."""
    with T.Kernel(3, threads=32) as bx:
        tile = T.alloc_shared((8, 32), dtype)
        T.copy(C[0, bx * 32], tile)
        T.scatter_rows(tile, A, R, bx * 32)
        T.scatter4(tile[0:4, :], B, bx * 32, [R[0], R[1], R[2], R[3]])
        T.scatter4(tile[4:8, :], B, bx * 32, [R[4], R[5], R[6], R[7]])


@program(
    tags={"pipelined"},
    parameters={"stages": [3, 0]},
    inputs={"R": lambda rng, shape: rng.integers(-1, 100, shape)},
    expects=lambda p: {"sm_80": ["shared_global_16"]} if p.stages else {},
    fast=["metal", "sm_80"],
)
def gather_rows_of_a_product(
    A: float16[100, 160], R: int32[64], W: float16[160, 64], C: float32[64, 64]
):
    """A product gathers the rows of its operand, as those of the tokens that an expert gets."""
    with T.Kernel(2, threads=64) as bx:
        left = T.alloc_shared((32, 32), "float16")
        right = T.alloc_shared((32, 64), "float16")
        sums = T.alloc_fragment((32, 64), "float32")
        T.clear(sums)
        for k in T.Pipelined(5, num_stages=stages):
            T.gather_rows(A, left, R[bx * 32 : bx * 32 + 32], k * 32)
            T.copy(W[k * 32, 0], right)
            T.gemm(left, right, sums)
        T.copy(sums, C[bx * 32, 0])


@program(
    parameters={
        "image": [(2, 7, 9, 5), (1, 8, 8, 4), (2, 9, 7, 3), (1, 5, 5, 1)],
        "window": [(3, 1, 1, 1), (3, 2, 1, 0), (2, 1, 2, 2), (1, 3, 1, 0)],
    },
    examples=[{"image": (2, 9, 7, 3), "window": (2, 1, 2, 2)}, {}],
    fast=["metal", "sm_80"],
)
def im2col(A: T.Tensor(image, "float32"), C: float32[rows * 16, columns * 8]):
    """Zeros behind the last row and column; a window is its size, stride, dilation and padding."""
    size, stride, dilation, pad = window
    reach = dilation * (size - 1) + 1
    down, right = (
        (image[1] + 2 * pad - reach) // stride + 1,
        (image[2] + 2 * pad - reach) // stride + 1,
    )
    rows, columns = -(-image[0] * down * right // 16), -(-size * size * image[3] // 8)
    with T.Kernel(columns, rows, threads=64) as (bx, by):
        tile = T.alloc_shared((16, 8), "float32")
        T.im2col(A, tile, by, bx, size, stride, dilation, pad)
        T.copy(tile, C[by * 16, bx * 8])


@program(tags={"pipelined"}, fast=["metal", "sm_80"])
def im2col_of_a_convolution(
    data: float32[1, 6, 8, 16], weight: float32[3, 3, 16, 24], out: float32[1, 6, 8, 24]
):
    with T.Kernel(2, 2, threads=128) as (bx, by):
        a = T.alloc_shared((32, 16), "float32")
        b = T.alloc_shared((16, 16), "float32")
        c = T.alloc_fragment((32, 16), "float32")
        weight_flat = T.Tensor((144, 24), "float32", weight.data)
        out_flat = T.Tensor((48, 24), "float32", out.data)
        T.clear(c)
        for k in T.Pipelined(9, num_stages=2):
            T.c2d_im2col(data, a, by, k, 3, 1, 1, 1)
            T.copy(weight_flat[k * 16, bx * 16], b)
            T.gemm(a, b, c)
        T.copy(c, out_flat[by * 32, bx * 16])
