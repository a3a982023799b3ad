"""Building a Metal program: its kernels' source, and the host's part that says what to launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import ir, tirx
from tvm.target import Target

from tvmtile._tvm import codegen_build, split_host_device_mods
from tvmtile.codegen.metal import kernel_source
from tvmtile.jit.launches import KernelInterface, record_launches
from tvmtile.tvm_pipeline import tvm_pipeline


def build_program(
    mod: ir.IRModule,
    target: Target,
    source_of: Callable[[str, tirx.PrimFunc, Target], str] = kernel_source,
) -> tuple[Any, dict[str, KernelInterface], dict[str, str]]:
    """Lower a module and generate its code, without needing a GPU's runtime.

    The target has a host. Returned are the host's part, which records launches; what each kernel is
    launched with, in the order of the program; and their sources, each of which compiles by itself:
    `source_of` makes it of the kernel's name, its function after TVM's last pass, and the target.
    """
    lower, finalize_host, finalize_device = tvm_pipeline()
    host, devices = split_host_device_mods(lower(tirx.transform.BindTarget(target)(mod)))
    host_module = codegen_build(finalize_host()(record_launches(host)), target.host)
    kernels, sources = {}, {}
    for device in devices.values():
        for name, kernel in finalize_device()(device).functions.items():
            symbol = str(kernel.attrs.get("global_symbol", name.name_hint))
            kernels[symbol] = KernelInterface.of(kernel)
            sources[symbol] = source_of(symbol, kernel, target)
    return host_module, kernels, sources
