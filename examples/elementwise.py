"""An elementwise kernel, silu(X) * Y, in the eager style.

The function is called with tensors and returns one. It is compiled for their shapes when it is
called first; `T.const` names those, `T.empty` declares the result. Elements that T.Parallel reaches
outside the tensors, in the last blocks, are neither read nor written.
"""

import torch
from common import check_or_measure, parse

import tvmtile
import tvmtile.language as T


def silu_and_mul(X, Y, block_M=16, block_N=1024):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), T.float32)
    Y: T.Tensor((M, N), T.float32)
    Z = T.empty((M, N), T.float32)

    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
        for i, j in T.Parallel(block_M, block_N):
            row = by * block_M + i
            column = bx * block_N + j
            x = X[row, column]
            Z[row, column] = x / (1 + T.exp(-x)) * Y[row, column]

    return Z


def main(argv=None):
    args = parse(__doc__, argv, m=4096, n=4096)
    x, y = torch.randn(args.m, args.n), torch.randn(args.m, args.n)
    # As a decorator, where the target need not come from a command line, it is @tvmtile.jit.
    kernel = tvmtile.jit(silu_and_mul, target=args.target)
    check_or_measure(args, kernel, (x, y), lambda x, y: torch.nn.functional.silu(x) * y)


if __name__ == "__main__":
    main()
