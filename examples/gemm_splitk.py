"""Split-K GEMM: several blocks share the sum for one tile of C and add their parts atomically.

For small M and N and a large K, the tiles of C alone don't keep a machine busy. The function has
two kernels, which run one after the other: the first clears C.
"""

import torch
from common import check_or_measure, parse, tiles

import tvmtile
import tvmtile.language as T


def gemm_splitk(M, N, K, splits, block_M=64, block_N=64, block_K=64, dtype=T.float32):
    steps = T.ceildiv(K, splits * block_K)  # of the loop along K, in each block

    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((K, N), dtype),
        C: T.Tensor((M, N), T.float32),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            for i, j in T.Parallel(block_M, block_N):
                C[by * block_M + i, bx * block_N + j] = 0

        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), splits, threads=128) as (
            bx,
            by,
            bz,
        ):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_K, block_N), dtype)
            C_local = T.alloc_fragment((block_M, block_N), T.float32)

            T.clear(C_local)
            for step in T.Pipelined(steps, num_stages=3):
                k = (bz * steps + step) * block_K
                T.copy(A[by * block_M, k], A_shared)
                T.copy(B[k, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            for i, j in T.Parallel(block_M, block_N):
                T.atomic_add(C[by * block_M + i, bx * block_N + j], C_local[i, j])

    return main


def main(argv=None):
    args = parse(__doc__, argv, m=64, n=64, k=16384, splits=8)
    program = gemm_splitk(args.m, args.n, args.k, args.splits, **tiles(args, block_K=16))
    kernel = tvmtile.compile(program, out_idx=-1, target=args.target)
    a, b = torch.randn(args.m, args.k), torch.randn(args.k, args.n)
    check_or_measure(args, kernel, (a, b), torch.mm)


if __name__ == "__main__":
    main()
