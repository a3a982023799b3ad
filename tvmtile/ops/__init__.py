"""Operators that are ready to use, on tensors and as tile programs, tuned for their targets."""
