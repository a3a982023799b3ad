"""Writing a kernel as a library that TVM's runtime loads without a compiler.

Beside the code, a library holds what a call of the kernel needs to know: its parameters and how to
allocate its results, as text that a function of the library writes into a tensor.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import ir, tirx
from tvm.support import cc

from tvmtile._tvm import buffer_var, is_buffer_var
from tvmtile.errors import InvalidOperand, InvalidValue, MissingDependency
from tvmtile.ir.packed import has_float4
from tvmtile.jit.backends import METAL_BACKENDS
from tvmtile.jit.signature import is_pointer
from tvmtile.library import SIGNATURE, SIGNATURE_LENGTH
from tvmtile.target import runs_here

if TYPE_CHECKING:
    from tvmtile.jit.kernel import Kernel

_ARCHIVES = (".tar",)


def export_library(kernel: Kernel, path: str | os.PathLike[str], compiler: str | None) -> Path:
    """See `Kernel.export_library`."""
    _check(kernel, Path(path), compiler)
    words = np.frombuffer(_padded(json.dumps(_signature(kernel)).encode()), "int64")
    host = kernel.target.host or kernel.target
    functions = {
        SIGNATURE_LENGTH: _writer(SIGNATURE_LENGTH, [len(words)]),
        SIGNATURE: _writer(SIGNATURE, words.tolist()),
    }
    library = tvm.tirx.build(ir.IRModule(functions), target=host)
    library.import_module(kernel.module)
    linked: dict[str, Any] = {"fcompile": cc.cross_compiler(compiler)} if compiler else {}
    if Path(path).suffix not in _ARCHIVES and runs_here(kernel.target):
        linked["options"] = _runtime_options()
    library.export_library(os.fspath(path), **linked)
    return Path(path)


def _runtime_options() -> list[str]:
    """Let a library load TVM's runtime, whose functions kernels call through pointers that it sets.

    Where the process has loaded it, as `import tvm` does, that is the one, wherever it lies.
    """
    directory = Path(tvm.__file__).parent / "lib"
    if not any(directory.glob("libtvm_runtime.*")):  # TVM was built in another way
        return []
    kept = ["-Wl,--no-as-needed"] if sys.platform == "linux" else []
    return [*kept, f"-L{directory}", "-ltvm_runtime", f"-Wl,-rpath,{directory}"]


def _check(kernel: Kernel, path: Path, compiler: str | None) -> None:
    if kernel.options.get("execution_backend") in METAL_BACKENDS or kernel.artifact.kernels:
        raise InvalidOperand(
            f"{kernel.name} runs by the backend {kernel.adapter.device!r} of this process, which no "
            "library has",
            help="compile it with execution_backend='tvm_ffi'",
        )
    for param in kernel.prim_func.params:
        if is_pointer(param) or has_float4(param):
            what = "a pointer" if is_pointer(param) else "a tensor of elements of 4 bits"
            raise InvalidOperand(
                f"{kernel.name}: {param.name} is {what}, which takes tvmtile to be called",
                help="kernel.module.export_library(path) writes the code alone, for "
                "tvm.runtime.load_module",
            )
    if path.suffix not in _ARCHIVES and compiler is None and not runs_here(kernel.target):
        raise InvalidValue(
            f"{path.name}: linking a library for {host_name(kernel)} takes a compiler for it",
            help=f"compiler='{host_name(kernel)}-g++' names one; a path that ends in .tar holds the "
            "object files, to be linked there",
        )
    if path.suffix not in _ARCHIVES and compiler is None and cc.get_cc() is None:
        raise MissingDependency(
            f"{path.name}: linking a library takes a C++ compiler, and there is none",
            help="install g++ or clang++, or name a compiler by compiler= or CXX; a path that ends in "
            ".tar holds the object files, to be linked elsewhere",
        )


def host_name(kernel: Kernel) -> str:
    """The triple of the CPU that a kernel's host part is for."""
    return str((kernel.target.host or kernel.target).attrs.get("mtriple"))


def _padded(text: bytes) -> bytes:
    return text.ljust(-(-len(text) // 8) * 8, b"\0")


def _signature(kernel: Kernel) -> dict[str, object]:
    signature = kernel.signature
    for result in signature.allocated:
        if result.unknown is not None:
            raise InvalidOperand(
                f"{kernel.name}: the extent {result.unknown} of a result does not follow from the "
                "arguments",
                help="compile it without out_idx, and give the results to the call",
            )
    return {
        "name": kernel.name,
        "device": kernel.adapter.device,
        "params": [_described(param) for param in signature.params],
        "results": [
            {"index": result.index, "dtype": result.dtype, "shape": result.programs}
            for result in signature.allocated
        ],
    }


def _described(param: ir.Var) -> str:
    if not is_buffer_var(param):
        return f"{param.name}: {param.ty.dtype}"
    return f"{param.name}: {param.ty.dtype}[{', '.join(map(str, param.ty.shape))}]"


def _writer(name: str, words: Sequence[int]) -> tirx.PrimFunc:
    """A function that writes numbers into the tensor it is given."""
    ty = tirx.decl_buffer((len(words),), "int64", name="words").ty
    memory = buffer_var("words", ty)
    stores = [
        tirx.BufferStore(memory, tirx.const(word, "int64"), [tirx.const(index, "int64")])
        for index, word in enumerate(words)
    ]
    body = tirx.SeqStmt(stores) if len(stores) > 1 else stores[0]
    return tirx.PrimFunc([memory], body).with_attr("global_symbol", name)
