"""Flash attention, forward: softmax(Q @ K.T / sqrt(dim)) @ V without ever storing the scores.

A block keeps the maximum and the sum of each of its rows of scores while it walks over tiles of K
and V (`OnlineSoftmax`). When a tile raises a row's maximum, what was summed before is scaled
down. With `causal`, a query sees the keys up to its own position, and tiles that none sees are
skipped.

T. Dao et al., FlashAttention, 2022; M. Milakov and N. Gimelshein, Online normalizer calculation for
softmax, 2018.
"""

import math

import torch
from common import check_or_measure, parse, tiles

import tvmtile
import tvmtile.language as T
from tvmtile.ops.programs import OnlineSoftmax


def flash_attention(
    batch, heads, length, dim, causal, block_M=64, block_N=64, dtype=T.float32, num_stages=2
):
    shape = (batch, heads, length, dim)
    rows = (
        T.GemmWarpPolicy.FullRow
    )  # a group of threads has whole rows, so it finds their maximum itself

    @T.prim_func
    def main(
        Q: T.Tensor(shape, dtype),
        K: T.Tensor(shape, dtype),
        V: T.Tensor(shape, dtype),
        Output: T.Tensor(shape, dtype),
    ):
        with T.Kernel(T.ceildiv(length, block_M), heads, batch, threads=128) as (bx, by, bz):
            Q_shared = T.alloc_shared((block_M, dim), dtype)
            K_shared = T.alloc_shared((block_N, dim), dtype)
            V_shared = T.alloc_shared((block_N, dim), dtype)
            scores = T.alloc_fragment((block_M, block_N), T.float32)
            weights = T.alloc_fragment((block_M, block_N), dtype)
            output = T.alloc_fragment((block_M, dim), T.float32)

            T.copy(Q[bz, by, bx * block_M, 0], Q_shared)
            T.clear(output)
            softmax = OnlineSoftmax(block_M, 1 / math.sqrt(dim))
            end = T.min((bx + 1) * block_M, length) if causal else length

            for k in T.Pipelined(T.ceildiv(end, block_N), num_stages=num_stages):
                T.copy(K[bz, by, k * block_N, 0], K_shared)
                for i, j in T.Parallel(block_M, block_N):
                    key = k * block_N + j
                    last = bx * block_M + i if causal else length - 1
                    scores[i, j] = T.if_then_else(key <= last, 0, -T.infinity(T.float32))
                T.gemm(Q_shared, K_shared, scores, transpose_B=True, policy=rows)

                softmax.weigh(scores)
                softmax.rescale(output)

                T.copy(V[bz, by, k * block_N, 0], V_shared)
                T.copy(scores, weights)
                T.gemm(weights, V_shared, output, policy=rows)

            softmax.normalize(output)
            T.copy(output, Output[bz, by, bx * block_M, 0])

    return main


def main(argv=None):
    args = parse(__doc__, argv, batch=1, heads=8, length=1024, dim=64)
    q, k, v = (torch.randn(args.batch, args.heads, args.length, args.dim) for _ in range(3))
    shape = args.batch, args.heads, args.length, args.dim
    sizes = tiles(args, block_M=32, block_N=16, num_stages=1)
    for causal in (False, True):
        program = flash_attention(*shape, causal, **sizes)
        kernel = tvmtile.compile(program, out_idx=-1, target=args.target)

        def reference(q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        print("causal: " if causal else "full: ", end="")
        check_or_measure(args, kernel, (q, k, v), reference)


if __name__ == "__main__":
    main()
