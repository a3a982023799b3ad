"""How a kernel's arguments reach what was compiled: the interface, and TVM's own convention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import tvm
from tvm import ir

from tvmtile.errors import InvalidOperand, MissingDependency
from tvmtile.jit.arguments import with_addresses, with_signed
from tvmtile.jit.artifact import Artifact
from tvmtile.target import runs_here

_DEVICES = {"llvm": "cpu", "cuda": "cuda", "metal": "metal"}


class Adapter(ABC):
    """Calls a compiled program."""

    backend: str
    """The execution backend: "tvm_ffi", "torch" or "emulator"."""
    device: str
    """Where its tensors are: "cpu", torch's "mps", or TVM's "metal"."""
    can_run: bool = True
    """Whether this machine can run what was compiled."""
    call: Callable[..., Any]
    """Runs the program on all of its parameters, results too. It raises an exception of any kind if an
    argument does not fit, before anything runs, and an error of its own if the program fails.
    """

    @abstractmethod
    def source(self, kernel_only: bool) -> str:
        """The code that was generated, with or without the host's part."""

    def offset(self, tensor: Any) -> int:
        """Bytes between memory that is aligned for any vector and a tensor's first element.

        It is 0 where the tensor does not tell.
        """
        if hasattr(tensor, "data_ptr"):
            return int(tensor.data_ptr())
        return int(tensor.ctypes.data) if hasattr(tensor, "ctypes") else 0

    @property
    def statistics(self) -> Any:
        """What the last call did.

        Raises
        ------
        InvalidOperand
            If no emulator ran it.
        """
        raise InvalidOperand(
            "what a kernel does is counted in the emulator alone",
            help='compile it with execution_backend="emulator" for a GPU',
        )


class TvmAdapter(Adapter):
    """TVM's calling convention: compiled code takes the tensors.

    A program for another machine can be looked at and exported; calling it is an error.
    """

    backend = "tvm_ffi"

    def __init__(self, artifact: Artifact, params: Sequence[ir.Var]) -> None:
        target = artifact.target
        self.device = _DEVICES[target.kind.name]
        self._artifact = artifact
        self._cpu = str((target.host or target).attrs.get("mtriple", "this machine"))
        refusal = self._refusal()
        if refusal is not None:
            self.can_run, self.call = False, refusal
            return
        function = tvm.runtime.Executable(artifact.module)[artifact.name]
        self.call = with_signed(with_addresses(function, params), params)

    def _refusal(self) -> Callable[..., NoReturn] | None:
        """What a call comes to where this machine can't run the program."""
        return None if runs_here(self._artifact.target) else self._refuse_elsewhere

    def _refuse_elsewhere(self, *args: object) -> NoReturn:
        del args
        raise MissingDependency(
            f"{self._artifact.name} was compiled for {self._cpu}, which this machine is not",
            help='kernel.module.export_library("kernel.tar") writes its object files; leave the target '
            "out to run the kernel here",
        )

    def source(self, kernel_only: bool) -> str:
        """LLVM's intermediate language on a CPU; on a GPU its kernels, then the host's part."""
        if self.device == "cpu":
            return self._artifact.host_source
        kernels = list(self._artifact.sources.values())
        return "\n".join(kernels if kernel_only else [*kernels, self._artifact.host_source])
