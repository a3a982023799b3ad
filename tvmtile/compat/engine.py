"""TileLang's `engine`: lowering a program, and changing its CUDA source before it is compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm.target import Target

from tvmtile.jit.compiler import CompiledArtifact, lower
from tvmtile.jit.signature import KernelParam

__all__ = [
    "CompiledArtifact",
    "KernelParam",
    "lower",
    "register_cuda_postproc",
    "register_cuda_postproc_callback",
]

PostProcess = Callable[[str, Target], str]


def register_cuda_postproc(func: PostProcess, override: bool = True) -> None:
    """Have a function change the CUDA source of each kernel that TVM builds from now on.

    What is compiled meanwhile is not kept on disk.

    Parameters
    ----------
    func : callable
        Given the source and the target, returns the source to compile.
    override : bool
        Replace the function that was registered before; without it that is an error.
    """
    tvm_ffi.register_global_func("tvm_callback_cuda_postproc", func, override=override)


def register_cuda_postproc_callback(
    func: PostProcess | bool | None = None, override: bool = True
) -> Any:
    """`register_cuda_postproc` as a decorator, with parentheses or without."""

    def register(function: PostProcess) -> PostProcess:
        register_cuda_postproc(function, override if not isinstance(func, bool) else func)
        return function

    return register(func) if callable(func) else register
