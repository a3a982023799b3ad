"""Where tiles lie: layouts of shared tiles, allocations, guards, flat indices.

In: tiles with scopes and layouts. Out: arrays of registers, of a block's shared memory and of the
host; tiles whose lifetimes do not overlap share memory where it would not suffice. Accesses that may
lie outside of a tensor are guarded here, too (`nest_bounds`).
"""
