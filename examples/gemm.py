"""Matrix multiplication: the kernel, what it is lowered to, its error and its speed.

Each block computes one tile of C. It walks along K, copies a tile of A and one of B into shared
memory and multiplies them; the loop is pipelined, so that on a GPU the copies of the next steps run
during the multiplication. Sizes that no tile divides need nothing special: a copy reads zeros and
writes nothing outside a tensor.
"""

import inspect

import torch
from common import check, finished, medians, parse, tiles
from printing import abbreviated, body

import tvmtile
import tvmtile.language as T


def gemm(
    M, N, K, block_M=256, block_N=256, block_K=64, dtype=T.float32, accum_dtype=T.float32, stages=3
):
    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((K, N), dtype),
        C: T.Tensor((M, N), dtype),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=128) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_K, block_N), dtype)
            C_local = T.alloc_fragment((block_M, block_N), accum_dtype)

            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[k * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


def main(argv=None):
    args = parse(__doc__, argv, m=1024, n=1024, k=1024)
    sizes = tiles(args, block_M=64, block_N=64, block_K=16)
    program = gemm(args.m, args.n, args.k, **sizes)
    kernel = tvmtile.compile(program, out_idx=-1, target=args.target)
    a, b = torch.randn(args.m, args.k), torch.randn(args.k, args.n)
    expected = a.double() @ b.double()
    a, b = a.to(args.device), b.to(args.device)
    if args.check:
        check(kernel(a, b), expected)
        return

    print("# The kernel\n")
    print(inspect.getsource(gemm))
    print("# The tile program that it makes\n")
    print(body(kernel.prim_func.script()))
    print("\n# What that is lowered to here, before TVM's own passes\n")
    print(abbreviated(body(dict(kernel.lowering)["tvmtile.LowerTilePrograms"].script())))
    print()
    check(kernel(a, b), expected)
    out = torch.empty(args.m, args.n, device=args.device)
    ours, theirs = medians(
        lambda: finished(args, kernel(a, b, out)),
        lambda: finished(args, torch.mm(a, b, out=out)),
    )
    flops = 2 * args.m * args.n * args.k
    print(
        f"{args.m} x {args.n} x {args.k} float32, {torch.get_num_threads()} threads: "
        f"{flops / ours / 1e6:.0f} GFLOP/s, torch.mm {flops / theirs / 1e6:.0f} GFLOP/s "
        f"({theirs / ours:.2f} times its speed)"
    )


if __name__ == "__main__":
    main()
