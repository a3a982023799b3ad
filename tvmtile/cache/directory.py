"""Directories that nobody else can change, and the files in them.

Cached files are run later: whoever can write there runs code as this user. So a directory is
used if this user owns it and no other may write to it, which is asked of the open directory, and all
that lies in it is reached through that descriptor: its path may mean another directory a moment later.
A process has one of its own for what it needs while it runs.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_WRITABLE_BY_OTHERS = 0o022


@dataclass(frozen=True)
class Directory:
    """An open directory of this user's. Names are of what lies in it, and no paths."""

    _descriptor: int

    @contextlib.contextmanager
    def directory(self, name: str, *, make: bool = False) -> Iterator[Directory]:
        """Open a directory in it."""
        with _opened(_plain(name), make, self._descriptor) as found:
            yield found

    def names(self) -> list[str]:
        """The names of its entries."""
        return os.listdir(self._descriptor)  # noqa: PTH208 - no path

    def status(self, name: str) -> os.stat_result:
        """The system's status of a file in it."""
        return os.stat(_plain(name), dir_fd=self._descriptor, follow_symlinks=False)

    def read(self, name: str) -> bytes:
        """The contents of a file."""
        with os.fdopen(self._file(name, os.O_RDONLY), "rb") as file:
            return file.read()

    def write(self, name: str, data: bytes) -> None:
        """Make a file, which must not be there."""
        with os.fdopen(self._file(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(data)

    def touch(self, name: str) -> None:
        """Let a file be one that was used just now."""
        os.utime(_plain(name), dir_fd=self._descriptor, follow_symlinks=False)

    def move(self, name: str, target: Directory, new_name: str) -> None:
        """Give what lies in it to another directory, at once; what is there must be empty."""
        ends = {"src_dir_fd": self._descriptor, "dst_dir_fd": target._descriptor}
        os.rename(_plain(name), _plain(new_name), **ends)  # noqa: PTH104 - no paths

    def delete(self, name: str) -> None:
        """Delete a file, a link, or a directory with all that is in it."""
        try:
            os.unlink(_plain(name), dir_fd=self._descriptor)
        except (IsADirectoryError, PermissionError):  # the latter on macOS
            with self.directory(name) as found:
                for each in found.names():
                    found.delete(each)
            os.rmdir(name, dir_fd=self._descriptor)

    @contextlib.contextmanager
    def locked(self, name: str, patience: float) -> Iterator[None]:
        """Hold a lock, which is a file in it.

        Raises
        ------
        TimeoutError
            If another process has held it for so many seconds.
        """
        import fcntl

        descriptor = self._file(name, os.O_RDWR | os.O_CREAT)
        try:
            end = time.monotonic() + patience
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise TimeoutError from None
                    time.sleep(0.05)
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked process has the same file open
            os.close(descriptor)

    def _file(self, name: str, flags: int) -> int:
        flags |= os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(_plain(name), flags, 0o600, dir_fd=self._descriptor)


@contextlib.contextmanager
def open_directory(path: Path, *, make: bool = False) -> Iterator[Directory]:
    """Open a directory.

    Raises
    ------
    OSError
        If it is not there, another user owns it, or others may write to it.
    """
    if make:
        path.parent.mkdir(parents=True, exist_ok=True)
    with _opened(path, make) as found:
        yield found


@contextlib.contextmanager
def _opened(path: str | Path, make: bool, within: int | None = None) -> Iterator[Directory]:
    if make:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700, dir_fd=within)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=within)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "another user owns it")
        if status.st_mode & _WRITABLE_BY_OTHERS:
            raise PermissionError(errno.EPERM, "others may write to it; `chmod -R go-w` forbids it")
        yield Directory(descriptor)
    finally:
        os.close(descriptor)


def _plain(name: str) -> str:
    """A name, which must not lead to another directory."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} is not the name of a file")
    return name


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
