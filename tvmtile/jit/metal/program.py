"""Building a Metal program: its kernels' source, and the host's part that says what to launch."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx
from tvm.target import Target

from tvmtile._tvm import codegen_build, split_host_device_mods
from tvmtile.codegen.metal_source import kernel_source
from tvmtile.errors import UnsupportedDtype
from tvmtile.jit.launches import KernelInterface, record_launches
from tvmtile.pipeline import tvm_pipeline

__all__ = ["MetalProgram", "build_program", "packed_scalars"]

# A scalar as the host passes it, in the first bytes of its 8.
_FORMATS = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
}
_SLOT = 8


@dataclass(frozen=True)
class MetalProgram:
    """A program that was compiled for Metal.

    Attributes
    ----------
    module : tvm.runtime.Module
        The host's part, which records launches.
    kernels : dict of str to KernelInterface
        What each kernel is launched with, in the order of the program.
    sources : dict of str to str
        The Metal source of each kernel; each compiles by itself.
    """

    module: Any
    kernels: dict[str, KernelInterface]
    sources: dict[str, str]


def build_program(mod: ir.IRModule, target: Target) -> MetalProgram:
    """Lower a module and generate its code, without needing an Apple GPU's runtime.

    Parameters
    ----------
    mod : IRModule
        Tile programs, or functions with threads bound.
    target : Target
        Of kind `metal`, with a host.

    Returns
    -------
    MetalProgram
        What an adapter runs.
    """
    lower, finalize_host, finalize_device = tvm_pipeline()
    host, devices = split_host_device_mods(lower(tirx.transform.BindTarget(target)(mod)))
    host_module = codegen_build(finalize_host()(record_launches(host)), target.host)
    kernels, sources = {}, {}
    for device in devices.values():
        for name, kernel in finalize_device()(device).functions.items():
            symbol = str(kernel.attrs.get("global_symbol", name.name_hint))
            kernels[symbol] = KernelInterface.of(kernel)
            sources[symbol] = kernel_source(symbol, kernel, target)
    _check_scalars(kernels)
    return MetalProgram(host_module, kernels, sources)


def _check_scalars(kernels: Mapping[str, KernelInterface]) -> None:
    for name, kernel in kernels.items():
        for dtype in kernel.dtypes:
            if dtype != "handle" and dtype not in _FORMATS:
                raise UnsupportedDtype(
                    f"{name}: a number of {dtype} can't be passed to a Metal kernel",
                    help=f"pass one of {', '.join(_FORMATS)}, or a tensor with one element",
                )


def packed_scalars(kernel: KernelInterface, values: Sequence[int | float]) -> bytes:
    """The struct of a kernel's scalars, as TVM lays it out: 8 bytes each.

    Parameters
    ----------
    kernel : KernelInterface
        Its dtypes.
    values : sequence of number
        The scalars.
    """
    dtypes = [dtype for dtype in kernel.dtypes if dtype != "handle"]
    return b"".join(
        struct.pack(f"<{_FORMATS[dtype]}", value).ljust(_SLOT, b"\0")
        for dtype, value in zip(dtypes, values, strict=True)
    )
