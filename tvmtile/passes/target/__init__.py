"""Operations as a target's code generator takes them: the larger passes of the phase legalize.

Operators on elements, narrow floats, and calls of CUDA's functions come in. Element operators become
instructions and calls, narrow floats the integers that hold their bits, and CUDA's functions the same
arithmetic on other targets. Single expressions are rules: `tvmtile.passes.legalize`.
"""
