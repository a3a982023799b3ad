"""Where InsertBarriers places barriers.

`structure` makes a kernel `items`, `checker` follows the paths through a block, where `state` is what
no barrier has separated yet, and `placement` chooses the places of the barriers. Where that finds a
race between groups of threads, `handovers` runs what they do at mbarriers. Which accesses conflict is
found in `tvmtile.analysis`.
"""
