"""How a kernel's arguments reach what was compiled: the interface, and TVM's own convention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import tvm
from tvm import ir
from tvm.target import Target

from tvmtile.errors import MissingDependency
from tvmtile.jit.arguments import with_addresses
from tvmtile.target import runs_here

__all__ = ["Adapter", "TvmAdapter"]


_DEVICES = {"llvm": "cpu", "cuda": "cuda", "metal": "metal"}


class Adapter(ABC):
    """Calls a compiled program.

    Attributes
    ----------
    device : str
        Where its tensors are: "cpu", torch's "mps", or TVM's "metal".
    call : callable
        Runs the program on all of its parameters, results too. It raises an exception of any kind
        if an argument does not fit, before anything runs, and an error of its own if the program fails.
    """

    device: str
    call: Callable[..., Any]

    @abstractmethod
    def source(self, kernel_only: bool) -> str:
        """The code that was generated, with or without the host's part."""


class TvmAdapter(Adapter):
    """TVM's calling convention: compiled code takes the tensors.

    Parameters
    ----------
    module : tvm.runtime.Module
        What TVM built.
    name : str
        The function to call.
    params : sequence of Var
        Its parameters.
    target : Target
        What it was built for. A program for another machine can be looked at and exported; calling it
        is an error.
    """

    def __init__(self, module: Any, name: str, params: Sequence[ir.Var], target: Target) -> None:
        self.device = _DEVICES[target.kind.name]
        self._module = module
        self._name = name
        self._cpu = str((target.host or target).attrs.get("mtriple", "this machine"))
        if runs_here(target):
            self.call = with_addresses(tvm.runtime.Executable(module)[name], params)
        else:
            self.call = self._refuse_elsewhere

    def _refuse_elsewhere(self, *args: Any) -> NoReturn:
        del args
        raise MissingDependency(
            f"{self._name} was compiled for {self._cpu}, which this machine is not",
            help='kernel.module.export_library("kernel.tar") writes its object files; leave the target '
            "out to run the kernel here",
        )

    def source(self, kernel_only: bool) -> str:
        """LLVM's intermediate language on a CPU; on a GPU its kernels, then the host's part."""
        host = str(self._module.inspect_source("ll"))
        kernels = [str(module.inspect_source()) for module in self._module.imports]
        if self.device == "cpu":
            return host
        return "\n".join(kernels if kernel_only else [*kernels, host])
