"""Which accesses of threadgroup memory need a barrier between them, for InsertBarriers.

`effects` finds the accesses of a statement, `footprint` the elements and threads of two of them that
meet, `program` follows the paths through a block and finds what no barrier separates, and `placement`
chooses the places of the barriers.
"""
