"""Embedding: the rows of a table that indices name; an index outside of it, such as -1, gives zeros."""

import torch
from common import check_or_measure, parse

import tvmtile
import tvmtile.language as T


def embedding(count, vocabulary, width, block=32, columns=128, dtype=T.bfloat16):
    @T.prim_func
    def main(
        table: T.Tensor((vocabulary, width), dtype),
        indices: T.Tensor((count,), T.int32),
        out: T.Tensor((count, width), dtype),
    ):
        with T.Kernel(T.ceildiv(width, columns), T.ceildiv(count, block), threads=128) as (bx, by):
            rows = T.alloc_shared((block,), T.int32)
            tile = T.alloc_shared((block, columns), dtype)
            # Rows of the last block that are not there are read as row 0 and not written.
            T.copy(indices[by * block], rows)
            T.gather_rows(table, tile, rows, bx * columns)
            T.copy(tile, out[by * block, bx * columns])

    return main


def reference(table, indices):
    inside = (indices >= 0) & (indices < len(table))
    return torch.where(inside[:, None], table[indices.clamp(0, len(table) - 1).long()], 0)


def main(argv=None):
    args = parse(__doc__, argv, count=4096, vocabulary=32000, width=1024)
    program = embedding(args.count, args.vocabulary, args.width)
    kernel = tvmtile.compile(program, out_idx=-1, target=args.target)
    table = torch.randn(args.vocabulary, args.width).bfloat16()
    indices = torch.randint(-1, args.vocabulary + 1, (args.count,), dtype=torch.int32)
    check_or_measure(args, kernel, (table, indices), reference, exact=True)


if __name__ == "__main__":
    main()
