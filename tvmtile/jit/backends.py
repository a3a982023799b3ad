"""Execution backends: who runs a compiled program, and on what tensors."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import ir
from tvm.target import Target

from tvmtile.errors import InvalidOperand, warn
from tvmtile.jit.adapter import Adapter, TvmAdapter
from tvmtile.jit.artifact import Artifact

_TVM = ("tvm_ffi", "tvm")
# TileLang's other ways to call what it compiled; here TVM's calling convention is the only one.
_TILELANG = {"cython": ("llvm", "cuda"), "nvrtc": ("cuda",)}
EMULATOR = "emulator"
"""The backend that runs the source of GPU kernels on the CPU."""
METAL_BACKENDS = ("torch", EMULATOR)
"""The backends that take a program's Metal source."""


def adapter_for(artifact: Artifact, backend: str, params: Sequence[ir.Var]) -> Adapter:
    """What calls a compiled program."""
    if backend == "torch":
        from tvmtile.jit.metal.mps import TorchAdapter

        return TorchAdapter(artifact, params)
    if backend == EMULATOR and artifact.target.kind.name == "cuda":
        from tvmtile.jit.cuda.emulator import CudaEmulatorAdapter

        return CudaEmulatorAdapter(artifact, params)
    if backend == EMULATOR:
        from tvmtile.jit.metal.emulator import MetalEmulatorAdapter

        return MetalEmulatorAdapter(artifact, params)
    if artifact.target.kind.name == "cuda":
        from tvmtile.jit.cuda import CudaAdapter

        return CudaAdapter(artifact, params)
    return TvmAdapter(artifact, params)


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
