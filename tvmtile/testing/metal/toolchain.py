"""The host's C++ compiler: found, asked, and its results kept.

A kernel's translation unit is compiled with ThreadSanitizer's instrumentation and linked with the
emulator's runtime in place of ThreadSanitizer's. Compiled modules are kept in a cache directory
under a hash of everything that went into them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tvmtile.errors import MetalCompileError, MissingDependency

__all__ = ["build_module", "cache_directory", "find_compiler", "source_line_of"]

_HERE = Path(__file__).resolve().parent
_INCLUDE = _HERE / "include"
_RUNTIME = _HERE / "runtime"
_COMMON_FLAGS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-w")
# At -O1 the compiler keeps memory accesses where the source has them, and is quick.
_KERNEL_FLAGS = (
    *_COMMON_FLAGS,
    "-O1",
    "-g1",
    "-fno-exceptions",
    "-fno-threadsafe-statics",
    "-ffp-contract=off",
    "-fsanitize=thread,alignment,bounds,integer-divide-by-zero",
    # A frame of any size touches the end of its stack.
    "-fstack-clash-protection",
    "-isystem",
    str(_INCLUDE),
)
_RUNTIME_FLAGS = (*_COMMON_FLAGS, "-O2", "-fno-exceptions", "-fno-rtti")


@functools.cache
def find_compiler() -> tuple[str, ...]:
    """Find the host's C++ compiler: what CXX says, or the first of c++, g++ and clang++.

    Returns
    -------
    tuple of str
        The command, which may have options of its own.

    Raises
    ------
    MissingDependency
        If there is none.
    """
    named = shlex.split(os.environ.get("CXX", ""))
    for candidate in (named, ["c++"], ["g++"], ["clang++"]):
        if candidate and shutil.which(candidate[0]):
            return tuple(candidate)
    raise MissingDependency(
        "the Metal emulator compiles kernels with a C++ compiler, and found none",
        help="install g++ 12 or newer, or clang++ 16 or newer, or name a compiler by CXX",
    )


@functools.cache
def _machine_flags() -> tuple[str, ...]:
    """Let the processor convert half to float where it can: in software that is slow."""
    try:
        information = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return ("-mf16c",) if re.search(r"^flags\b.*\bf16c\b", information, re.MULTILINE) else ()


@functools.cache
def _compiler_identity() -> str:
    return _run([*find_compiler(), "--version"]).stdout


def _language_flags() -> tuple[str, ...]:
    """Metal's arithmetic: half is rounded after each operation, and 1.0 is a float.

    Clang has no flag for the second. GCC computes with half in float since version 13, and lets calls
    pass that are ambiguous unless it is told to be pedantic.
    """
    if "clang" in _compiler_identity():
        return ("-Xclang", "-ffloat16-excess-precision=none")
    return ("-fsingle-precision-constant", "-fexcess-precision=16", "-pedantic-errors")


def _standard_of(source: str) -> tuple[str, ...]:
    """Metal 4's matrix operations have a structure as a template's argument, which is C++20."""
    return ("-std=c++20",) if "<MetalPerformancePrimitives/" in source else ()


def cache_directory() -> Path:
    """Where compiled modules are kept: below XDG_CACHE_HOME, or a temporary directory."""
    base = os.environ.get("XDG_CACHE_HOME")
    directory = (Path(base) if base else Path.home() / ".cache") / "tvmtile" / "metal"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        directory = Path(tempfile.gettempdir()) / f"tvmtile-metal-{os.getuid()}"
        directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def build_module(translated: str, source: str, cache: bool) -> Path:
    """Compile a translated source to a shared library.

    Parameters
    ----------
    translated : str
        What `translate` made.
    source : str
        What it was made from, for messages.
    cache : bool
        Whether a module that was compiled before may be used.

    Returns
    -------
    Path
        The library.

    Raises
    ------
    MetalCompileError
        If the source does not compile; the message has the compiler's first error.
    MissingDependency
        If there is no C++ compiler.
    """
    directory = cache_directory()
    flags = (*_KERNEL_FLAGS, *_standard_of(source), *_language_flags(), *_machine_flags())
    key = _digest([translated, *_headers(), *flags, _compiler_identity(), *_runtime_sources()])
    library = directory / f"{key}.so"
    if cache and library.exists():
        return library
    runtime = _build_runtime(directory)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        unit, compiled = Path(scratch) / "kernel.cc", Path(scratch) / "kernel.o"
        linked = Path(scratch) / "kernel.so"
        unit.write_text(translated, encoding="utf-8")
        done = _run([*find_compiler(), *flags, "-c", str(unit), "-o", str(compiled)])
        if done.returncode != 0:
            raise _compile_error(done.stderr, source)
        _link([compiled, *sorted(runtime.glob("*.o"))], linked)
        # A reader sees all of it or nothing.
        linked.replace(library)
    return library


def _build_runtime(directory: Path) -> Path:
    """Compile the runtime's objects, once a version."""
    flags = (*_RUNTIME_FLAGS, *_machine_flags())
    key = _digest([*_headers(), *flags, _compiler_identity(), *_runtime_sources()])
    objects = directory / f"runtime-{key}"
    if objects.exists():
        return objects
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        built = Path(scratch) / "objects"
        built.mkdir()
        sources = [str(path) for path in sorted(_RUNTIME.glob("*.cc"))]
        done = _run([*find_compiler(), *flags, "-c", *sources], cwd=built)
        if done.returncode != 0:
            raise MetalCompileError(
                f"the emulator's runtime does not compile with {find_compiler()[0]}\n{done.stderr}",
                help="use g++ 12 or newer, or clang++ 16 or newer",
            )
        try:
            built.rename(objects)
        except OSError:  # another process was quicker
            if not objects.exists():
                raise
    return objects


