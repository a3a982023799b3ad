"""GEMM with float4 weights, MXFP4 or NVFP4, and bfloat16 activations, decoded in registers.

A weight is an e2m1 times the scale of its block of 32 (a power of two) or 16 (an e4m3). Both products
are exact in bfloat16. A tile of bytes is copied; each thread decodes in registers what the matrix
instructions want of it.
"""

import torch
from common import check_or_measure, parse, tiles

import tvmtile
import tvmtile.language as T

LAYOUTS = {"mxfp4": T.BlockScaledLayout.e8m0_k32(), "nvfp4": T.BlockScaledLayout.nvfp4_k16()}


def dequant_gemm(M, N, K, format="mxfp4", block_M=64, block_N=64, block_K=128):
    layout, dtype = LAYOUTS[format], T.bfloat16
    assert K % layout.block_size == 0, f"blocks of {layout.block_size} do not divide K = {K}"

    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype),
        W: T.Tensor((N, K), T.float4_e2m1fn),
        scales: T.Tensor(layout.b_scale_shape(N, K), layout.scale_dtype),
        C: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            W_packed = T.alloc_shared((block_N, block_K), T.float4_e2m1fn)
            W_local = T.alloc_fragment((block_N, block_K), dtype)
            C_local = T.alloc_fragment((block_N, block_M), T.float32)

            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=3):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(W[bx * block_N, k * block_K], W_packed)
                for i, j in T.Parallel(block_N, block_K):
                    place = layout.scale_index(k * block_K + j)
                    scale = layout.decode(scales[bx * block_N + i, place])
                    W_local[i, j] = T.cast(W_packed[i, j], T.float32) * scale
                # The transposed product: a matrix instruction has more rows than columns, as W has.
                T.gemm(W_local, A_shared, C_local, transpose_B=True)
            for i, j in T.Parallel(block_N, block_M):
                C[by * block_M + j, bx * block_N + i] = C_local[i, j]

    return main


VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def decoded(packed, scales, block):
    """The weights that the packed bytes stand for, the low half first."""
    codes = torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(1)
    values = VALUES.to(packed.device)[(codes & 7).long()] * torch.where(codes > 7, -1, 1)
    return values * scales.float().repeat_interleave(block, dim=1)


def main(argv=None):
    args = parse(__doc__, argv, format=tuple(LAYOUTS), m=64, n=1024, k=1024)
    layout = LAYOUTS[args.format]
    sizes = tiles(args, block_M=32, block_N=32, block_K=64)
    program = dequant_gemm(args.m, args.n, args.k, args.format, **sizes)
    kernel = tvmtile.compile(program, out_idx=-1, target=args.target)
    a = torch.randn(args.m, args.k).bfloat16()
    packed = torch.randint(256, (args.n, args.k // 2), dtype=torch.uint8)
    scales = torch.exp2(torch.randn(layout.b_scale_shape(args.n, args.k)))
    scales = scales.to(getattr(torch, str(layout.scale_dtype)))

    def reference(a, w, s):
        return a @ decoded(w, s, layout.block_size).to(a.dtype).T

    check_or_measure(args, kernel, (a, packed, scales), reference)


if __name__ == "__main__":
    main()
