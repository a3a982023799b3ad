"""Compaction of a key-value cache: the entries that are kept move to the front, in their order.

Which ones is data: torch decides, from any mask, and the kernel takes the places of the survivors. Both
caches move in one launch. The rest of the tensors that are written keeps what it held.
"""

import torch
from common import check_or_measure, parse

import tvmtile
import tvmtile.language as T


def kv_compaction(entries, width, block=16, columns=256, dtype=T.bfloat16):
    kept = T.dynamic("kept")

    @T.prim_func
    def main(
        keys: T.Tensor((entries, width), dtype),
        values: T.Tensor((entries, width), dtype),
        places: T.Tensor((kept,), T.int32),
        new_keys: T.Tensor((kept, width), dtype),
        new_values: T.Tensor((kept, width), dtype),
    ):
        with T.Kernel(T.ceildiv(width, columns), T.ceildiv(kept, block), threads=128) as (bx, by):
            rows = T.alloc_shared((block,), T.int32)
            key_tile = T.alloc_shared((block, columns), dtype)
            value_tile = T.alloc_shared((block, columns), dtype)
            T.copy(places[by * block], rows)
            T.gather_rows(keys, key_tile, rows, bx * columns)
            T.gather_rows(values, value_tile, rows, bx * columns)
            T.copy(key_tile, new_keys[by * block, bx * columns])
            T.copy(value_tile, new_values[by * block, bx * columns])

    return main


def main(argv=None):
    args = parse(__doc__, argv, entries=8192, width=512)
    program = kv_compaction(args.entries, args.width)
    kernel = tvmtile.compile(program, out_idx=[3, 4], target=args.target)
    keys, values = (torch.randn(args.entries, args.width).bfloat16() for _ in range(2))
    mask = torch.rand(args.entries) < 0.7
    mask[0] = True
    places = mask.nonzero().flatten().int()

    def reference(keys, values, places):
        return keys[places.long()], values[places.long()]

    check_or_measure(args, kernel, (keys, values, places), reference, exact=True)


if __name__ == "__main__":
    main()
