"""GEMM with int4 weights (W4A16): two to a byte, scaled in groups of 64, decoded in registers.

A weight is (nibble - 8) * scale. The packed tile is copied as it is, a quarter of the bytes that
bfloat16 weights would move; each thread decodes what the matrix instructions want of it.
"""

import torch
from common import check_or_measure, parse, tiles

import tvmtile
import tvmtile.language as T

GROUP = 64


def dequant_gemm(M, N, K, block_M=64, block_N=64, block_K=GROUP, dtype=T.bfloat16):
    assert K % GROUP == 0, f"the groups of {GROUP} weights do not divide K = {K}"

    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype),
        W: T.Tensor((N, K // 2), T.uint8),
        scales: T.Tensor((N, K // GROUP), dtype),
        C: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            W_packed = T.alloc_shared((block_N, block_K // 2), T.uint8)
            W_local = T.alloc_fragment((block_N, block_K), dtype)
            C_local = T.alloc_fragment((block_N, block_M), T.float32)

            T.clear(C_local)
            for k in T.Pipelined(K // block_K, num_stages=3):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(W[bx * block_N, k * block_K // 2], W_packed)
                for i, j in T.Parallel(block_N, block_K):
                    nibble = (W_packed[i, j // 2] >> (j % 2 * 4)) & 0xF
                    scale = scales[bx * block_N + i, k * block_K // GROUP]
                    W_local[i, j] = (T.cast(nibble, T.float32) - 8) * T.cast(scale, T.float32)
                # The transposed product: a matrix instruction has more rows than columns, as W has.
                T.gemm(W_local, A_shared, C_local, transpose_B=True)
            for i, j in T.Parallel(block_N, block_M):
                C[by * block_M + j, bx * block_N + i] = C_local[i, j]

    return main


def decoded(packed, scales):
    """The weights that the packed bytes stand for, the low nibble first."""
    nibbles = torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(1)
    return (nibbles.to(scales.dtype) - 8) * scales.repeat_interleave(GROUP, dim=1)


def main(argv=None):
    args = parse(__doc__, argv, m=512, n=1024, k=1024)
    sizes = tiles(args, block_M=32, block_N=64, block_K=32)
    program = dequant_gemm(args.m, args.n, args.k, **sizes)
    kernel = tvmtile.compile(program, out_idx=-1, target=args.target)
    a = torch.randn(args.m, args.k).bfloat16()
    packed = torch.randint(256, (args.n, args.k // 2), dtype=torch.uint8)
    scales = torch.rand(args.n, args.k // GROUP).bfloat16()
    check_or_measure(args, kernel, (a, packed, scales), lambda a, w, s: a @ decoded(w, s).T)


if __name__ == "__main__":
    main()
