"""CUDA source to machine code, by NVRTC: without a GPU, a driver or a toolkit."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from tvmtile.cache import current_store, digest
from tvmtile.codegen.cuda import FAST_MATH
from tvmtile.cuda_runtime import include_directories, load_beside_others
from tvmtile.errors import CudaCompileError, import_optional, packages_of
from tvmtile.jit.cuda.headers import (
    PREAMBLE,
    has_foreign_headers,
    headers_in_memory,
)
from tvmtile.jit.toolchain import contents_of

_CUDA = 13
"""The version that TVM's wheel is built for."""
_KIND = "cubins"
_ENTRY = re.compile(r"__global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(")


@dataclass(frozen=True)
class Binary:
    """Machine code of an NVIDIA GPU."""

    cubin: bytes
    """An ELF file."""
    log: str
    """What the compiler says, with what each kernel uses."""


def compile_source(source: str, arch: str) -> Binary:
    """Compile CUDA C++ for an architecture.

    The environment adds to the options, as it does to TVM's: `TVM_CUDA_PTXAS_REG_LEVEL`,
    `TVM_CUDA_PTXAS_EXTRA_OPTS` and `TVM_CUDA_NVRTC_EXTRA_OPTS`.

    Raises
    ------
    CudaCompileError
        If NVRTC refuses the source; the message has its first errors.
    MissingDependency
        If NVRTC or CUDA's headers are not installed.
    """
    nvrtc = _library()
    store = None if has_foreign_headers(source) else current_store()
    if store is None:
        return _compiled(nvrtc, source, arch)
    key = _key(nvrtc, source, arch)
    kept = store.load(_KIND, key, lambda e: Binary(e.files["cubin"], e.files["log"].decode()))
    if kept is not None:
        return kept
    binary = _compiled(nvrtc, source, arch)
    facts = {"name": ", ".join(_ENTRY.findall(source)), "target": arch}
    store.put(_KIND, key, facts, {"cubin": binary.cubin, "log": binary.log.encode()})
    return binary


def identity(nvrtc: Any) -> list[str]:
    """What makes other machine code of the same source: NVRTC, its library, and CUDA's headers."""
    from cuda import pathfinder

    version = _checked(nvrtc, ((status := nvrtc.nvrtcVersion())[0], status[1:]))
    library = Path(pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path)
    headers = (path for d in include_directories() for path in (*d.glob("*.h*"), *d.glob("crt/*")))
    return [str(version), contents_of([library, *sorted(headers)])]


def _key(nvrtc: object, source: str, arch: str) -> str:
    headers = chain.from_iterable(headers_in_memory(source).items())
    return digest(PREAMBLE, source, *_options(arch, source), "", *headers, "", *identity(nvrtc))


def ptx_of(source: str, arch: str) -> str:
    """The PTX that NVRTC makes of CUDA C++; the errors are those of `compile_source`."""
    nvrtc = _library()
    with _program(nvrtc, source, arch) as program:
        return _text(nvrtc, program, "PTX")


def _library() -> Any:
    load_beside_others("libnvrtc.so.13")
    return import_optional("cuda.bindings.nvrtc", "cuda", "compiling for CUDA")


def _compiled(nvrtc: Any, source: str, arch: str) -> Binary:
    with _program(nvrtc, source, arch) as program:
        return Binary(_read(nvrtc, program, "CUBIN"), _text(nvrtc, program, "ProgramLog"))


@contextmanager
def _program(nvrtc: Any, source: str, arch: str) -> Iterator[Any]:
    """A program of NVRTC that is compiled."""
    headers = headers_in_memory(source)
    program = _checked(
        nvrtc,
        nvrtc.nvrtcCreateProgram(
            (PREAMBLE + source).encode(),
            b"kernel.cu",
            len(headers),
            [text.encode() for text in headers.values()],
            [name.encode() for name in headers],
        ),
    )
    try:
        options = [option.encode() for option in _options(arch, source)]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if result == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION:
            errors = _first_errors(_text(nvrtc, program, "ProgramLog"))
            raise CudaCompileError(
                f"NVRTC refuses the kernel for {arch}:\n{errors}",
                help="TVM_BACKTRACE=1 shows where it was compiled",
            )
        _checked(nvrtc, (result,))
        yield program
    finally:
        nvrtc.nvrtcDestroyProgram(program)


# Which functions are approximations is in the source: --use_fast_math would take them for all.
_FAST = ("--ftz=true", "--prec-div=false", "--prec-sqrt=false")


def _options(arch: str, source: str) -> list[str]:
    """What NVRTC is told: arithmetic is IEEE's, unless the source asks for what is faster."""
    ptxas = [
        "-v",
        f"--register-usage-level={os.environ.get('TVM_CUDA_PTXAS_REG_LEVEL', '10')}",
        *shlex.split(os.environ.get("TVM_CUDA_PTXAS_EXTRA_OPTS", "")),
    ]
    return [
        f"--gpu-architecture={arch}",
        "-default-device",
        "--device-int128",
        *(_FAST if FAST_MATH in source else ()),
        "--disable-warnings",
        "--no-cache",  # what it takes from a cache of its own has no log
        *(f"-I{directory}" for directory in include_directories()),
        # The headers of narrow floats use these without including what defines them.
        *(f"-D__NV_SILENCE_{part}DEPRECATION_{end}=" for part in ("", "HOST_") for end in _ENDS),
        *(f"--ptxas-options={flag}" for flag in ptxas),
        *shlex.split(os.environ.get("TVM_CUDA_NVRTC_EXTRA_OPTS", "")),
    ]


_ENDS = ("BEGIN", "END")


def _checked(nvrtc: Any, returned: tuple[object, ...]) -> Any:
    """What a function of NVRTC returned beside its status."""
    status, *values = returned
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        _, major, minor = nvrtc.nvrtcVersion()
        older = f"what is compiled is for CUDA {_CUDA}, which this brings: pip install "
        raise CudaCompileError(
            f"NVRTC {major}.{minor} failed: {nvrtc.nvrtcGetErrorString(status)[1].decode()}",
            help=None if major >= _CUDA else older + packages_of("cuda"),
        )
    return values[0] if values else None


def _text(nvrtc: Any, program: Any, what: str) -> str:
    return _read(nvrtc, program, what).rstrip(b"\0").decode(errors="replace")


def _read(nvrtc: Any, program: Any, what: str) -> bytes:
    """The "ProgramLog", the "PTX" or the "CUBIN" of a program."""
    text = bytearray(_checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}Size")(program)))
    # The bindings write into what is declared as bytes.
    _checked(nvrtc, getattr(nvrtc, f"nvrtcGet{what}")(program, text))
    return bytes(text)


def _first_errors(log: str) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return "\n".join(lines[:12])
