"""InsertBarriers: the places of barriers.

`structure` makes a kernel `items`. `dataflow` walks forward through them, through a loop to a fixed
point; its `state` is what no barrier has separated yet. `placement` puts a barrier at the first
conflict, of those that `checker` knows. Where that finds a race between groups of threads, `handovers`
runs what they do at mbarriers. Which accesses conflict is found in `tvmtile.analysis`.
"""
