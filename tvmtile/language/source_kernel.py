"""`T.CUDASourceCodeKernel`: the launch of a kernel that is written in CUDA C++."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import IRBuilder, is_buffer_var
from tvmtile.errors import InvalidOperand, NestingError
from tvmtile.frontend.kernel import Kernel
from tvmtile.ir.rewriting import variables_of
from tvmtile.ir.types import Index
from tvmtile.language.kernel_options import import_source

__all__ = ["CUDASourceCodeKernel"]

# `extern "C"` and launch bounds belong to an entry; as a function of the device it has neither.
_ENTRY = re.compile(
    r'(?:extern\s+"C"\s+)?__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?void\s+'
    r"(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\("
)


def CUDASourceCodeKernel(
    *blocks: Index,
    threads: Any = None,
    source_code_or_path: str | os.PathLike[str],
    entry_name: str = "main_kernel",
    prelude: str | None = None,
) -> None:
    """Launch a `__global__` function of a CUDA source with the parameters of the program.

    It gets the tensors as pointers and the scalars, in their order, and then the dynamic extents, in
    the order in which the tensors name them first. The text becomes a function of the device that the
    launched kernel calls, so it may not ask for dynamic shared memory.

    Parameters
    ----------
    *blocks : int or Expr
        Up to three grid extents.
    threads : int or sequence of int, optional
        Threads of a block.
    source_code_or_path : str or path
        The source, or the name of a file with it.
    entry_name : str
        Which function of it.
    prelude : str, optional
        Text before the source.

    Raises
    ------
    InvalidOperand
        If the source has no such function.
    NestingError
        Outside a program.
    """
    source = (prelude + "\n" if prelude else "") + _source(source_code_or_path)
    entries = _ENTRY.findall(source)
    if entry_name not in entries:
        raise InvalidOperand(
            f"T.CUDASourceCodeKernel: the source has no entry {entry_name!r}. "
            f"Available entries: {', '.join(entries) or 'none'}",
            help="name a `__global__ void` function of the source by entry_name",
        )
    arguments = _arguments()
    with Kernel(*blocks, threads=threads):
        import_source(_ENTRY.sub(r"__device__ __forceinline__ void \1(", source))
        T.evaluate(tirx.call_extern("void", entry_name, *arguments))


def _source(code_or_path: str | os.PathLike[str]) -> str:
    if isinstance(code_or_path, os.PathLike):
        return Path(code_or_path).read_text(encoding="utf-8")
    is_name = "\n" not in code_or_path and "{" not in code_or_path
    if is_name and Path(code_or_path).is_file():
        return Path(code_or_path).read_text(encoding="utf-8")
    return code_or_path


def _arguments() -> list[ir.Expr]:
    """The parameters of the program being written, and the variables in their extents."""
    program = next((f for f in IRBuilder.current().frames if hasattr(f, "args")), None)
    if program is None:
        raise NestingError(
            "T.CUDASourceCodeKernel stands outside a program", help="use it in a T.prim_func"
        )
    params = list(program.args)
    tensors = [param for param in params if is_buffer_var(param)]
    extents: dict[ir.Var, None] = {}
    for tensor in tensors:
        for extent in tensor.ty.shape:
            extents.update(dict.fromkeys(variables_of(extent)))
    scalars = [var for var in extents if not any(var.same_as(param) for param in params)]
    return [param.data if is_buffer_var(param) else param for param in params] + scalars
