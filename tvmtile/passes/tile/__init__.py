"""Passes on tile operators: most of the phases normalize, select and schedule.

In: a tile program as it was written. Out of `normalize`: operands are regions, exits are branches,
groups of threads are regions of their own. Out of `select`: every operator names its lowering
(`tvmtile.tileop.selection`). Out of `schedule`: no loop asks for stages. A pipelined loop is taken
apart into units, statements with what they read and write (`tvmtile.passes.tile.schedule`): either
their copies run ahead by some iterations, or warps of their own do them.
"""
