"""CUDA source to machine code, by NVRTC: without a GPU, a driver or a toolkit."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from typing import Any

from tvmtile.errors import CudaCompileError, import_optional
from tvmtile.jit.cuda.headers import PREAMBLE, headers_in_memory, include_directories

__all__ = ["Binary", "compile_source"]


@dataclass(frozen=True)
class Binary:
    """Machine code of an NVIDIA GPU.

    Attributes
    ----------
    cubin : bytes
        An ELF file.
    log : str
        What the compiler says, with what each kernel uses.
    """

    cubin: bytes
    log: str


def compile_source(source: str, arch: str) -> Binary:
    """Compile CUDA C++ for an architecture.

    The environment adds to the options, as it does to TVM's: `TVM_CUDA_PTXAS_REG_LEVEL`,
    `TVM_CUDA_PTXAS_EXTRA_OPTS` and `TVM_CUDA_NVRTC_EXTRA_OPTS`.

    Parameters
    ----------
    source : str
        What TVM generates.
    arch : str
        As "sm_90a".

    Raises
    ------
    CudaCompileError
        If NVRTC refuses the source; the message has its first errors.
    MissingDependency
        If NVRTC or CUDA's headers are not installed.
    """
    nvrtc = import_optional("cuda.bindings.nvrtc", "cuda", "compiling for CUDA")
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
        options = [option.encode() for option in _options(arch)]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _text(nvrtc, program)
        if result == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION:
            raise CudaCompileError(
                f"NVRTC refuses the kernel for {arch}:\n{_first_errors(log)}",
                help="TVM_BACKTRACE=1 shows where it was compiled",
            )
        _checked(nvrtc, (result,))
        cubin = bytearray(_checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program)))
        # The bindings write into what is declared as bytes.
        _checked(nvrtc, nvrtc.nvrtcGetCUBIN(program, cubin))
        return Binary(bytes(cubin), log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _options(arch: str) -> list[str]:
    """What NVRTC is told, as TVM tells it."""
    ptxas = [
        "-v",
        f"--register-usage-level={os.environ.get('TVM_CUDA_PTXAS_REG_LEVEL', '10')}",
        *shlex.split(os.environ.get("TVM_CUDA_PTXAS_EXTRA_OPTS", "")),
    ]
    return [
        f"--gpu-architecture={arch}",
        "-default-device",
        "--device-int128",
        # Functions such as sin stay exact: --use_fast_math would take approximations for them.
        "--ftz=true",
        "--prec-div=false",
        "--prec-sqrt=false",
        "--disable-warnings",
        *(f"-I{directory}" for directory in include_directories()),
        # The headers of narrow floats use these without including what defines them.
        *(f"-D__NV_SILENCE_{part}DEPRECATION_{end}=" for part in ("", "HOST_") for end in _ENDS),
        *(f"--ptxas-options={flag}" for flag in ptxas),
        *shlex.split(os.environ.get("TVM_CUDA_NVRTC_EXTRA_OPTS", "")),
    ]


_ENDS = ("BEGIN", "END")


def _checked(nvrtc: Any, returned: tuple[Any, ...]) -> Any:
    """What a function of NVRTC returned beside its status."""
    status, *values = returned
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CudaCompileError(f"NVRTC failed: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
    return values[0] if values else None


def _text(nvrtc: Any, program: Any) -> str:
    log = bytearray(_checked(nvrtc, nvrtc.nvrtcGetProgramLogSize(program)))
    _checked(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
    return log.rstrip(b"\0").decode(errors="replace")


def _first_errors(log: str, limit: int = 12) -> str:
    lines = [line for line in log.splitlines() if line.strip()]
    return "\n".join(lines[:limit])
