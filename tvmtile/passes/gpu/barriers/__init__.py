"""Where InsertBarriers places barriers.

`structure` makes a kernel `items`, `checker` follows the paths through a block, where `state` is what
no barrier has separated yet, and `placement` chooses the places of the barriers. Which accesses
conflict is found in `tvmtile.analysis`.
"""
