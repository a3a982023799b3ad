"""What a target's code generator takes: the larger passes of the phase legalize.

Element operators become instructions and calls, floats of 8 bits integers that hold their bits,
functions of CUDA by name what they mean elsewhere. Single expressions are rules:
`tvmtile.passes.legalize`.
"""
