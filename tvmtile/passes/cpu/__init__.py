"""A block's work on a CPU: serial loops that LLVM vectorises.

Kernels that name threads run each stretch between two barriers for one thread after the other
(`threads`). Sums stay where they go, conditions and loops stand as LLVM's vectoriser likes them, and
the grid becomes one parallel loop.
"""
