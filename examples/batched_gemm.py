"""Batched GEMM: C[b] = A[b] @ B[b].T, the batch as the third axis of the grid.

A tile of a three-dimensional tensor is named by its origin too, `A[bz, by * block_M, k * block_K]`:
the copy takes as many trailing axes as the tile on the other side has. B is stored transposed, as
the weights of a linear layer are.
"""

import torch
from common import check_or_measure, parse, tiles

import tvmtile
import tvmtile.language as T


def batched_gemm(batch, M, N, K, block_M=128, block_N=128, block_K=64, dtype=T.float32):
    @T.prim_func
    def main(
        A: T.Tensor((batch, M, K), dtype),
        B: T.Tensor((batch, N, K), dtype),
        C: T.Tensor((batch, M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), batch, threads=128) as (
            bx,
            by,
            bz,
        ):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_N, block_K), dtype)
            C_local = T.alloc_fragment((block_M, block_N), T.float32)

            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=3):
                T.copy(A[bz, by * block_M, k * block_K], A_shared)
                T.copy(B[bz, bx * block_N, k * block_K], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            T.copy(C_local, C[bz, by * block_M, bx * block_N])

    return main


def main(argv=None):
    args = parse(__doc__, argv, batch=8, m=512, n=512, k=512)
    sizes = tiles(args, block_M=64, block_N=64, block_K=16)
    program = batched_gemm(args.batch, args.m, args.n, args.k, **sizes)
    kernel = tvmtile.compile(program, out_idx=-1, target=args.target)
    a = torch.randn(args.batch, args.m, args.k)
    b = torch.randn(args.batch, args.n, args.k)
    check_or_measure(args, kernel, (a, b), lambda a, b: torch.bmm(a, b.transpose(1, 2)))


if __name__ == "__main__":
    main()
