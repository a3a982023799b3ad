"""Flash attention, backward: the gradients of Q, K and V, without ever storing the scores.

A block owns a tile of keys and walks over tiles of queries. It computes their weights again, from the
largest score of each query and its sum of weights that the forward pass left (by sums of the same
order: of a large score the last bit counts), and from the gradient of the output the gradient of the
scores. Those of its keys and values it sums in registers; what it contributes to the queries' it adds
to memory, where other blocks do as well. Kernels before and after it prepare the sums, and scale and
round those of the queries.

T. Dao, FlashAttention-2, 2023, section 3.1.2.
"""

import math

import torch
import torch.nn.functional as F
from common import check_or_measure, parse, tiles

import tvmtile
import tvmtile.language as T
from tvmtile.ops.programs import attention, normalized_weight
from tvmtile.target import resolve


def flash_attention_backward(
    batch, heads, length, dim, causal, block_M=64, block_N=64, stages=2, threads=128,
    dtype=T.bfloat16,
):  # fmt: skip
    """Tiles of `block_M` keys and `block_N` queries."""
    shape = (batch, heads, length, dim)
    scale = 1 / math.sqrt(dim)
    policy = T.GemmWarpPolicy.FullRow
    rows = 32  # of the kernels that prepare and end

    @T.prim_func
    def main(
        Q: T.Tensor(shape, dtype),
        K: T.Tensor(shape, dtype),
        V: T.Tensor(shape, dtype),
        O: T.Tensor(shape, dtype),
        dO: T.Tensor(shape, dtype),
        lse: T.Tensor((batch, 2, heads, length), T.float32),
        delta: T.Tensor(shape[:3], T.float32),
        sums: T.Tensor(shape, T.float32),
        dQ: T.Tensor(shape, dtype),
        dK: T.Tensor(shape, dtype),
        dV: T.Tensor(shape, dtype),
    ):
        with T.Kernel(T.ceildiv(length, rows), heads, batch, threads=128) as (bx, by, bz):
            products = T.alloc_fragment((rows, dim), T.float32)
            gradient = T.alloc_fragment((rows, dim), T.float32)
            total = T.alloc_fragment((rows,), T.float32)
            T.copy(O[bz, by, bx * rows, 0], products)
            T.copy(dO[bz, by, bx * rows, 0], gradient)
            for i, j in T.Parallel(rows, dim):
                products[i, j] *= gradient[i, j]
            T.reduce_sum(products, total, dim=1)
            T.copy(total, delta[bz, by, bx * rows])
            for i, j in T.Parallel(rows, dim):
                sums[bz, by, bx * rows + i, j] = 0

        with T.Kernel(T.ceildiv(length, block_M), heads, batch, threads=threads) as (bx, by, bz):
            k = T.alloc_shared((block_M, dim), dtype)
            v = T.alloc_shared((block_M, dim), dtype)
            q = T.alloc_shared((block_N, dim), dtype)
            do = T.alloc_shared((block_N, dim), dtype)
            largest = T.alloc_shared((block_N,), T.float32)
            logarithm = T.alloc_shared((block_N,), T.float32)
            delta_of_query = T.alloc_shared((block_N,), T.float32)
            d_scores_shared = T.alloc_shared((block_M, block_N), dtype)
            scores = T.alloc_fragment((block_M, block_N), T.float32)
            d_scores = T.alloc_fragment((block_M, block_N), T.float32)
            weights = T.alloc_fragment((block_M, block_N), dtype)
            rounded = T.alloc_fragment((block_M, block_N), dtype)
            dk = T.alloc_fragment((block_M, dim), T.float32)
            dv = T.alloc_fragment((block_M, dim), T.float32)
            dq = T.alloc_fragment((block_N, dim), T.float32)
            T.copy(K[bz, by, bx * block_M, 0], k)
            T.copy(V[bz, by, bx * block_M, 0], v)
            T.clear(dk)
            T.clear(dv)
            first = bx * block_M // block_N if causal else 0
            for step in T.Pipelined(T.ceildiv(length, block_N) - first, num_stages=stages):
                at = (first + step) * block_N
                T.copy(Q[bz, by, at, 0], q)
                T.copy(lse[bz, 0, by, at], largest)
                T.copy(lse[bz, 1, by, at], logarithm)
                T.copy(dO[bz, by, at, 0], do)
                T.copy(delta[bz, by, at], delta_of_query)
                # Keys by queries, so that both products with them have the weights in registers.
                T.gemm(k, q, scores, transpose_B=True, policy=policy, clear_accum=True)
                T.gemm(v, do, d_scores, transpose_B=True, policy=policy, clear_accum=True)
                for i, j in T.Parallel(block_M, block_N):
                    scores[i, j] = normalized_weight(scores[i, j], largest[j], logarithm[j], scale)
                if causal or length % block_N:
                    for i, j in T.Parallel(block_M, block_N):
                        last = at + j if causal else length - 1
                        if (
                            length % block_N
                        ):  # behind it are zeros: the product with infinity is NaN
                            last = T.if_then_else(at + j < length, last, -1)
                        scores[i, j] = T.if_then_else(bx * block_M + i <= last, scores[i, j], 0)
                T.copy(scores, weights)
                for i, j in T.Parallel(block_M, block_N):
                    d_scores[i, j] = scores[i, j] * (d_scores[i, j] - delta_of_query[j])
                T.copy(d_scores, rounded)
                T.gemm(weights, do, dv, policy=policy)
                T.copy(rounded, d_scores_shared)
                T.gemm(d_scores_shared, k, dq, transpose_A=True, clear_accum=True)
                T.gemm(rounded, q, dk, policy=policy)
                T.atomic_add(sums[bz, by, at, 0], dq)
            for i, j in T.Parallel(block_M, dim):
                dk[i, j] *= scale
            T.copy(dk, dK[bz, by, bx * block_M, 0])
            T.copy(dv, dV[bz, by, bx * block_M, 0])

        with T.Kernel(T.ceildiv(length, rows), heads, batch, threads=128) as (bx, by, bz):
            for i, j in T.Parallel(rows, dim):
                dQ[bz, by, bx * rows + i, j] = sums[bz, by, bx * rows + i, j] * scale

    return main


def reference(q, k, v, o, do, *_, causal):
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    F.scaled_dot_product_attention(*leaves, is_causal=causal).backward(do)
    return [leaf.grad for leaf in leaves]


def main(argv=None):
    args = parse(__doc__, argv, batch=1, heads=8, length=1024, dim=64)
    shape = args.batch, args.heads, args.length, args.dim
    q, k, v, do = (torch.randn(shape).bfloat16() for _ in range(4))
    work = torch.empty(shape[:3]), torch.empty(shape)
    for causal in (False, True):
        sizes = tiles(args, block_M=32, block_N=16, stages=1)
        program = flash_attention_backward(*shape, causal, **sizes)
        kernel = tvmtile.compile(program, out_idx=[8, 9, 10], target=args.target)
        target = resolve(args.target)
        program = attention(*shape, T.bfloat16, target=target, causal=causal, lse=True)
        forward = tvmtile.compile(program, out_idx=[3, 4], target=args.target)
        o, lse = forward(*(x.to(args.device) for x in (q, k, v)))
        inputs = (q, k, v, o, do, lse, *work)
        print("causal: " if causal else "full: ", end="")
        check_or_measure(args, kernel, inputs, lambda *tensors: reference(*tensors, causal=causal))


if __name__ == "__main__":
    main()
