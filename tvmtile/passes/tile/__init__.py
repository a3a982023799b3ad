"""Passes on tile operators: most of the phases normalize, select and schedule, and the phase lower.

A tile program goes in as it was written. After `normalize` operands are regions, exits are branches,
and groups of threads have regions of their own. After `select` every operator names its lowering
(`tvmtile.tileop.selection`). After `schedule` no loop asks for stages: copies of pipelined loops run
ahead by some iterations, or warps of their own do them (`tvmtile.passes.tile.schedule`). After `lower`
operators are loop nests and instructions.
"""
