"""RMS norm: each row divided by the root of its mean square, times a weight."""

import torch
from common import check_or_measure, parse

import tvmtile
import tvmtile.language as T


def rms_norm(M, N, block_M=4, dtype=T.float32, epsilon=1e-6):
    @T.prim_func
    def main(
        X: T.Tensor((M, N), dtype),
        weight: T.Tensor((N,), dtype),
        Y: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(M, block_M), threads=128) as bx:
            x = T.alloc_fragment((block_M, N), T.float32)
            squares = T.alloc_fragment((block_M, N), T.float32)
            scale = T.alloc_fragment((block_M,), T.float32)

            T.copy(X[bx * block_M, 0], x)
            for i, j in T.Parallel(block_M, N):
                squares[i, j] = x[i, j] * x[i, j]
            T.reduce_sum(squares, scale, dim=1)
            for i in T.Parallel(block_M):
                scale[i] = T.rsqrt(scale[i] / N + epsilon)
            for i, j in T.Parallel(block_M, N):
                x[i, j] = x[i, j] * scale[i] * weight[j]
            T.copy(x, Y[bx * block_M, 0])

    return main


def main(argv=None):
    args = parse(__doc__, argv, m=4096, n=4096)
    x, weight = torch.randn(args.m, args.n), torch.randn(args.n)
    kernel = tvmtile.compile(rms_norm(args.m, args.n), out_idx=-1, target=args.target)

    def reference(x, weight):
        return torch.nn.functional.rms_norm(x, (args.n,), weight, eps=1e-6)

    check_or_measure(args, kernel, (x, weight), reference)


if __name__ == "__main__":
    main()
