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
from dataclasses import dataclass
from pathlib import Path

from tvmtile.errors import MissingDependency, TileError

__all__ = [
    "FrontEnd",
    "build_module",
    "cache_directory",
    "compiler_identity",
    "find_compiler",
    "source_line_of",
]

_HERE = Path(__file__).resolve().parent
_INCLUDE = _HERE / "include"
_RUNTIME = _HERE / "runtime"
_COMMON_FLAGS = ("-fPIC", "-fvisibility=hidden", "-w")
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
)
_RUNTIME_FLAGS = (*_COMMON_FLAGS, "-std=c++17", "-O2", "-fno-exceptions", "-fno-rtti")


@dataclass(frozen=True)
class FrontEnd:
    """A language whose kernels are emulated, as the compiler gets to know it.

    Attributes
    ----------
    language : str
        Its name in messages.
    source_name : str
        What `#line` directives of a translated kernel call the source.
    include : Path
        The directory of its headers.
    runtime : Path
        The directory of what it adds to the machine's runtime.
    error : type
        Of a source that does not compile.
    returned_threads_pass : bool
        Whether a block's barrier does not wait for threads that have returned. Else they are a mistake.
    libraries : tuple of Path
        Directories of headers that are not ours.
    prelude : str or None
        The header that every translated kernel includes first, which is worth compiling once.
    """

    language: str
    source_name: str
    include: Path
    runtime: Path
    error: type[TileError]
    returned_threads_pass: bool = False
    libraries: tuple[Path, ...] = ()
    prelude: str | None = None

    @property
    def search_path(self) -> tuple[str, ...]:
        """Options by which the compiler finds the headers."""
        directories = (_INCLUDE, self.include, *self.libraries)
        return tuple(option for path in directories for option in ("-isystem", str(path)))


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
        "the emulator compiles kernels with a C++ compiler, and found none",
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
def compiler_identity() -> str:
    """What the compiler says that it is: its version, and "clang" or not."""
    return _run([*find_compiler(), "--version"]).stdout


def cache_directory() -> Path:
    """Where compiled modules are kept: below XDG_CACHE_HOME, or a temporary directory."""
    base = os.environ.get("XDG_CACHE_HOME")
    directory = (Path(base) if base else Path.home() / ".cache") / "tvmtile" / "emulator"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        directory = Path(tempfile.gettempdir()) / f"tvmtile-emulator-{os.getuid()}"
        directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def build_module(
    front_end: FrontEnd, translated: str, source: str, flags: Sequence[str], cache: bool
) -> Path:
    """Compile a translated source to a shared library.

    Parameters
    ----------
    front_end : FrontEnd
        The language.
    translated : str
        What `translate` made.
    source : str
        What it was made from, for messages.
    flags : sequence of str
        The standard of C++ and options of the language.
    cache : bool
        Whether a module that was compiled before may be used.

    Returns
    -------
    Path
        The library.

    Raises
    ------
    TileError
        The front end's, if the source does not compile; the message has the compiler's first error.
    MissingDependency
        If there is no C++ compiler.
    """
    directory = cache_directory()
    flags = (*_KERNEL_FLAGS, *flags, *_machine_flags(), *front_end.search_path)
    key = _digest([translated, *flags, compiler_identity(), *_sources_of(front_end)])
    library = directory / f"{key}.so"
    if cache and library.exists():
        return library
    runtime = _build_runtime(front_end, directory)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        unit, compiled = Path(scratch) / "kernel.cc", Path(scratch) / "kernel.o"
        linked = Path(scratch) / "kernel.so"
        unit.write_text(translated, encoding="utf-8")
        compiled_headers = _precompiled(front_end, flags, directory)
        done = _run(
            [*find_compiler(), *compiled_headers, *flags, "-c", str(unit), "-o", str(compiled)]
        )
        if done.returncode != 0:
            raise _compile_error(front_end, done.stderr, source)
        _link(front_end, [compiled, *sorted(runtime.glob("*.o"))], linked)
        # A reader sees all of it or nothing.
        linked.replace(library)
    return library


