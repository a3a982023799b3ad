"""Layer norm: mean and variance of each row, a scale and a shift for each column.

The variance is the mean of squared deviations, in a second pass over the tile: subtracting the
squared mean from the mean square loses all digits where the mean is large. A macro does the
elementwise part; it is traced in place where it is called.
"""

import torch
from common import check_or_measure, parse

import tvmtile
import tvmtile.language as T


def layer_norm(M, N, block_M=4, dtype=T.float32, epsilon=1e-5):
    @T.macro
    def mean_of_rows(tile, mean):
        T.reduce_sum(tile, mean, dim=1)
        for i in T.Parallel(block_M):
            mean[i] = mean[i] / N

    @T.prim_func
    def main(
        X: T.Tensor((M, N), dtype),
        weight: T.Tensor((N,), dtype),
        bias: T.Tensor((N,), dtype),
        Y: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(M, block_M), threads=128) as bx:
            x = T.alloc_fragment((block_M, N), T.float32)
            squares = T.alloc_fragment((block_M, N), T.float32)
            mean = T.alloc_fragment((block_M,), T.float32)
            variance = T.alloc_fragment((block_M,), T.float32)

            T.copy(X[bx * block_M, 0], x)
            mean_of_rows(x, mean)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = x[i, j] - mean[i]
                squares[i, j] = x[i, j] * x[i, j]
            mean_of_rows(squares, variance)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = x[i, j] * T.rsqrt(variance[i] + epsilon) * weight[j] + bias[j]
            T.copy(x, Y[bx * block_M, 0])

    return main


def main(argv=None):
    args = parse(__doc__, argv, m=4096, n=4096)
    kernel = tvmtile.compile(layer_norm(args.m, args.n), out_idx=-1, target=args.target)
    x = torch.randn(args.m, args.n) + 100
    weight, bias = torch.randn(args.n), torch.randn(args.n)

    def reference(x, weight, bias):
        return torch.nn.functional.layer_norm(x, (args.n,), weight, bias)

    check_or_measure(args, kernel, (x, weight, bias), reference)


if __name__ == "__main__":
    main()
