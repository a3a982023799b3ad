"""A GEMM with an epilogue: an activation of A @ B + bias, in one kernel.

The bias and the activation are applied to the accumulator while it is still in registers. The
operands are float16 and the accumulator is float32; the last copy rounds. GELU is the form with
tanh, by a fast function: an NVIDIA GPU has one instruction for it, good for the bits of a float16,
where an exponential and a reciprocal would take two.

D. Hendrycks and K. Gimpel, Gaussian error linear units, 2016.
"""

from functools import partial

import torch
from common import check_or_measure, parse, tiles

import tvmtile
import tvmtile.language as T

ACTIVATIONS = {
    "relu": lambda x: T.if_then_else(x < 0, 0, x),  # T.max would make 0 of NaN
    "gelu": lambda x: 0.5 * x * (1 + T.__tanh(0.7978845608 * x * (1 + 0.044715 * x * x))),
}
REFERENCES = {"relu": torch.relu, "gelu": partial(torch.nn.functional.gelu, approximate="tanh")}


def gemm_epilogue(
    M, N, K, activation="relu", block_M=128, block_N=128, block_K=64, stages=3, threads=128,
    panel=8, dtype=T.float16,
):  # fmt: skip
    activate = ACTIVATIONS[activation]

    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((K, N), dtype),
        bias: T.Tensor((N,), dtype),
        C: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_K, block_N), dtype)
            bias_local = T.alloc_fragment((block_N,), T.float32)
            C_local = T.alloc_fragment((block_M, block_N), T.float32)
            T.use_swizzle(panel)

            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[k * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(bias[bx * block_N], bias_local)
            for i, j in T.Parallel(block_M, block_N):
                C_local[i, j] = activate(C_local[i, j] + bias_local[j])
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


def main(argv=None):
    args = parse(__doc__, argv, activation=tuple(ACTIVATIONS), m=1024, n=1024, k=1024)
    sizes = tiles(args, block_M=64, block_N=64, block_K=32)
    program = gemm_epilogue(args.m, args.n, args.k, args.activation, **sizes)
    kernel = tvmtile.compile(program, out_idx=-1, target=args.target)
    a, b = torch.randn(args.m, args.k).half(), torch.randn(args.k, args.n).half()
    bias = torch.randn(args.n).half()
    activate = REFERENCES[args.activation]
    check_or_measure(args, kernel, (a, b, bias), lambda a, b, bias: activate(a @ b + bias))


if __name__ == "__main__":
    main()
