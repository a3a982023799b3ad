"""A GEMM of few rows: activations of some tokens times weights that are read once from memory.

What counts are the bytes of the weights that are on their way. A tile of the transposed product has
few columns, as there are rows of activations, so nearly all of the shared memory holds stages of
weights. With one token this is a product of a matrix and a vector.
"""

import torch
from common import check_or_measure, parse, tiles

import tvmtile
import tvmtile.language as T


def gemm_few_rows(
    M, N, K, block_M=16, block_N=64, block_K=64, stages=3, threads=128, dtype=T.bfloat16
):
    """C = A @ W.T"""

    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype),
        W: T.Tensor((N, K), dtype),
        C: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            W_shared = T.alloc_shared((block_N, block_K), dtype)
            C_local = T.alloc_fragment((block_N, block_M), T.float32)

            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
                T.copy(W[bx * block_N, k * block_K], W_shared)
                T.copy(A[by * block_M, k * block_K], A_shared)
                # The transposed product: a matrix instruction has more rows than columns, as W has.
                T.gemm(W_shared, A_shared, C_local, transpose_B=True)
            for i, j in T.Parallel(block_N, block_M):
                C[by * block_M + j, bx * block_N + i] = C_local[i, j]

    return main


def main(argv=None):
    args = parse(__doc__, argv, m=16, n=1024, k=1024)
    program = gemm_few_rows(args.m, args.n, args.k, **tiles(args, block_K=32))
    kernel = tvmtile.compile(program, out_idx=-1, target=args.target)
    a, w = torch.randn(args.m, args.k).bfloat16(), torch.randn(args.n, args.k).bfloat16()
    check_or_measure(args, kernel, (a, w), lambda a, w: a @ w.T)


if __name__ == "__main__":
    main()
