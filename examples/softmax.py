"""Softmax of each row: three passes over a tile that is read and written once.

A block holds whole rows. T.reduce_max and T.reduce_sum reduce a tile along an axis to a vector with
one element a row. `T.exp2` is what the machines have, so the exponent is scaled by log2(e).
"""

import math

import torch
from common import check_or_measure, parse

import tvmtile
import tvmtile.language as T


def softmax(M, N, block_M=4, dtype=T.float32):
    log2e = math.log2(math.e)

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_M), threads=128) as bx:
            x = T.alloc_fragment((block_M, N), T.float32)
            row_max = T.alloc_fragment((block_M,), T.float32)
            row_sum = T.alloc_fragment((block_M,), T.float32)

            T.copy(X[bx * block_M, 0], x)
            T.reduce_max(x, row_max, dim=1)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = T.exp2((x[i, j] - row_max[i]) * log2e)
            T.reduce_sum(x, row_sum, dim=1)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = x[i, j] / row_sum[i]
            T.copy(x, Y[bx * block_M, 0])

    return main


def main(argv=None):
    args = parse(__doc__, argv, m=4096, n=4096)
    kernel = tvmtile.compile(softmax(args.m, args.n), out_idx=-1, target=args.target)
    x = torch.randn(args.m, args.n)
    check_or_measure(args, kernel, (x,), lambda x: torch.softmax(x, dim=1))


if __name__ == "__main__":
    main()
