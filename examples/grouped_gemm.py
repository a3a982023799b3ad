"""Grouped GEMM: each group of rows of A has a matrix of its own, as in a mixture of experts.

The sizes of the groups are data, not constants. The kernel gets them as a table of tiles: a tile
belongs to one group, begins at one row and ends, like its group, before another. One grid walks over
all tiles of all groups.
"""

import torch
from common import check_or_measure, parse, tiles

import tvmtile
import tvmtile.language as T

BLOCK_M = 64


def grouped_gemm(total, tiles, groups, N, K, block_M=BLOCK_M, block_N=128, block_K=64):
    dtype = T.float32

    @T.prim_func
    def main(
        A: T.Tensor((total, K), dtype),
        B: T.Tensor((groups, K, N), dtype),
        table: T.Tensor((tiles, 3), T.int32),
        C: T.Tensor((total, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), tiles, threads=128) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_K, block_N), dtype)
            C_local = T.alloc_fragment((block_M, block_N), T.float32)
            group, first, end = table[by, 0], table[by, 1], table[by, 2]

            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=3):
                T.copy(A[first, k * block_K], A_shared)
                T.copy(B[group, k * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            # The tile may reach into the next group's rows, which are another block's to write.
            for i, j in T.Parallel(block_M, block_N):
                if first + i < end:
                    C[first + i, bx * block_N + j] = C_local[i, j]

    return main


def tile_table(sizes, block_M=BLOCK_M):
    """One row (group, first row, end of the group) for each tile."""
    rows, start = [], 0
    for group, size in enumerate(sizes):
        rows += [(group, first, start + size) for first in range(start, start + size, block_M)]
        start += size
    return torch.tensor(rows, dtype=torch.int32)


def main(argv=None):
    args = parse(__doc__, argv, groups=8, largest=256, n=512, k=512)
    sizes = torch.randint(args.largest + 1, (args.groups,)).tolist()
    sizes[0] = max(sizes[0], 1)
    table = tile_table(sizes)
    extents = sum(sizes), len(table), args.groups, args.n, args.k
    program = grouped_gemm(*extents, **tiles(args, block_N=64, block_K=8))
    kernel = tvmtile.compile(program, out_idx=-1, target=args.target)
    a = torch.randn(sum(sizes), args.k)
    b = torch.randn(args.groups, args.k, args.n)

    def reference(a, b, table):
        parts = [rows @ matrix for rows, matrix in zip(a.split(sizes), b, strict=True)]
        return torch.cat(parts)

    check_or_measure(args, kernel, (a, b, table), reference)


if __name__ == "__main__":
    main()
