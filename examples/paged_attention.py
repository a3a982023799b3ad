"""Paged attention decode: one query a sequence, whose keys and values lie in pages of a cache.

A table names the pages of each sequence. A tile of keys is gathered by the places that follow from it;
what lies behind a sequence's end has the place -1: zeros, which the mask takes out of the softmax. The
heads of a group share keys and values, so they are the rows of one GEMM.
"""

import math

import torch
from common import check_or_measure, parse

import tvmtile
import tvmtile.language as T
from tvmtile.ops.programs import OnlineSoftmax

BLOCK = 64


def paged_attention(batch, groups, heads, dim, pages, page, longest, block=BLOCK):
    """`groups` of `heads` query heads each; `longest` pages of `page` entries at most a sequence."""
    dtype, rows = T.float16, 16  # of a matrix instruction; heads beyond the group's are zeros

    @T.prim_func
    def main(
        Q: T.Tensor((batch, groups, heads, dim), dtype),
        K: T.Tensor((pages * page, groups * dim), dtype),
        V: T.Tensor((pages * page, groups * dim), dtype),
        table: T.Tensor((batch, longest), T.int32),
        lengths: T.Tensor((batch,), T.int32),
        O: T.Tensor((batch, groups, heads, dim), dtype),
    ):
        with T.Kernel(groups, batch, threads=128) as (bx, by):
            q = T.alloc_shared((rows, dim), dtype)
            k = T.alloc_shared((block, dim), dtype)
            v = T.alloc_shared((block, dim), dtype)
            places = T.alloc_shared((block,), T.int32)
            scores = T.alloc_fragment((rows, block), T.float32)
            weights = T.alloc_fragment((rows, block), dtype)
            out = T.alloc_fragment((rows, dim), T.float32)

            T.clear(out)
            softmax = OnlineSoftmax(rows, 1 / math.sqrt(dim))
            for i, j in T.Parallel(rows, dim):
                q[i, j] = T.if_then_else(i < heads, Q[by, bx, i, j], 0)
            for step in T.serial(T.ceildiv(lengths[by], block)):
                for i in T.Parallel(block):
                    entry = step * block + i
                    places[i] = T.if_then_else(
                        entry < lengths[by], table[by, entry // page] * page + entry % page, -1
                    )
                T.gather_rows(K, k, places, bx * dim)
                T.gather_rows(V, v, places, bx * dim)
                T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(rows, block):
                    is_entry = step * block + j < lengths[by]
                    scores[i, j] = T.if_then_else(is_entry, scores[i, j], -T.infinity(T.float32))
                softmax.weigh(scores)
                softmax.rescale(out)
                T.copy(scores, weights)
                T.gemm(weights, v, out)
            softmax.normalize(out)  # a sequence of length 0 has zeros
            for i, j in T.Parallel(rows, dim):
                if i < heads:
                    O[by, bx, i, j] = out[i, j]

    return main


def reference(q, k, v, table, lengths):
    batch, groups, heads, dim = q.shape
    page = len(k) // table.unique().numel()
    result = torch.zeros_like(q)
    for b, length in enumerate(lengths.tolist()):
        entries = torch.arange(length, device=k.device)
        places = (table[b, entries // page] * page + entries % page).long()
        for g in range(groups):
            keys, values = (x[places, g * dim : (g + 1) * dim] for x in (k, v))
            result[b, g] = torch.softmax(q[b, g] @ keys.T / math.sqrt(dim), dim=-1) @ values
    return result


def main(argv=None):
    args = parse(__doc__, argv, batch=4, groups=2, heads=4, dim=64, page=16, longest=32)
    pages = args.batch * args.longest
    sizes = args.batch, args.groups, args.heads, args.dim, pages, args.page, args.longest
    kernel = tvmtile.compile(paged_attention(*sizes), out_idx=-1, target=args.target)
    q = torch.randn(args.batch, args.groups, args.heads, args.dim).half()
    k, v = (torch.randn(pages * args.page, args.groups * args.dim).half() for _ in range(2))
    table = torch.randperm(pages, dtype=torch.int32).view(args.batch, args.longest)
    lengths = torch.randint(0, args.longest * args.page + 1, (args.batch,), dtype=torch.int32)
    check_or_measure(args, kernel, (q, k, v, table, lengths), reference)


if __name__ == "__main__":
    main()
