"""Questions of passes about a program, each with one answer.

`effects` says what statements do to memory, and `kernel_info` keeps that of a kernel, with its aliases
(`aliases`) and nests (`nests`). `uniformity` tells values that diverge between threads,
`active_threads` which threads come to a statement, `conflicts` whether accesses of several threads may
touch one element.
"""
