"""Grouped GEMM of float8_e4m3fn: each group of rows of A has a matrix and scales of its own.

As in `grouped_gemm.py`, one grid walks over the tiles of all groups. The last tile of a group may
reach into the next group's rows, and stores only its own. Results go through shared memory, in parts:
so neighbouring threads store neighbours, in rows that are checked one by one.
"""

import torch
from common import check_or_measure, parse, tiles
from grouped_gemm import tile_table

import tvmtile
import tvmtile.language as T

DTYPE = T.float8_e4m3fn


def grouped_gemm_fp8(
    total, row_tiles, groups, N, K, block_M=64, block_N=128, block_K=128, stages=3, threads=128,
    panel=8, persist=None, parts=2,
):  # fmt: skip
    """C = (A * A_scale) @ (B[group] * B_scale[group]).T for each group's rows."""
    width = block_N // parts
    starts = [width * number for number in range(parts)]

    @T.prim_func
    def main(
        A: T.Tensor((total, K), DTYPE),
        A_scale: T.Tensor((total,), T.float32),
        B: T.Tensor((groups, N, K), DTYPE),
        B_scale: T.Tensor((groups, N), T.float32),
        table: T.Tensor((row_tiles, 3), T.int32),
        C: T.Tensor((total, N), T.bfloat16),
    ):
        with T.Kernel(T.ceildiv(N, block_N), row_tiles, threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), DTYPE)
            B_shared = T.alloc_shared((block_N, block_K), DTYPE)
            C_local = T.alloc_fragment((block_M, block_N), T.float32)
            C_shared = T.alloc_shared((block_M, width), T.bfloat16)
            group, first, end = table[by, 0], table[by, 1], table[by, 2]
            T.assume(first >= 0)
            T.assume(end <= total)
            if persist is not None:
                T.annotate_persistent(persist)
            T.use_swizzle(panel)

            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
                T.copy(A[first, k * block_K], A_shared)
                T.copy(B[group, bx * block_N, k * block_K], B_shared)
                T.fp8_scaled_matmul(
                    A_shared, A_scale[first : first + block_M],
                    B_shared, B_scale[group, bx * block_N : (bx + 1) * block_N],
                    C_local, transpose_B=True,
                )  # fmt: skip
            for start in starts:
                T.copy(C_local[:, start : start + width], C_shared)
                for i, j in T.Parallel(block_M, width):
                    if first + i < end:
                        C[first + i, bx * block_N + start + j] = C_shared[i, j]

    return main


def main(argv=None):
    args = parse(__doc__, argv, groups=8, largest=256, n=512, k=512)
    sizes = torch.randint(args.largest + 1, (args.groups,)).tolist()
    sizes[0] = max(sizes[0], 1)
    block = 32 if args.on_gpu else 64
    table = tile_table(sizes, block)
    extents = sum(sizes), len(table), args.groups, args.n, args.k
    own = tiles(args, block_N=64, block_K=64)
    program = grouped_gemm_fp8(*extents, block_M=block, **own)
    kernel = tvmtile.compile(program, out_idx=-1, target=args.target)
    a = torch.randn(sum(sizes), args.k).to(torch.float8_e4m3fn)
    b = torch.randn(args.groups, args.n, args.k).to(torch.float8_e4m3fn)
    a_scale, b_scale = torch.rand(sum(sizes)), torch.rand(args.groups, args.n)

    def reference(a, a_scale, b, b_scale, table):
        a = (a.to(a_scale.dtype) * a_scale[:, None]).split(sizes)
        b = b.to(b_scale.dtype) * b_scale[..., None]
        return torch.cat([rows @ matrix.T for rows, matrix in zip(a, b, strict=True)])

    check_or_measure(args, kernel, (a, a_scale, b, b_scale, table), reference)


if __name__ == "__main__":
    main()
