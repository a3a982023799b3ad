"""Schedules of pipelined loops: what runs ahead of what, in which role, on how many buffer copies.

A pipelined loop is cut into units, the statements of its body (`body`). A plan gives each unit a stage
and a place in the order (`plan`); copies in an earlier stage run ahead, each iteration on another
buffer copy of its tiles (`rings`). `plan_pipeline` and `inject_pipeline` do that with one role: the
threads of a block copy ahead and compute.

`warp_specialize` splits the loops of a kernel between two roles: a producer, warps of their own that
copy tiles ahead (`producer`), and consumers, which use them (`consumers`). `schedules` says which
loops can be split, and what a `Schedule` of two roles is, `copies` what a producer can do, `roles`
which rings and counters loops get, `iteration_space` which iterations they have, `persistence` how
blocks follow each other in a block, `resources` what memory and registers there are.

The `full` mbarriers of a ring say that the tiles of an iteration have come, its `empty` ones that
nobody needs them any more: a ring has the tiles that consumers begin and cease to use at the same
places.
"""
