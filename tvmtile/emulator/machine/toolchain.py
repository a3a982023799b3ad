"""A translated kernel becomes a library that can be launched.

Its translation unit is compiled with ThreadSanitizer's instrumentation, and its library needs the
emulator's runtime, another library, in place of ThreadSanitizer's. Libraries and precompiled headers
are kept in tvmtile's cache, each under a digest of all that went into it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import graphlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tvmtile.cache import CacheEntry, current_store, digest, scratch_directory, scratch_file
from tvmtile.emulator.machine.compiler import (
    compiler_identity,
    find_compiler,
    fma_flags,
    is_clang,
    machine_flags,
    run,
)
from tvmtile.errors import TileError
from tvmtile.locks import Lock

_HERE = Path(__file__).resolve().parent
_INCLUDE = _HERE / "include"
_RUNTIME = _HERE / "runtime"
_KIND = "emulator"
_LIBRARY = "kernel.so"
_COMMON_FLAGS = ("-fPIC", "-w")
# At -O0 the compiler keeps memory accesses where the source has them, and is quick: attention takes 1.2
# times as long at -Og, 1.5 times at -O1, and runs for as long, since it does so in the runtime.
_KERNEL_FLAGS = (
    *_COMMON_FLAGS,
    "-fvisibility=hidden",
    "-fwhole-program",  # functions that no kernel calls are left out
    "-O0",
    "-g1",
    "-fno-exceptions",
    "-fno-threadsafe-statics",
    "-ffp-contract=off",
    "-fsanitize=thread,alignment,bounds,integer-divide-by-zero",
    # A frame of any size touches the end of its stack.
    "-fstack-clash-protection",
)
# What -ftrapv has GCC call is the runtime's, not libgcc's, whose names they are.
_OVERFLOWS = ("addv{}3", "subv{}3", "mulv{}3", "negv{}2")
_WRAPPED = [f"-Wl,--wrap=__{name.format(mode)}" for name in _OVERFLOWS for mode in ("si", "di")]
# The libraries of C++ and of the sanitizers are the runtime's.
_LINK_FLAGS = ("-shared", "-Wl,-z,now", "-nodefaultlibs", "-lm", "-lc", "-lgcc", *_WRAPPED)
_ON_DARWIN = sys.platform == "darwin"
if _ON_DARWIN:
    _LINK_FLAGS = ("-shared", "-nodefaultlibs", "-lSystem")
# Kernels see all of the runtime; what it calls of its own nothing takes the place of.
_RUNTIME_FLAGS = (
    *_COMMON_FLAGS,
    "-std=c++17",
    "-O2",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-semantic-interposition",
)


@dataclass(frozen=True)
class FrontEnd:
    """A language whose kernels are emulated, as the compiler gets to know it."""

    language: str
    """Its name in messages."""
    source_name: str
    """The name of the source in `#line` directives of a translated kernel."""
    include: Path
    """The directory of its headers."""
    runtime: Path
    """The directory of what it adds to the machine's runtime."""
    error: type[TileError]
    """Of a source that does not compile."""
    returned_threads_pass: bool = False
    """Whether a block's barrier does not wait for threads that have returned. Else they are a mistake.
    """
    recursion: bool = True
    """Whether a function may call itself."""
    libraries: tuple[Path, ...] = ()
    """Directories of headers that are not ours."""
    prelude: str | None = None
    """The header that translated kernels include first, which is worth compiling once."""

    @property
    def search_path(self) -> tuple[str, ...]:
        """Options by which the compiler finds the headers."""
        directories = (_INCLUDE, self.include, *self.libraries)
        return tuple(option for path in directories for option in ("-isystem", str(path)))


LOCK = Lock()
"""One launch at a time: the runtime has one state."""
_MACHINE = FrontEnd("machine", "", _INCLUDE, _RUNTIME, TileError)
"""The machine itself, as a language that adds nothing."""


def contraction() -> tuple[str, ...]:
    """Flags by which a product and a sum become one operation, as compilers of GPUs have it.

    The environment asks for them. They come behind the others, which they replace.
    """
    asked_for = os.environ.get("TVMTILE_EMULATOR_CONTRACT") == "1"
    return ("-O2", "-ffp-contract=fast", *fma_flags()) if asked_for else ()


