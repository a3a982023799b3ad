"""What all that run a program's kernels themselves have in common: from a call's arguments to launches.

The host function runs on the CPU (see `tvmtile.jit.launches`): it checks the arguments and says which
kernels to launch with what.
"""

from __future__ import annotations

import ctypes
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import ir

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import ArgumentError
from tvmtile.ir.alignment import WIDEST
from tvmtile.jit.adapter import Adapter
from tvmtile.jit.arguments import strides_of, with_signed
from tvmtile.jit.artifact import Artifact
from tvmtile.jit.launches import KernelLaunch, MapOf, record
from tvmtile.jit.placeholders import address_of, placeholder
from tvmtile.jit.signature import is_pointer


class RecordedAdapter(Adapter):
    """Runs the kernels that a program's host function would launch.

    Attributes
    ----------
    kernels : dict of str to KernelInterface
        What each kernel is launched with.
    sources : dict of str to str
        What is run: the source of each kernel.
    """

    def __init__(self, artifact: Artifact, params: Sequence[ir.Var]) -> None:
        name, self._kind = artifact.name, str(artifact.target.kind.name)
        self._artifact = artifact
        self.kernels, self.sources = dict(artifact.kernels), dict(artifact.sources)
        self.call = self._run_program
        self._host = with_signed(tvm.runtime.Executable(artifact.module)[name], params)
        self._names = [f"{name}: {param.name}" for param in params]
        self._pointers = frozenset(i for i, param in enumerate(params) if is_pointer(param))
        self._tensors = frozenset(i for i, param in enumerate(params) if is_buffer_var(param))

    def _run_program(self, *args: object) -> None:
        described = [self._described(index, arg) for index, arg in enumerate(args)]
        recording = record(self._host, described, self.kernels)
        memory = dict(enumerate(args))
        for index, (dtype, elements) in recording.workspaces.items():
            memory[index] = self.allocate(dtype, elements)
        for index, made_of in recording.maps.items():
            memory[index] = self.mapped(made_of, made_of and memory[made_of.buffer])
        self.run(recording.launches, memory)

    @abstractmethod
    def accepts(self, tensor: object) -> bool:
        """Tell whether the kernels can reach a tensor's memory."""

    @abstractmethod
    def allocate(self, dtype: str, elements: int) -> Any:
        """A tensor of one dimension, for the time of a call."""

    def mapped(self, made_of: MapOf | None, tensor: object) -> Any:
        """A tensor map, on machines that have them; without a tensor, memory that holds none."""
        raise NotImplementedError

    @abstractmethod
    def run(self, launches: Sequence[KernelLaunch], memory: Mapping[int, Any]) -> None:
        """Run kernels, one after the other, on the program's arguments and scratch tensors."""

    def source(self, kernel_only: bool) -> str:
        """The source of all kernels, and the host's LLVM code after it if asked for."""
        kernels = "\n".join(self.sources.values())
        if kernel_only:
            return kernels
        return f"{kernels}\n{self._artifact.host_source}"

    def _described(self, index: int, arg: Any) -> Any:
        """What the host function gets for an argument."""
        if index in self._pointers:
            return self._address(index, arg)
        if index not in self._tensors or not hasattr(arg, "shape"):
            return arg
        if not self.accepts(arg) or not _has_memory(arg):
            raise TypeError(f"a tensor that {type(self).__name__} can't reach")
        strides = strides_of(arg)
        dtype = str(arg.dtype).removeprefix("torch.")
        offset = self.offset(arg) % WIDEST
        return placeholder(index, tuple(arg.shape), tuple(strides), dtype, self._kind, offset)

    def _address(self, index: int, arg: object) -> Any:
        if not hasattr(arg, "shape") or not self.accepts(arg):
            raise ArgumentError(
                f"{self._names[index]} is a pointer; it got {arg!r:.80}",
                help=f"pass a tensor on {self.device}: this backend takes no bare address",
            )
        return ctypes.c_void_p(address_of(index) + self.offset(arg) % WIDEST)


def _has_memory(tensor: object) -> bool:
    """Tell a tensor from one of torch's that only says what operators do to it."""
    if not is_torch(tensor):
        return True
    from tvmtile.jit.torch_operators import is_wrapper

    return not is_wrapper(tensor)


def is_torch(tensor: object) -> bool:
    """Tell whether a tensor is torch's; torch need not be installed."""
    return hasattr(tensor, "untyped_storage")