def _build_runtime(front_end: FrontEnd, directory: Path) -> Path:
    """Compile the runtime's objects, once a version."""
    flags = (*_RUNTIME_FLAGS, *_machine_flags(), *front_end.search_path, "-I", str(_RUNTIME))
    key = _digest([*flags, compiler_identity(), *_sources_of(front_end)])
    objects = directory / f"runtime-{key}"
    if objects.exists():
        return objects
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        built = Path(scratch) / "objects"
        built.mkdir()
        sources = [str(p) for d in (_RUNTIME, front_end.runtime) for p in sorted(d.glob("*.cc"))]
        done = _run([*find_compiler(), *flags, "-c", *sources], cwd=built)
        if done.returncode != 0:
            raise front_end.error(
                f"the emulator's runtime does not compile with {find_compiler()[0]}\n{done.stderr}",
                help="use g++ 12 or newer, or clang++ 16 or newer",
            )
        try:
            built.rename(objects)
        except OSError:  # another process was quicker
            if not objects.exists():
                raise
    return objects


def _precompiled(front_end: FrontEnd, flags: Sequence[str], directory: Path) -> tuple[str, ...]:
    """Options by which the compiler finds the front end's prelude compiled beforehand, with GCC."""
    if front_end.prelude is None or "clang" in compiler_identity():
        return ()
    key = _digest([*flags, compiler_identity(), *_sources_of(front_end)])
    headers = directory / f"headers-{key}"
    compiled = headers / f"{front_end.prelude}.gch"
    if not compiled.exists():
        compiled.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            built = Path(scratch) / "header.gch"
            header = front_end.include / front_end.prelude
            done = _run(
                [*find_compiler(), *flags, "-x", "c++-header", str(header), "-o", str(built)]
            )
            if done.returncode != 0:
                raise front_end.error(f"the emulator's headers do not compile\n{done.stderr}")
            built.replace(compiled)
    return ("-I", str(headers))


def _link(front_end: FrontEnd, objects: Iterable[Path], library: Path) -> None:
    command = [*find_compiler(), "-shared", "-o", str(library), *map(str, objects), "-lm"]
    done = _run(command)
    if done.returncode != 0:
        raise front_end.error(f"the kernel does not link\n{done.stderr}")


def _run(command: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    # Messages in the user's language would not be understood.
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=environment
    )


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _sources_of(front_end: FrontEnd) -> tuple[str, ...]:
    """All that kernels are compiled and linked with."""
    directories = (_INCLUDE, _RUNTIME, front_end.include, front_end.runtime)
    return tuple(text for directory in directories for text in _contents(directory))


def _contents(directory: Path) -> tuple[str, ...]:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return tuple(path.read_text(encoding="utf-8") for path in files)


def _compile_error(front_end: FrontEnd, messages: str, source: str) -> TileError:
    """The compiler's first error, at its line of the source."""
    error = re.search(r"^(?:.*:)?(\d+):\d+: (?:fatal )?error: (.*)$", messages, re.MULTILINE)
    here = re.escape(front_end.source_name)
    # A mistake that shows in a template of ours was made where that was asked for.
    found = rf"^{here}:(\d+):\d+: +(?:required from|note: in instantiation|(?:fatal )?error)"
    place = re.search(found, messages, re.MULTILINE)
    refused = f"the {front_end.language} source does not compile"
    if error is None or place is None:
        return front_end.error(f"{refused}\n{messages.strip()}")
    line = int(place[1])
    return front_end.error(
        f"{refused}: {error[2]}\n  line {line}: {source.splitlines()[line - 1].strip()}"
    )


def source_line_of(front_end: FrontEnd, library: Path, instruction: int) -> int:
    """The line of the source that an instruction comes from, 0 if that can't be found out."""
    tool = shutil.which("addr2line") or shutil.which("llvm-addr2line")
    if tool is None:
        return 0
    # An access is reported with the address that its call returns to. Functions of our headers
    # are inlined into the kernel: the innermost line that is the kernel's is wanted.
    done = _run([tool, "-i", "-e", str(library), hex(instruction - 1)])
    name = re.escape(front_end.source_name)
    found = re.search(rf"^(?:.*/)?{name}:(\d+)", done.stdout, re.MULTILINE)
    return int(found[1]) if found else 0
