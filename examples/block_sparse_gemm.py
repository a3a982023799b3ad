"""Block-sparse GEMM: each tile of C sums only some of its blocks along K.

A mask says which. Torch makes of it what the kernel reads: the numbers of the blocks that count,
one after the other, and how many there are. So the loop has no condition, and the copies run ahead
as they do in a GEMM, over blocks that are not neighbours.
"""

import torch
from common import check_or_measure, parse

import tvmtile
import tvmtile.language as T

BLOCK_K = 64


def block_sparse_gemm(
    M, N, K, block_M=128, block_N=128, block_K=BLOCK_K, stages=3, threads=128, panel=8,
    persist=None, dtype=T.float16,
):  # fmt: skip
    grid = T.ceildiv(M, block_M), T.ceildiv(N, block_N)
    most = T.ceildiv(K, block_K)

    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((K, N), dtype),
        counts: T.Tensor(grid, T.int32),
        places: T.Tensor((*grid, most), T.int32),
        C: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(grid[1], grid[0], threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_K, block_N), dtype)
            C_local = T.alloc_fragment((block_M, block_N), T.float32)
            if persist is not None:
                T.annotate_persistent(persist)
            T.use_swizzle(panel)

            T.clear(C_local)
            for step in T.Pipelined(counts[by, bx], num_stages=stages):
                k = places[by, bx, step]
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[k * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


def lists(mask):
    """The number of blocks along K that each tile has, and their numbers, followed by others."""
    places = torch.argsort(mask.int(), dim=-1, descending=True, stable=True)
    return mask.sum(-1).int(), places.int()


def reference(a, b, mask, block_M, block_N, block_K):
    """The product of each tile with the blocks that its mask has, the others as zeros."""
    c = a.new_zeros(len(a), b.shape[1])
    for y, row in enumerate(mask):
        rows = slice(y * block_M, (y + 1) * block_M)
        for x, keeps in enumerate(row):
            columns = slice(x * block_N, (x + 1) * block_N)
            kept = keeps.repeat_interleave(block_K)[: len(b)].to(a.dtype)
            c[rows, columns] = (a[rows] * kept) @ b[:, columns]
    return c


def main(argv=None):
    args = parse(__doc__, argv, m=512, n=512, k=1024, percent=50)
    sizes = {"block_M": 64, "block_N": 64, "block_K": 32 if args.on_gpu else BLOCK_K}
    program = block_sparse_gemm(args.m, args.n, args.k, **sizes)
    kernel = tvmtile.compile(program, out_idx=-1, target=args.target)
    extents = zip((args.m, args.n, args.k), sizes.values(), strict=True)
    grid = [-(-extent // size) for extent, size in extents]
    mask = torch.rand(grid) * 100 < args.percent
    a, b = torch.randn(args.m, args.k).half(), torch.randn(args.k, args.n).half()
    check_or_measure(
        args, kernel, (a, b, *lists(mask)),
        lambda a, b, *_: reference(a, b, mask.to(a.device), **sizes),
    )  # fmt: skip


if __name__ == "__main__":
    main()
