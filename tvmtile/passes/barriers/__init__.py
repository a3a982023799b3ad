"""Which accesses of memory need a barrier between them, for InsertBarriers.

`uses` finds what a statement does to memory, and `effects` what of that barriers order. `footprint`
finds the elements and threads of two accesses that meet: `comparison` compares the elements, as
`points` enumerates them, in the `iterations` of loops that are possible, by what `domain` knows of
variables. `structure` makes a kernel a `program`, which follows the paths through a block and finds
what no barrier separates, and `placement` chooses the places of the barriers.
"""
