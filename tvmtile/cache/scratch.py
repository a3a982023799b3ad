"""A directory for what a process needs while it runs, and nobody else may see or change."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_of_processes: dict[int, Path] = {}


def scratch_directory() -> Path:
    """A directory of this process's own, until it ends; a forked one has another."""
    process = os.getpid()
    directory = _of_processes.get(process)
    if directory is None or not directory.exists():  # some systems remove what is old
        directory = _of_processes[process] = Path(tempfile.mkdtemp(prefix="tvmtile-"))
        atexit.register(_remove, process, directory)
    return directory


@contextlib.contextmanager
def scratch_file(data: bytes, name: str) -> Iterator[Path]:
    """A file with these contents, for those who read nothing but files."""
    with tempfile.TemporaryDirectory(dir=scratch_directory()) as directory:
        path = Path(directory) / name
        path.write_bytes(data)
        yield path


def _remove(process: int, directory: Path) -> None:
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)
