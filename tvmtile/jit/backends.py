"""The place of a run: the target of a call's tensors, the backends, and what calls a program."""

from __future__ import annotations

import json
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, NoReturn

import tvm
from tvm import ir
from tvm.target import Target

from tvmtile.cuda_runtime import has_gpu
from tvmtile.errors import InvalidOperand, MissingDependency, warn
from tvmtile.jit.arguments import converting
from tvmtile.jit.artifact import Artifact
from tvmtile.jit.cuda import Binary, compile_source, ptx_of
from tvmtile.target import TORCH_DEVICES, runs_here

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
        """The statistics of the last call.

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
        self.call = converting(function, params)

    def _refusal(self) -> Callable[..., NoReturn] | None:
        """The error of a call where this machine can't run the program."""
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


_TVM = ("tvm_ffi", "tvm")
# TileLang's other ways to call what it compiled; here TVM's calling convention is the only one.
_TILELANG = {"cython": ("llvm", "cuda"), "nvrtc": ("cuda",)}
EMULATOR = "emulator"
"""The backend that runs the source of GPU kernels on the CPU."""
METAL_BACKENDS = ("torch", EMULATOR)
"""The backends that take a program's Metal source."""


_TARGETS = {**{device: kind for kind, device in TORCH_DEVICES.items()}, "metal": "metal"}
"""Of devices of torch, and of TVM's, whose name for Apple's GPU is the last."""
_SEEN: dict[object, str] = {}
"""The targets of devices that tensors were on. A cache of functools would make torch.compile warn."""


def adapter_for(artifact: Artifact, backend: str, params: Sequence[ir.Var]) -> Adapter:
    """The adapter that calls a compiled program."""
    kind = artifact.target.kind.name
    if backend in METAL_BACKENDS:
        from tvmtile.jit.recorded import ADAPTERS

        return ADAPTERS[backend, kind](artifact, params)
    return (CudaAdapter if kind == "cuda" else TvmAdapter)(artifact, params)


def backend_for(name: str, target: Target) -> str:
    """The backend that runs a program.

    It is "tvm_ffi" or one of `METAL_BACKENDS`, "emulator" for CUDA programs too. TileLang's "cython"
    and "nvrtc" are "tvm_ffi": CUDA programs are compiled by NVRTC in any case.

    Raises
    ------
    InvalidOperand
        If there is no such backend, or it does not run programs for the target.
    """
    known = ("auto", *_TVM, *_TILELANG, *METAL_BACKENDS)
    if name not in known:
        raise InvalidOperand(
            f"there is no execution backend {name!r}", help=f"the backends are {', '.join(known)}"
        )
    if target.kind.name not in _TILELANG.get(name, (target.kind.name,)):
        raise InvalidOperand(
            f"the execution backend {name!r} does not run programs for {target.kind.name!r}",
            help="leave execution_backend out",
        )
    if target.kind.name == "metal":
        return _metal_backend(name)
    if name == EMULATOR and target.kind.name == "cuda":
        return name
    if name in METAL_BACKENDS:
        emulated = "Metal and CUDA" if name == EMULATOR else "Metal"
        raise InvalidOperand(
            f"the execution backend {name!r} runs {emulated} programs; this one is for "
            f"{target.kind.name!r}",
            help="leave execution_backend out, or compile for target='metal'",
        )
    return "tvm_ffi"


def _metal_backend(name: str) -> str:
    if name in METAL_BACKENDS:
        return name
    if name in _TVM:
        _require_metal_runtime()
        return "tvm_ffi"
    if mps_is_available():
        return "torch"
    warn(
        "this machine has no Apple GPU that torch can use: the Metal program runs in the emulator, "
        "which checks every access and is slow; execution_backend='emulator' says so without a "
        "warning"
    )
    return "emulator"


def mps_is_available() -> bool:
    """Tell whether torch is installed and has an Apple GPU."""
    try:
        import torch
    except ModuleNotFoundError:
        return False
    return bool(torch.backends.mps.is_available())


def _require_metal_runtime() -> None:
    if tvm.get_global_func("device_api.metal", allow_missing=True) is None:
        raise InvalidOperand(
            "this TVM has no Metal runtime, which execution_backend='tvm_ffi' needs",
            help="use execution_backend='torch' on a Mac and 'emulator' elsewhere, or a TVM that "
            "was built with USE_METAL=ON",
        )


def chosen_target() -> Any:
    """The target that `TVMTILE_TARGET` names for kernels without one, or None.

    It is what `tvmtile.compile` takes: a name, or a dictionary as JSON.
    """
    written = os.environ.get("TVMTILE_TARGET", "")
    return json.loads(written) if written.startswith("{") else written or None


def best_target() -> str:
    """The target of this machine's GPU, of its CPU where it has none that tile programs run on."""
    if has_gpu():
        return "cuda"
    return "metal" if sys.platform == "darwin" and mps_is_available() else "llvm"


def target_of(arguments: Iterable[object]) -> str | None:
    """The target of the GPU that a tensor is on, else of the CPU; None where there is no tensor."""
    target = None
    for argument in arguments:
        device = getattr(argument, "device", None)
        if device is not None or hasattr(argument, "shape"):
            target = target_on(device)
            if target != "llvm":
                break
    return target


def target_on(device: object) -> str:
    """The target of a device of torch's, numpy's or TVM's; numpy before its second version has none."""
    target = _SEEN.get(device)
    if target is None:
        target = _SEEN[device] = _TARGETS.get(str(device).partition(":")[0], "llvm")
    return target
