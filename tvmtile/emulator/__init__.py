"""GPU kernels on any machine with a C++ compiler, with checks that no GPU makes.

The text of a kernel is compiled for the host and runs thread by thread on a machine whose memory knows
who touched it (`tvmtile.emulator.machine`); each language has a front end, `tvmtile.emulator.metal` for
Metal's.
"""
