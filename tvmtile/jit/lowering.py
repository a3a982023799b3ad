"""`tvmtile.lower`: what a tile program becomes for a target, to look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir
from tvm.target import Target

from tvmtile.errors import hide_internal_frames
from tvmtile.jit.compiler import compile as compile_program
from tvmtile.jit.kernel import Kernel
from tvmtile.jit.signature import KernelParam
from tvmtile.jit.signatures import Program
from tvmtile.target import TargetLike


@dataclass(frozen=True)
class CompiledArtifact:
    """A tile program that was compiled for a target, which need not be here."""

    kernel: Kernel
    """The compiled program."""

    @property
    def kernel_source(self) -> str:
        """The code that was generated."""
        return self.kernel.get_kernel_source()

    @property
    def params(self) -> list[KernelParam]:
        """The parameters of the program."""
        return self.kernel.params

    @property
    def rt_mod(self) -> Any:
        """What TVM built."""
        return self.kernel.module

    @property
    def device_mod(self) -> ir.IRModule:
        """The program as ordinary TIR, after tvmtile's passes."""
        return dict(self.kernel.lowering)["tvmtile.LowerTilePrograms"]


@hide_internal_frames
def lower(
    func_or_mod: Program | ir.IRModule,
    target: TargetLike | None = None,
    target_host: TargetLike | None = None,
    runtime_only: bool = False,
    enable_host_codegen: bool = False,
    enable_device_compile: bool = False,
) -> CompiledArtifact:
    """Compile a tile program without a GPU to run it on.

    Parameters
    ----------
    func_or_mod : tvm.tirx.PrimFunc or tvm.ir.IRModule
        The program, or a module of it alone.
    target : str, dict or Target, optional
        As of `tvmtile.compile`; where absent, the target in force (`with tvm.target.Target(...)`).
    target_host, runtime_only, enable_host_codegen
        Accepted for TileLang's programs.
    enable_device_compile : bool
        Compile the source of a CUDA program to machine code too.

    Raises
    ------
    TileError
        For what is wrong with the program on this target.
    """
    del target_host, runtime_only, enable_host_codegen
    func: Any = func_or_mod
    if isinstance(func_or_mod, ir.IRModule) and len(func_or_mod.functions) == 1:
        (func,) = func_or_mod.functions.values()
    if target in (None, "auto"):
        target = Target.current(allow_none=True)
    kernel = compile_program(func, target=target)
    if enable_device_compile and kernel.target.kind.name == "cuda":
        _ = kernel.cubin
    return CompiledArtifact(kernel)
