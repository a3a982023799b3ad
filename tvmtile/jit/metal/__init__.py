"""Metal programs: how they are built, and how torch and the emulator run them.

The host function runs on the CPU (see `tvmtile.jit.launches`): it checks the arguments and says which
kernels to launch with what. The kernels are Metal source, which is given to `torch.mps.compile_shader`,
or to `tvmtile.emulator.metal.compile_msl` on a machine without an Apple GPU.
"""

from tvmtile.jit.metal.adapter import MetalAdapter
from tvmtile.jit.metal.emulator import EmulatorAdapter
from tvmtile.jit.metal.mps import TorchAdapter, mps_is_available
from tvmtile.jit.metal.program import MetalProgram, build_program, packed_scalars

__all__ = [
    "EmulatorAdapter",
    "MetalAdapter",
    "MetalProgram",
    "TorchAdapter",
    "build_program",
    "mps_is_available",
    "packed_scalars",
]
