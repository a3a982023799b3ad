"""How code written by thread index becomes loops over threads, for SerializeThreads.

`exchange` replaces shuffles, `accesses` finds which parts of a body must wait for others, `plan` cuts
the body there, and `runs` makes the loops.
"""
