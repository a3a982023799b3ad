"""A block's work on the threads of a GPU: most of layout, distribute and synchronize.

`fragment_layouts` gives fragments their layouts: which thread and register holds an element. Nests,
whose iterations have no order, run on the threads by the layouts of what they touch. Barriers stand
where conflicts between threads need them (`barriers`, by `tvmtile.analysis.conflicts`); asynchronous
work becomes instructions, with tokens for batches and mbarriers.
"""