def build_module(
    front_end: FrontEnd, translated: str, source: str, flags: Sequence[str], cache: bool
) -> Path:
    """Compile a translated source to a shared library.

    `source` is what was translated, for messages; the flags are the standard of C++ and the language's.

    Raises
    ------
    TileError
        The front end's, if the source does not compile; the message has the compiler's first error.
    MissingDependency
        If there is no C++ compiler.
    """
    calls = () if front_end.recursion or is_clang() else ("-fcallgraph-info",)
    # Binutils 2.40 takes another file's name for that of a line that clang's DWARF 5 has.
    lines = ("-gdwarf-4",) if is_clang() else ()
    flags = (*_KERNEL_FLAGS, *lines, *calls, *flags, *machine_flags())
    key = _key(front_end, translated, _runtime_name(front_end), *_LINK_FLAGS, *flags)
    store = current_store()

    def kept(entry: CacheEntry) -> Path:
        library = _own_directory() / _LIBRARY
        library.write_bytes(entry.files[_LIBRARY])
        load(front_end, library)
        return library

    found = store.load(_KIND, key, kept) if store is not None and cache else None
    if found is not None:
        return found
    library = _compiled(front_end, translated, source, flags)
    if store is not None:
        facts = {"name": _names(source), "target": front_end.language}
        store.put(_KIND, key, facts, {_LIBRARY: library.read_bytes()})
    return library


def load(front_end: FrontEnd, library: Path) -> ctypes.CDLL:
    """Load the library of a kernel, and before it the runtime that it needs by name."""
    _loaded(_runtime(front_end) / _runtime_name(front_end))
    with LOCK:  # its constants are made, which is not the work of a kernel
        return ctypes.CDLL(str(library))


_loaded = functools.cache(ctypes.CDLL)


def _key(front_end: FrontEnd, *parts: str) -> str:
    return digest(*parts, "", compiler_identity(), *_sources_of(front_end))


def _names(source: str) -> str:
    """The kernels of a source, for who looks at the cache."""
    return ", ".join(re.findall(r"\bvoid (?:__launch_bounds__\([^)]*\) )?(\w+)\(", source))


def _compiled(front_end: FrontEnd, translated: str, source: str, flags: Sequence[str]) -> Path:
    flags = (*_precompiled(front_end, flags), *flags, *front_end.search_path)
    runtime = _runtime(front_end) / _runtime_name(front_end)
    with scratch_file(translated.encode(), "kernel.cc") as unit:
        library = _own_directory() / _LIBRARY
        made = (str(runtime), "-o", str(library), *_LINK_FLAGS)
        if _ON_DARWIN:  # Told to sanitize while it links, clang there takes its own runtime in.
            compiled = str(library.with_suffix(".o"))
            done = run([*find_compiler(), *flags, "-c", str(unit), "-o", compiled])
            if done.returncode == 0:
                done = run([*find_compiler(), compiled, *made])
        else:
            done = run([*find_compiler(), *flags, str(unit), *made])
        if done.returncode != 0:
            raise _compile_error(front_end, done.stderr, source)
        for graph in library.parent.glob("*.ci"):
            _check_recursion(front_end, graph.read_text(encoding="utf-8"), source)
    return library


def _check_recursion(front_end: FrontEnd, graph: str, source: str) -> None:
    """Refuse a function that calls itself, or one that does; `graph` is what GCC found to be called."""
    names = dict(re.findall(r'^node: { title: "(.*?)" label: "(.*?)\\n', graph, re.MULTILINE))
    edge = r'^edge: { sourcename: "(.*?)" targetname: "(.*?)" label: "(?:.*/)?(.*):(\d+):\d+"'
    lines = {
        (by, called): (file, int(at))
        for by, called, file, at in re.findall(edge, graph, re.MULTILINE)
    }
    calls: dict[str, set[str]] = {}
    for by, called in lines:
        calls.setdefault(by, set()).add(called)
    try:
        graphlib.TopologicalSorter(calls).prepare()
    except graphlib.CycleError as error:
        cycle = error.args[1][::-1]
        file, line = lines[cycle[0], cycle[1]]
        text = f"\n  line {line}: {source.splitlines()[line - 1].strip()}"
        raise front_end.error(
            f"the {front_end.language} source does not compile: {names[cycle[0]]!r} calls itself"
            f"{text if file == front_end.source_name else ''}",
            help=f"{front_end.language} has no recursion: write a loop",
        ) from None


@functools.cache
def _runtime_name(front_end: FrontEnd) -> str:
    """A name that no other version of the runtime's library has."""
    key = _key(front_end, *_RUNTIME_FLAGS, *machine_flags())
    return f"tvmtile-{front_end.language.lower()}-{key[:16]}.so"


