"""CUDA programs in the emulator, on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, tirx
from tvm.target import Target

from tvmtile._tvm import codegen_build
from tvmtile.jit.artifact import Artifact
from tvmtile.jit.emulated import EmulatorAdapter, memory_of
from tvmtile.jit.launches import KernelLaunch, MapOf


def kernel_source(name: str, kernel: tirx.PrimFunc, target: Target) -> str:
    """The CUDA source of a kernel, of its name and its function after TVM's last pass."""
    return str(codegen_build(ir.IRModule({name: kernel}), target).inspect_source())


class CudaEmulatorAdapter(EmulatorAdapter):
    """Runs a CUDA program on the CPU, with every access to memory checked.

    Attributes
    ----------
    seed : int
        Chooses when copies in the background move what they move, and the order of blocks.
    short_sums : bool
        Whether products of float8 are added with as few bits as Hopper has for them.
    """

    def __init__(self, artifact: Artifact, params: Sequence[ir.Var]) -> None:
        super().__init__(artifact, params)
        self.seed = 0
        self.short_sums = False
        self._arch = str(artifact.target.attrs["arch"])

    def mapped(self, made_of: MapOf | None, tensor: object) -> Any:
        """A tensor map of an array, as the emulator has it; a kernel that uses none stops."""
        from tvmtile.emulator.cuda import NO_MAP, tensor_map

        if made_of is None:
            return NO_MAP
        return tensor_map(
            memory_of(tensor), made_of.extents, made_of.strides, made_of.box, made_of.swizzle
        )

    def _launched(self, launch: KernelLaunch, arrays: Sequence[object]) -> Any:
        from tvmtile.emulator.cuda import compile_cuda

        module = compile_cuda(self.sources[launch.kernel], arch=self._arch)
        return module.kernel(launch.kernel)(
            *arrays,
            *launch.scalars,
            grid=launch.grid,
            block=launch.threads,
            cluster=launch.cluster,
            shared_bytes=launch.shared_bytes,
            seconds=self.seconds,
            seed=self.seed,
            count_conflicts=self.count_conflicts,
            short_sums=self.short_sums,
        )
