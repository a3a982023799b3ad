"""Running CUDA kernels through TVM's runtime, and looking at their machine code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NoReturn

from tvm import ir
from tvm.target import Target

from tvmtile.cuda_runtime import has_gpu
from tvmtile.errors import MissingDependency
from tvmtile.jit.adapter import TvmAdapter
from tvmtile.jit.cuda.compilation import Compilation
from tvmtile.jit.cuda.nvrtc import Binary, compile_source
from tvmtile.target import runs_here

__all__ = ["CudaAdapter"]


class CudaAdapter(TvmAdapter):
    """TVM's calling convention, on tensors of an NVIDIA GPU, in torch's current stream.

    On a machine without a GPU a kernel can be looked at; calling it is an error.

    Parameters
    ----------
    module : tvm.runtime.Module
        What TVM built.
    name : str
        The function to call.
    params : sequence of Var
        Its parameters.
    target : Target
        What it was built for.
    compilation : Compilation
        What NVRTC made of the module if it was asked.
    """

    def __init__(
        self,
        module: Any,
        name: str,
        params: Sequence[ir.Var],
        target: Target,
        compilation: Compilation,
    ) -> None:
        super().__init__(module, name, params, target)
        self._compilation = compilation
        if runs_here(target) and not has_gpu():
            self.call = self._refuse

    def _refuse(self, *args: Any) -> NoReturn:
        del args
        raise MissingDependency(
            f"{self._name} was compiled for {self._compilation.arch}; there is no NVIDIA GPU here to "
            "run it on",
            help="kernel.get_kernel_source(), kernel.cubin and kernel.resources() show what was "
            "compiled; target='llvm' compiles the same program for the CPU",
        )

    @cached_property
    def binary(self) -> Binary:
        """The machine code, compiled when it is asked for where TVM has not needed it."""
        if self._compilation.binary is not None:
            return self._compilation.binary
        return compile_source(self.source(kernel_only=True), self._compilation.arch)
