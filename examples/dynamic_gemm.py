"""One compiled GEMM for every M: the batch of a linear layer, known only when it is called.

`T.dynamic` names an extent that the arguments bind. It may occur in several parameters, which must
then agree, and in any expression of the kernel, here in the number of blocks.
"""

import torch
from common import check_or_measure, parse, tiles

import tvmtile
import tvmtile.language as T


def linear(N, K, block_M=128, block_N=128, block_K=64, dtype=T.float32):
    M = T.dynamic("M")

    @T.prim_func
    def main(
        X: T.Tensor((M, K), dtype),
        W: T.Tensor((N, K), dtype),
        Y: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            X_shared = T.alloc_shared((block_M, block_K), dtype)
            W_shared = T.alloc_shared((block_N, block_K), dtype)
            Y_local = T.alloc_fragment((block_M, block_N), T.float32)

            T.clear(Y_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=3):
                T.copy(X[by * block_M, k * block_K], X_shared)
                T.copy(W[bx * block_N, k * block_K], W_shared)
                T.gemm(X_shared, W_shared, Y_local, transpose_B=True)
            T.copy(Y_local, Y[by * block_M, bx * block_N])

    return main


def main(argv=None):
    args = parse(__doc__, argv, m=1000, n=1024, k=1024)
    program = linear(args.n, args.k, **tiles(args, block_M=64, block_N=64, block_K=16))
    kernel = tvmtile.compile(program, out_idx=-1, target=args.target)
    w = torch.randn(args.n, args.k)
    for m in (1, args.m // 2, args.m):
        print(f"M = {m}: ", end="")
        check_or_measure(args, kernel, (torch.randn(m, args.k), w), torch.nn.functional.linear)


if __name__ == "__main__":
    main()
