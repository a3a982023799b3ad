"""Passes for GPUs: fragments get layouts, nests run on threads, threads wait for each other.

layout: `fragment_layouts` says which thread and register holds each element of a fragment, and
`infer_layout` writes it into the types of buffers.
distribute: nests, whose iterations have no order, run on the threads by the layouts of the fragments
that they touch (`distribute_parallel`), as vectors or asynchronous copies where they can.
synchronize: `insert_barriers` places barriers where accesses of several threads conflict (`barriers`,
by `tvmtile.analysis.conflicts`); `lower_async_work` makes instructions of asynchronous work.
launch: `launches` and `tensor_maps` have the host give the kernel what it needs.
"""
