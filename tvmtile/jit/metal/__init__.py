"""Metal programs: how they are built, and how torch and the emulator run them.

The host function runs on the CPU (see `tvmtile.jit.launches`): it checks the arguments and says which
kernels to launch with what. The kernels are Metal source, which is given to `torch.mps.compile_shader`,
or to `tvmtile.emulator.metal.compile_msl` on a machine without an Apple GPU.
"""

from tvmtile.jit.metal.adapter import MetalAdapter
from tvmtile.jit.metal.emulator import EmulatorAdapter
from tvmtile.jit.metal.mps import TorchAdapter
from tvmtile.jit.metal.scalars import packed_scalars

__all__ = ["EmulatorAdapter", "MetalAdapter", "TorchAdapter", "packed_scalars"]
