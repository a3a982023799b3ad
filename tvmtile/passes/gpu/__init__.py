"""Phases 5, 7 and 9 on GPUs, layout, distribute and synchronize: a block's work on its threads.

`layout_inference` gives fragments their layouts: which thread and register holds an element. Nests,
whose iterations have no order, run on the threads by the layouts of what they touch. Barriers stand
where conflicts between threads need them (`barriers`, by `tvmtile.analysis.conflicts`); asynchronous
work becomes instructions, with tokens for batches and mbarriers.
"""
