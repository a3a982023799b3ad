"""CUDA source to machine code, by NVRTC: without a GPU, a driver or a toolkit.

TVM's builds of tile programs are compiled by it too.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import tvm_ffi
from tvm.target import Target

from tvmtile.cache import current_store, digest
from tvmtile.codegen.cuda import FAST_MATH
from tvmtile.cuda_runtime import include_directories, load_beside_others
from tvmtile.errors import CudaCompileError, import_optional, packages_of
from tvmtile.jit.key import contents_of
from tvmtile.locks import Lock

__path__: list[str] = []
"""So that Python asks `tvmtile.compat` for `tvmtile.jit.cuda.resources`, which moved."""

PREAMBLE = """\
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
struct alignas(64) CUtensorMap_st { unsigned long long opaque[16]; };
typedef struct CUtensorMap_st CUtensorMap;
"""
"""Names for TVM's kernels from headers that NVRTC does not read: <math.h> and <cuda.h>."""

# Of these two headers TVM's kernels use what is below. CUDA's own take NVRTC a second to read, four
# fifths of the time that it needs for a GEMM.
_LIGHT = {
    "cuda/std/cstdint": """\
#pragma once
namespace cuda { namespace std {
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
} }
""",
    "cuda/std/type_traits": """\
#pragma once
namespace cuda { namespace std {
template <bool V> struct bool_constant { static constexpr bool value = V; };
template <class A, class B> struct is_same : bool_constant<false> {};
template <class A> struct is_same<A, A> : bool_constant<true> {};
template <class A, class B> constexpr bool is_same_v = is_same<A, B>::value;
template <class A, class... B> constexpr bool is_one_of = (is_same_v<A, B> || ...);
template <class A> struct without_cv { using type = A; };
template <class A> struct without_cv<const A> { using type = A; };
template <class A> struct without_cv<volatile A> { using type = A; };
template <class A> struct without_cv<const volatile A> { using type = A; };
template <class A> using without_cv_t = typename without_cv<A>::type;
template <class A> constexpr bool is_signed_integer =
    is_one_of<A, signed char, short, int, long, long long>
    || (is_same_v<A, char> && char(-1) < char(0));
template <class A> constexpr bool is_unsigned_integer =
    is_one_of<A, bool, unsigned char, unsigned short, unsigned int, unsigned long,
              unsigned long long>
    || (is_same_v<A, char> && !(char(-1) < char(0)));
template <class A> struct is_floating_point
    : bool_constant<is_one_of<without_cv_t<A>, float, double>> {};
template <class A> struct is_integral
    : bool_constant<is_signed_integer<without_cv_t<A>> || is_unsigned_integer<without_cv_t<A>>> {};
template <class A> struct is_signed
    : bool_constant<is_signed_integer<without_cv_t<A>> || is_floating_point<A>::value> {};
template <class A> struct is_unsigned : bool_constant<is_unsigned_integer<without_cv_t<A>>> {};
template <bool V, class A = void> struct enable_if {};
template <class A> struct enable_if<true, A> { using type = A; };
template <bool V, class A, class B> struct conditional { using type = A; };
template <class A, class B> struct conditional<false, A, B> { using type = B; };
} }
""",
}

_LIBRARY = re.compile(
    r"^\s*#\s*include\s*<((?:cuda|cub|thrust|cooperative_groups)\b[^>.]*)>", re.MULTILINE
)


def headers_in_memory(source: str) -> dict[str, str]:
    """Headers that stand in for CUDA's own of the same names, while a source is compiled.

    If the source, CUDA C++, includes more of CUDA's C++ library than TVM's kernels do, it gets all of
    that library's own headers.
    """
    included = set(_LIBRARY.findall(source))
    return _LIGHT if included <= _LIGHT.keys() else {}


_FOR_OTHER_COMPILERS = ("cstdint", "type_traits", "cuda.h")
"""The headers that TVM's text includes where it is not NVRTC that reads it."""

_INCLUDED = re.compile(r"^\s*#\s*include\b[ \t]*(.*)$", re.MULTILINE)


def has_foreign_headers(source: str) -> bool:
    """Tell whether a source may include what is neither CUDA's nor in memory, and so may change."""
    return not all(_is_of_cuda(name.strip()) for name in _INCLUDED.findall(source))


def _is_of_cuda(name: str) -> bool:
    name = name.partition("//")[0].strip()
    if not (name.startswith("<") and name.endswith(">")):
        return False
    header = name[1:-1]
    if header in _LIGHT or header in _FOR_OTHER_COMPILERS:
        return True
    return any((directory / header).is_file() for directory in include_directories())


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
    """The compiler's messages, with what each kernel uses."""


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
    """The reasons for other machine code of one source: NVRTC, its library, and CUDA's headers."""
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
    """The options of NVRTC: arithmetic is IEEE's, unless the source asks for what is faster."""
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
    """The value that a function of NVRTC returned beside its status."""
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


_CALLBACK = "tvm_callback_cuda_compile"


@dataclass
class Compilation:
    """One build of a tile program."""

    arch: str
    """The architecture, as "sm_90a"."""
    binary: Binary | None = None
    """The machine code. None until TVM asks, which it does only where it can load the result, and where
    nvcc compiles.
    """


_current: ContextVar[Compilation | None] = ContextVar("tvmtile_compilation", default=None)


@contextmanager
def compiling(target: Target) -> Iterator[Compilation]:
    """Compile what TVM builds in this context as tile programs.

    TVM's own callback looks for headers in a toolkit only, and lets NVRTC read a second's worth of
    them. It is put back after the last of our builds, and in the meantime compiles what other threads
    build; and where `TVM_CUDA_COMPILE_MODE=nvcc` asks for it, all.
    """
    compilation = Compilation(str(target.attrs["arch"]))
    token = _current.set(compilation)
    try:
        with _BUILDS:
            yield compilation
    finally:
        _current.reset(token)


class _Builds:
    """Keeps our callback in TVM's place while programs are built, in any number of threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0

    def __enter__(self) -> None:
        import tvm.support.nvcc  # noqa: F401 - registers the callback that ours stands before

        with self._lock:
            if self._count == 0:
                self._theirs = tvm_ffi.get_global_func(_CALLBACK)
                tvm_ffi.register_global_func(_CALLBACK, self._compile, override=True)
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                tvm_ffi.register_global_func(_CALLBACK, self._theirs, override=True)

    def _compile(self, source: str) -> Any:
        compilation = _current.get()
        if compilation is None or os.environ.get("TVM_CUDA_COMPILE_MODE", "nvrtc") != "nvrtc":
            return self._theirs(source)
        compilation.binary = compile_source(source, compilation.arch)
        return compilation.binary.cubin


_BUILDS = _Builds()
