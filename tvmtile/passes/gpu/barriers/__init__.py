"""Where InsertBarriers places barriers.

`structure` makes a kernel a `program`, which follows the paths through a block and finds the accesses
that no barrier separates, and `placement` chooses the places of the barriers. Which accesses conflict
is found in `tvmtile.analysis`.
"""
