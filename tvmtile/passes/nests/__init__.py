"""Nests of `T.Parallel` before they are distributed: versions that need no conditions, and guards.

In: operators are loop nests. Out: no access lies outside of a tensor, and what holds for all of a nest
is decided before it. Both passes ask `ranges`: which values expressions take over the iterations of a
nest, in terms of what is known before it.
"""
