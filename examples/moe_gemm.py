"""Mixture of experts: the rows of A that go to an expert are gathered on their way into its GEMM.

Torch routes: each token goes to its `top` experts. The kernel gets the tokens sorted by expert, with -1
for the rest of an expert's last tile, whose rows then are zeros. No copy of A in that order is made:
the pipeline gathers each tile of it as it would copy it.
"""

import torch
from common import check_or_measure, parse, tiles

import tvmtile
import tvmtile.language as T

BLOCK_M = 64


def moe_gemm(
    M, N, K, experts, row_tiles,
    block_M=BLOCK_M, block_N=128, block_K=64, num_stages=3, threads=128, panel=8, persist=None,
):  # fmt: skip
    dtype = T.bfloat16

    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((experts, N, K), dtype),
        tokens: T.Tensor((row_tiles * block_M,), T.int32),
        expert_of: T.Tensor((row_tiles,), T.int32),
        C: T.Tensor((row_tiles * block_M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), row_tiles, threads=threads) as (bx, by):
            rows = T.alloc_shared((block_M,), T.int32)
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_N, block_K), dtype)
            C_local = T.alloc_fragment((block_M, block_N), T.float32)
            expert = expert_of[by]

            if persist is not None:
                T.annotate_persistent(persist)
            T.use_swizzle(panel)
            T.copy(tokens[by * block_M], rows)
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.gather_rows(A, A_shared, rows, k * block_K)
                T.copy(B[expert, bx * block_N, k * block_K], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


def route(logits, top, block_M=BLOCK_M):
    """The tokens by expert, each expert's padded with -1 to whole tiles; the expert of each tile."""
    chosen = logits.topk(top, dim=1).indices
    tokens, expert_of = [], []
    for expert in range(logits.shape[1]):
        own = (chosen == expert).any(dim=1).nonzero().flatten().int()
        count = -(-len(own) // block_M)
        padding = torch.full((count * block_M - len(own),), -1, dtype=torch.int32)
        tokens += [own, padding]
        expert_of += [expert] * count
    return torch.cat(tokens), torch.tensor(expert_of, dtype=torch.int32)


def reference(a, b, tokens, expert_of):
    rows = torch.where((tokens >= 0)[:, None], a[tokens.clamp_min(0).long()], 0)
    parts = rows.split(len(tokens) // len(expert_of))
    return torch.cat([part @ b[e].T for part, e in zip(parts, expert_of.tolist(), strict=True)])


def main(argv=None):
    args = parse(__doc__, argv, m=512, n=512, k=512, experts=8, top=2)
    tokens, expert_of = route(torch.randn(args.m, args.experts), min(args.top, args.experts))
    sizes = tiles(args, block_N=64, block_K=32)
    program = moe_gemm(args.m, args.n, args.k, args.experts, len(expert_of), **sizes)
    kernel = tvmtile.compile(program, out_idx=-1, target=args.target)
    a = torch.randn(args.m, args.k).bfloat16()
    b = torch.randn(args.experts, args.n, args.k).bfloat16()
    check_or_measure(args, kernel, (a, b, tokens, expert_of), reference)


if __name__ == "__main__":
    main()
