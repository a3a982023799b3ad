"""Compiling tile programs and calling them with tensors.

A program, its target and options are a `Request` (`compiler`). Its `Artifact` comes from the cache by
its key (`artifact`, `key`), or is built by passes and TVM's generators (`build`, `cuda`).
An `Executable` runs it on one kind of device (`executable`), by an adapter of a backend (`backends`;
`launches` and `recorded` where kernels are run without TVM's runtime). `Kernel` is what a user
calls: it has an executable for each kind of device (`kernel`), and can be looked at (`inspection`).

What a call takes and returns is a `KernelSignature`, with the extents of results as programs
(`signature`), for calls, exported libraries (`export`) and torch's operators (`torch_library`,
`torch_op`). `arguments` says what does not fit. `@jit` makes a kernel for each specialisation
(`decorator`, `specialisation`).
"""

from __future__ import annotations

import sys
import types
from typing import Any

from tvmtile.errors import hide_internal_frames
from tvmtile.jit.artifact import Artifact
from tvmtile.jit.compiler import CompiledArtifact, compile, lower, par_compile
from tvmtile.jit.decorator import JitFunction, jit
from tvmtile.jit.kernel import Kernel
from tvmtile.jit.signature import KernelParam

__all__ = [
    "Artifact",
    "CompiledArtifact",
    "JITImpl",
    "JITKernel",
    "JitFunction",
    "Kernel",
    "KernelParam",
    "compile",
    "jit",
    "lower",
    "par_compile",
]


JITKernel, JITImpl = Kernel, JitFunction
"""TileLang's names of the classes."""


class _CallablePackage(types.ModuleType):
    """`tvmtile.jit` is this package and, as TileLang's users expect, the decorator as well."""

    @hide_internal_frames
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return jit(*args, scope=sys._getframe(2).f_locals, **kwargs)  # above hide_internal_frames


sys.modules[__name__].__class__ = _CallablePackage
