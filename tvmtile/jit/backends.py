"""Execution backends: who runs a compiled program, and on what tensors."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.target import Target

from tvmtile.codegen.metal_source import complete
from tvmtile.codegen.metal_versions import lacking_in_tvm
from tvmtile.errors import InvalidOperand, warn
from tvmtile.jit.metal import EmulatorAdapter, TorchAdapter, mps_is_available

__all__ = ["METAL_ADAPTERS", "backend_for", "check_for_tvm"]

_TVM = ("tvm_ffi", "tvm")
# TileLang's other ways to call what it compiled; here TVM's calling convention is the only one.
_TILELANG = {"cython": ("llvm", "cuda"), "nvrtc": ("cuda",)}
METAL_ADAPTERS: dict[str, Any] = {"torch": TorchAdapter, "emulator": EmulatorAdapter}
"""The backends that take a program's Metal source, with what runs it."""


def backend_for(name: str, target: Target) -> str:
    """The backend that runs a program.

    Parameters
    ----------
    name : str
        What was asked for.
    target : Target
        What the program is compiled for.

    Returns
    -------
    str
        "tvm_ffi" or a key of `METAL_ADAPTERS`. TileLang's "cython" and "nvrtc" are "tvm_ffi": CUDA
        programs are compiled by NVRTC in any case.

    Raises
    ------
    InvalidOperand
        If there is no such backend, or it does not run programs for the target.
    """
    known = ("auto", *_TVM, *_TILELANG, *METAL_ADAPTERS)
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
    if name in METAL_ADAPTERS:
        raise InvalidOperand(
            f"the execution backend {name!r} runs Metal programs; this one is for "
            f"{target.kind.name!r}",
            help="leave execution_backend out, or compile for target='metal'",
        )
    return "tvm_ffi"


def _metal_backend(name: str) -> str:
    if name in METAL_ADAPTERS:
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


def _require_metal_runtime() -> None:
    if tvm.get_global_func("device_api.metal", allow_missing=True) is None:
        raise InvalidOperand(
            "this TVM has no Metal runtime, which execution_backend='tvm_ffi' needs",
            help="use execution_backend='torch' on a Mac and 'emulator' elsewhere, or a TVM that "
            "was built with USE_METAL=ON",
        )


def check_for_tvm(name: str, module: Any) -> None:
    """Refuse a Metal program that TVM's own runtime would compile wrongly, or not at all.

    Parameters
    ----------
    name : str
        Of the program.
    module : tvm.runtime.Module
        As TVM built it.

    Raises
    ------
    InvalidOperand
        If a kernel needs more than Metal 2.3, or infinities.
    """
    sources = [complete(str(kernels.inspect_source("metal"))) for kernels in module.imports]
    lacking = lacking_in_tvm("\n".join(sources))
    if lacking:
        raise InvalidOperand(
            f"{name}: TVM's runtime compiles kernels as Metal 2.3 with fast mathematics; this one "
            f"needs {'; '.join(lacking)}",
            help="use execution_backend='torch'",
        )
