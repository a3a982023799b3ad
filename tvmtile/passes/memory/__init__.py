"""Places of tiles: layouts of shared tiles, placement, flat indices.

In: tiles with scopes and layouts. Out: arrays of registers, of a block's shared memory and of the
host (`placement`); tiles whose lifetimes do not overlap share memory where it would not suffice
(`shared_memory`). Before that `shared_layouts` says where the elements of shared tiles lie, by what
implementations and users want of them. Last of all, in TVM's part of the pipeline, indices become the
numbers of elements in memory (`flatten_buffers`).
"""
