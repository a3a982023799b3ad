"""Running CUDA kernels through TVM's runtime, and looking at their machine code."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NoReturn

from tvmtile.cuda_runtime import has_gpu
from tvmtile.errors import MissingDependency
from tvmtile.jit.adapter import TvmAdapter
from tvmtile.jit.cuda.nvrtc import Binary, compile_source, ptx_of
from tvmtile.target import runs_here


class CudaAdapter(TvmAdapter):
    """TVM's calling convention, on tensors of an NVIDIA GPU, in torch's current stream.

    On a machine without a GPU a kernel can be looked at; calling it is an error.
    """

    @property
    def arch(self) -> str:
        """The architecture that it was compiled for, as "sm_90a"."""
        return str(self._artifact.target.attrs["arch"])

    def _refusal(self) -> Callable[..., NoReturn] | None:
        if runs_here(self._artifact.target) and not has_gpu():
            return self._refuse
        return super()._refusal()

    def _refuse(self, *args: object) -> NoReturn:
        del args
        raise MissingDependency(
            f"{self._artifact.name} was compiled for {self.arch}; there is no NVIDIA GPU here to run "
            "it on",
            help='execution_backend="emulator" runs it here; kernel.get_kernel_source(), kernel.cubin '
            "and kernel.resources() show what was compiled; target='llvm' compiles it for the CPU",
        )

    @cached_property
    def binary(self) -> Binary:
        """The machine code, compiled when it is asked for where TVM has not needed it."""
        if self._artifact.binary is not None:
            return self._artifact.binary
        return compile_source(self.source(kernel_only=True), self.arch)

    @cached_property
    def ptx(self) -> str:
        """The code for all GPUs of the architecture that the machine code is made of."""
        return ptx_of(self.source(kernel_only=True), self.arch)
