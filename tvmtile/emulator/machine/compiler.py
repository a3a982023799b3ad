"""The host's C++ compiler: found, asked, run."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tvmtile.errors import MissingDependency


@functools.cache
def find_compiler() -> tuple[str, ...]:
    """Find the host's C++ compiler: what CXX says, or the first of c++, g++ and clang++.

    The command may have options of its own.

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
def machine_flags() -> tuple[str, ...]:
    """Let the processor convert half to float where it can: in software that is slow."""
    return _if_processor_has("f16c")


@functools.cache
def fma_flags() -> tuple[str, ...]:
    """Let the processor fuse multiplications and additions; those of ARM do so without a flag."""
    return _if_processor_has("fma")


def _if_processor_has(feature: str) -> tuple[str, ...]:
    """The option for a feature of x86, where this processor is known to have it."""
    try:
        information = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    has_it = re.search(rf"^flags\b.*\b{feature}\b", information, re.MULTILINE)
    return (f"-m{feature}",) if has_it else ()


@functools.cache
def compiler_identity() -> str:
    """The compiler's description of itself, with its version."""
    return run([*find_compiler(), "--version"]).stdout


def is_clang() -> bool:
    """Tell whether the compiler is clang, whatever it is called; else it is GCC."""
    return "clang" in compiler_identity()


def run(command: Sequence[str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a tool, and keep what it says in English: other languages would not be understood."""
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=environment
    )
