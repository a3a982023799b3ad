"""Metal programs: how they are built, and how torch and the emulator run them.

The host function says which kernels to launch (`tvmtile.jit.recorded`). They are Metal source, which
is given to `torch.mps.compile_shader`, or to `tvmtile.emulator.metal.compile_msl` on a machine without
an Apple GPU.
"""

from tvmtile.jit.metal.emulator import MetalEmulatorAdapter
from tvmtile.jit.metal.mps import TorchAdapter
from tvmtile.jit.metal.scalars import packed_scalars

__all__ = ["MetalEmulatorAdapter", "TorchAdapter", "packed_scalars"]
