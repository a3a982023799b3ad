"""Attention of one query a sequence over its keys and values: a step of generating tokens.

The heads of a group share keys and values (grouped-query attention), so they are the rows of one
product, which needs more rows than there are heads: the others are zeros. What counts is how fast
keys and values come from memory. Where sequences and groups are fewer than a GPU's multiprocessors,
`splits` blocks share a sequence, and a second kernel puts their parts together.

T. Dao et al., Flash-Decoding for long-context inference, 2023.
"""

import math

import torch
from common import check_or_measure, parse, tiles

import tvmtile
import tvmtile.language as T
from tvmtile.ops.programs import OnlineSoftmax

LOG2E = math.log2(math.e)  # exp2(LOG2E * x) is exp(x)


def decode_attention(
    batch, groups, heads, length, dim, splits=1, rows=64, block=64, stages=2, dtype=T.bfloat16
):
    """`groups` of `heads` query heads each, of which `rows` are multiplied at once."""
    scale = 1 / math.sqrt(dim)
    shape = (batch, groups, heads, dim)
    cached = (batch, groups, length, dim)
    tiles = T.ceildiv(T.ceildiv(length, block), splits)  # of keys, in each block
    policy = T.GemmWarpPolicy.FullRow

    @T.prim_func
    def main(
        Q: T.Tensor(shape, dtype),
        K: T.Tensor(cached, dtype),
        V: T.Tensor(cached, dtype),
        parts: T.Tensor((splits, *shape), T.float32),
        exponents: T.Tensor((splits, *shape[:3]), T.float32),
        O: T.Tensor(shape, dtype),
    ):
        with T.Kernel(groups, batch, splits, threads=128) as (bx, by, bz):
            q = T.alloc_shared((rows, dim), dtype)
            k = T.alloc_shared((block, dim), dtype)
            v = T.alloc_shared((block, dim), dtype)
            scores = T.alloc_fragment((rows, block), T.float32)
            weights = T.alloc_fragment((rows, block), dtype)
            out = T.alloc_fragment((rows, dim), T.float32)

            T.copy(Q[by, bx, 0, 0], q)
            T.clear(out)
            softmax = OnlineSoftmax(rows, scale)
            for step in T.Pipelined(tiles, num_stages=stages):
                first = (bz * tiles + step) * block
                T.copy(K[by, bx, first, 0], k)
                T.gemm(q, k, scores, transpose_B=True, policy=policy, clear_accum=True)
                T.copy(V[by, bx, first, 0], v)
                if length % (block * splits):
                    for i, j in T.Parallel(rows, block):
                        scores[i, j] = T.if_then_else(
                            first + j < length, scores[i, j], -T.infinity(T.float32)
                        )
                softmax.weigh(scores)
                T.copy(scores, weights)
                softmax.rescale(out)
                T.gemm(weights, v, out, policy=policy)
            softmax.normalize(out)  # a part behind the last key has zeros, and the lowest exponent
            if splits == 1:
                for i, j in T.Parallel(rows, dim):
                    if i < heads:
                        O[by, bx, i, j] = out[i, j]
            else:
                for i, j in T.Parallel(rows, dim):
                    if i < heads:
                        parts[bz, by, bx, i, j] = out[i, j]
                for i in T.Parallel(rows):
                    if i < heads:
                        exponents[bz, by, bx, i] = softmax.largest[i] * (scale * LOG2E) + T.log2(
                            softmax.total[i]
                        )

        if splits > 1:
            with T.Kernel(groups * heads, batch, threads=128) as (bx, by):
                g, h = bx // heads, bx % heads
                weight = T.alloc_fragment((splits,), T.float32)
                highest = T.alloc_fragment((1,), T.float32)
                whole = T.alloc_fragment((1,), T.float32)
                out = T.alloc_fragment((dim,), T.float32)
                for s in T.Parallel(splits):
                    weight[s] = exponents[s, by, g, h]
                T.fill(highest, T.min_value(T.float32))
                T.reduce_max(weight, highest, clear=False)
                for s in T.Parallel(splits):
                    weight[s] = T.exp2(weight[s] - highest[0])
                T.reduce_sum(weight, whole)
                T.clear(out)
                for s in T.serial(splits):
                    for j in T.Parallel(dim):
                        share = T.exp2(exponents[s, by, g, h] - highest[0])
                        out[j] += parts[s, by, g, h, j] * share
                for j in T.Parallel(dim):
                    O[by, g, h, j] = out[j] / whole[0]

    return main


def workspace(batch, groups, heads, dim, splits, device="cpu"):
    """Tensors between the kernels of a split sequence: parts of the result, and their weights."""
    shape = (splits, batch, groups, heads)
    return torch.empty(*shape, dim, device=device), torch.empty(shape, device=device)


def reference(q, k, v, *_):
    weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
    return weights @ v


def main(argv=None):
    args = parse(__doc__, argv, batch=4, groups=2, heads=4, length=1000, dim=64, splits=2)
    sizes = args.batch, args.groups, args.heads, args.length, args.dim, args.splits
    program = decode_attention(*sizes, **tiles(args, rows=32, block=16))
    kernel = tvmtile.compile(program, out_idx=-1, target=args.target)
    q = torch.randn(args.batch, args.groups, args.heads, args.dim).bfloat16()
    k, v = (
        torch.randn(args.batch, args.groups, args.length, args.dim).bfloat16() for _ in range(2)
    )
    parts = workspace(args.batch, args.groups, args.heads, args.dim, args.splits)
    check_or_measure(args, kernel, (q, k, v, *parts), reference)


if __name__ == "__main__":
    main()
