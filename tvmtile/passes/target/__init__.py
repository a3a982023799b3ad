"""Phase 10, legalize, the larger passes: what a target's code generator takes.

Element operators become instructions and calls, floats of 8 bits integers that hold their bits,
functions of CUDA by name what they mean elsewhere. Single expressions are rules:
`tvmtile.passes.legalize`.
"""
