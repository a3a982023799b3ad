"""Where a program runs: the target of a call's tensors, and the execution backends of targets."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from tvm import ir
from tvm.target import Target

from tvmtile.cuda_runtime import has_gpu
from tvmtile.errors import InvalidOperand, warn
from tvmtile.jit.adapter import Adapter, TvmAdapter
from tvmtile.jit.artifact import Artifact
from tvmtile.target import TORCH_DEVICES

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
