"""GEMM of float8_e4m3fn with scales: one a tensor, one a row of A and of B, or one a block along K.

`block` is what DeepSeek-V3 trains with: a scale for 128 elements of a row of A and for 128 x 128
elements of B. The tensor cores keep few bits of a sum of such products, so each block of K is
summed by itself, and the CUDA cores add it, scaled, in float32. The scales of A are stored by
blocks of K: those that a tile needs at once are neighbours.

DeepSeek-AI, DeepSeek-V3 technical report, 2024, section 3.3.
"""

import torch
from common import check_or_measure, parse, tiles

import tvmtile
import tvmtile.language as T

DTYPE = T.float8_e4m3fn
BLOCK = 128
LAYOUT = T.BlockScaledLayout(T.float32, BLOCK, a_rows=1, b_rows=BLOCK)


def gemm_fp8(
    M, N, K, scales="row", block_M=128, block_N=128, block_K=BLOCK, stages=3, threads=128, panel=8
):
    """C = (A * A_scale) @ (B * B_scale).T with scales of the tensors or of their rows."""
    rows = {"tensor": (1, 1), "row": (M, N)}[scales]

    @T.prim_func
    def main(
        A: T.Tensor((M, K), DTYPE),
        A_scale: T.Tensor((rows[0],), T.float32),
        B: T.Tensor((N, K), DTYPE),
        B_scale: T.Tensor((rows[1],), T.float32),
        C: T.Tensor((M, N), T.bfloat16),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), DTYPE)
            B_shared = T.alloc_shared((block_N, block_K), DTYPE)
            C_local = T.alloc_fragment((block_M, block_N), T.float32)
            T.use_swizzle(panel)
            if scales == "row":
                of_a = A_scale[by * block_M : (by + 1) * block_M]
                of_b = B_scale[bx * block_N : (bx + 1) * block_N]
            else:
                of_a, of_b = A_scale[0], B_scale[0]

            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K], B_shared)
                T.fp8_scaled_matmul(A_shared, of_a, B_shared, of_b, C_local, transpose_B=True)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


def gemm_fp8_blocks(
    M, N, K, block_M=128, block_N=BLOCK, stages=3, threads=128, panel=8, parts=2, persist=None
):
    """The same with a scale for each 1 x 128 elements of A and each 128 x 128 of B.

    A tile has `parts` of rows, each with a sum of its own, which follow each other in a step. So the
    registers hold sums of all of its rows, and those of a block of K for one part only.
    """
    assert BLOCK % block_N == 0, "the columns of a tile have one scale"
    blocks, part = T.ceildiv(K, BLOCK), block_M // parts
    starts = [part * number for number in range(parts)]

    @T.prim_func
    def main(
        A: T.Tensor((M, K), DTYPE),
        A_scale: T.Tensor((blocks, M), T.float32),
        B: T.Tensor((N, K), DTYPE),
        B_scale: T.Tensor((T.ceildiv(N, BLOCK), blocks), T.float32),
        C: T.Tensor((M, N), T.bfloat16),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, BLOCK), DTYPE)
            B_shared = T.alloc_shared((block_N, BLOCK), DTYPE)
            A_scales = T.alloc_shared((block_M, 1), T.float32)
            sums = [T.alloc_fragment((part, block_N), T.float32) for _ in starts]
            if persist is not None:
                T.annotate_persistent(persist)
            column = bx * block_N // BLOCK  # of blocks of B
            T.use_swizzle(panel)

            for total in sums:
                T.clear(total)
            for k in T.Pipelined(blocks, num_stages=stages):
                T.copy(A[by * block_M, k * BLOCK], A_shared)
                T.copy(B[bx * block_N, k * BLOCK], B_shared)
                T.copy(A_scale[k, by * block_M : (by + 1) * block_M], A_scales[:, 0])
                for start, total in zip(starts, sums, strict=True):
                    T.fp8_scaled_matmul(
                        A_shared[start : start + part, :], A_scales[start : start + part, :],
                        B_shared, B_scale[column : column + 1, k : k + 1],
                        total, transpose_B=True, block_scale_layout=LAYOUT,
                    )  # fmt: skip
            for start, total in zip(starts, sums, strict=True):
                T.copy(total, C[by * block_M + start, bx * block_N])

    return main


def expanded(scale, shape, blocks):
    """The scale of each element of a matrix of which `blocks` share one."""
    for axis, block in enumerate(blocks):
        scale = scale.repeat_interleave(block, dim=axis)
    return scale[: shape[0], : shape[1]]


def reference(a, a_scale, b, b_scale):
    if a_scale.dim() == 2:
        a_scale = expanded(a_scale.T, a.shape, (1, BLOCK))
        b_scale = expanded(b_scale, b.shape, (BLOCK, BLOCK))
    else:
        a_scale, b_scale = a_scale[:, None], b_scale[:, None]
    return (a.to(a_scale.dtype) * a_scale) @ (b.to(b_scale.dtype) * b_scale).T


def main(argv=None):
    args = parse(__doc__, argv, scales=("tensor", "row", "block"), m=512, n=512, k=1024)
    extents, blocks = (args.m, args.n, args.k), -(-args.k // BLOCK)
    if args.scales == "block":
        program = gemm_fp8_blocks(*extents, **tiles(args, block_M=32, block_N=32, stages=1))
        shapes = (blocks, args.m), (-(-args.n // BLOCK), blocks)
    else:
        sizes = tiles(args, block_M=64, block_N=64, block_K=64)
        program = gemm_fp8(*extents, args.scales, **sizes)
        shapes = ((1,), (1,)) if args.scales == "tensor" else ((args.m,), (args.n,))
    kernel = tvmtile.compile(program, out_idx=-1, target=args.target)
    a, b = (torch.randn(rows, args.k).to(torch.float8_e4m3fn) for rows in (args.m, args.n))
    a_scale, b_scale = (torch.rand(shape) for shape in shapes)
    check_or_measure(args, kernel, (a, a_scale, b, b_scale), reference)


if __name__ == "__main__":
    main()