def _runtime(front_end: FrontEnd) -> Path:
    """A directory with the library of the emulator's runtime."""
    name = _runtime_name(front_end)

    def link_into(directory: Path) -> None:
        with tempfile.TemporaryDirectory(dir=scratch_directory()) as own:
            _compile_sources(front_end, Path(own))
            objects = sorted((*_machine().glob("*.o"), *Path(own).glob("*.o")))
            named = [f"-Wl,-soname,{name}", "-Wl,-Bsymbolic"]
            if _ON_DARWIN:
                named = [f"-Wl,-install_name,{name}"]
            flags = ("-shared", *named, "-lm")
            done = run([*find_compiler(), *map(str, objects), *flags, "-o", str(directory / name)])
        if done.returncode != 0:
            raise front_end.error(f"the emulator's runtime does not link\n{done.stderr}")

    return _prepared(front_end, "runtime", (name,), link_into)


def _machine() -> Path:
    """A directory with the objects of the machine, which is the same for all languages."""
    flags = (*_RUNTIME_FLAGS, *machine_flags())
    return _prepared(_MACHINE, "machine", flags, functools.partial(_compile_sources, _MACHINE))


def _compile_sources(front_end: FrontEnd, directory: Path) -> None:
    """Compile the sources of a runtime to objects in a directory."""
    flags = (*_RUNTIME_FLAGS, *machine_flags(), *front_end.search_path, "-I", str(_RUNTIME))

    def compiled(source: Path) -> subprocess.CompletedProcess[str]:
        return run([*find_compiler(), *flags, "-c", str(source)], cwd=directory)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(compiled, sorted(front_end.runtime.glob("*.cc"))))
    if failed := [done for done in results if done.returncode != 0]:
        raise front_end.error(
            f"the emulator's runtime does not compile with {find_compiler()[0]}\n"
            f"{failed[0].stderr}",
            help="use g++ 12 or newer, or clang++ 16 or newer",
        )


def _precompiled(front_end: FrontEnd, flags: Sequence[str]) -> tuple[str, ...]:
    """Options by which the compiler finds the front end's prelude compiled beforehand, with GCC."""
    if front_end.prelude is None or is_clang():
        return ()
    header = front_end.include / front_end.prelude

    def compile_into(directory: Path) -> None:
        made = (*front_end.search_path, "-x", "c++-header", str(header))
        compiled = str(directory / f"{header.name}.gch")
        done = run([*find_compiler(), *flags, *made, "-o", compiled])
        if done.returncode != 0:
            raise front_end.error(f"the emulator's headers do not compile\n{done.stderr}")

    return ("-I", str(_prepared(front_end, "headers", flags, compile_into)))


def _prepared(
    front_end: FrontEnd, name: str, flags: Sequence[str], compile_into: Callable[[Path], None]
) -> Path:
    """A directory of this process with what all kernels of a language share, compiled or kept."""
    key = _key(front_end, name, *flags)
    directory = scratch_directory() / key / name
    if directory.exists():
        return directory
    made = _own_directory()
    (made / name).mkdir()
    store = current_store()
    with _one_at_a_time(key):
        entry = None if store is None else store.get(_KIND, key)
        if entry is None:
            compile_into(made / name)
            files = {path.name: path.read_bytes() for path in (made / name).iterdir()}
            if store is not None:
                store.put(_KIND, key, {"name": name, "target": front_end.language}, files)
    if entry is not None:
        for file, data in entry.files.items():
            (made / name / file).write_bytes(data)
    with contextlib.suppress(OSError):  # another thread was quicker
        made.rename(directory.parent)
    return directory


def _one_at_a_time(key: str) -> contextlib.AbstractContextManager[None]:
    """Other processes wait, and find in the cache what this one compiles: it takes many seconds."""
    store = current_store()
    return contextlib.nullcontext() if store is None else store.alone(key)


def _own_directory() -> Path:
    """A new directory that lasts as long as the process."""
    return Path(tempfile.mkdtemp(dir=scratch_directory()))


@functools.cache
def _sources_of(front_end: FrontEnd) -> tuple[str, ...]:
    """All that kernels are compiled and linked with; of headers that are not ours, names and sizes."""
    directories = (_INCLUDE, _RUNTIME, front_end.include, front_end.runtime)
    ours = (text for directory in directories for text in _contents(directory))
    headers = (path for directory in front_end.libraries for path in sorted(directory.glob("*.h*")))
    return (*ours, *(f"{path.name} {path.stat().st_size}" for path in headers))


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
    done = run([tool, "-i", "-e", str(library), hex(instruction - 1)])
    name = re.escape(front_end.source_name)
    found = re.search(rf"^(?:.*/)?{name}:(\d+)", done.stdout, re.MULTILINE)
    return int(found[1]) if found else 0