def _link(objects: Iterable[Path], library: Path) -> None:
    command = [*find_compiler(), "-shared", "-o", str(library), *map(str, objects), "-lm"]
    done = _run(command)
    if done.returncode != 0:
        raise MetalCompileError(f"the kernel does not link\n{done.stderr}")


def _run(command: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    # Messages in the user's language would not be understood.
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=environment
    )


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _headers() -> tuple[str, ...]:
    return _contents(_INCLUDE)


@functools.cache
def _runtime_sources() -> tuple[str, ...]:
    return _contents(_RUNTIME)


def _contents(directory: Path) -> tuple[str, ...]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return tuple(path.read_text(encoding="utf-8") for path in files)


def _compile_error(messages: str, source: str) -> MetalCompileError:
    """The compiler's first error, at its line of the Metal source."""
    from tvmtile.testing.metal.translate import SOURCE_NAME

    error = re.search(r"^(?:.*:)?(\d+):\d+: (?:fatal )?error: (.*)$", messages, re.MULTILINE)
    here = re.escape(SOURCE_NAME)
    # A mistake that shows in a template of ours was made where that was asked for.
    found = rf"^{here}:(\d+):\d+: +(?:required from|note: in instantiation|(?:fatal )?error)"
    place = re.search(found, messages, re.MULTILINE)
    if error is None or place is None:
        return MetalCompileError(f"the Metal source does not compile\n{messages.strip()}")
    line = int(place[1])
    return MetalCompileError(
        f"the Metal source does not compile: {error[2]}\n"
        f"  line {line}: {source.splitlines()[line - 1].strip()}"
    )


def source_line_of(library: Path, instruction: int) -> int:
    """The line of the Metal source that an instruction comes from, 0 if that can't be found out."""
    from tvmtile.testing.metal.translate import SOURCE_NAME

    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if tool is None:
        return 0
    # An access is reported with the address that its call returns to. Functions of our headers
    # are inlined into the kernel: the innermost line that is the kernel's is wanted.
    done = _run([tool, "-i", "-e", str(library), hex(instruction - 1)])
    found = re.search(rf"^(?:.*/)?{re.escape(SOURCE_NAME)}:(\d+)", done.stdout, re.MULTILINE)
    return int(found[1]) if found else 0
