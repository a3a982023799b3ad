"""Entries on disk: files under the digest of what they were made from.

An entry is a directory, `<kind>/<key>`, with its files and a manifest of their digests. It is written
under another name and renamed, so that others see all of it or nothing, and is never changed. It is
read whole, and what differs from its digest, or is of no use for whatever reason, is removed and
counts as absent. Processes need no locks: of two that write one entry the first one's stays, and they
were made from the same.

Where the disk is full, or nothing may be written, there is a warning for the process, and no entry. So
it is where others may write (see `tvmtile.cache.directory`): entries are code.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tvmtile.cache.directory import Directory, open_directory
from tvmtile.errors import warn

Used = TypeVar("Used")

KINDS = ("kernels", "cubins", "emulator", "tuned", "sources")
"""Kinds of entries: compiled programs, compiled CUDA sources, what emulators compiled, results of the
autotuner, and digests of compilers."""

_MANIFEST = "manifest"
_UNFINISHED = "unfinished"
_ABANDONED_AFTER = 3600.0
"""Seconds after which nobody is still writing an entry."""
_PATIENCE = 60.0
"""Seconds to wait for another process, which may have been stopped, to make an entry."""
_BEING_REMOVED = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)
"""Errors of writing an entry while others remove the cache, or such an entry to make room."""


@dataclass(frozen=True)
class CacheEntry:
    """An entry that was found under a key."""

    facts: Mapping[str, Any]
    """The facts of the entry, as JSON holds them."""
    files: Mapping[str, bytes]
    """The contents of its files, by name."""


def digest(*parts: str | bytes) -> str:
    """A key for texts and bytes: no other sequence of parts has the same."""
    hashed = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hashed.update(b"%d:" % len(data))
        hashed.update(data)
    return hashed.hexdigest()


class Store:
    """The entries below a directory.

    Parameters
    ----------
    directory : Path
        Made when it is needed.
    limit : int
        Bytes. Where there are more, the entries go that were not used for the longest time.
    """

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        self._written_since_check = limit  # the first entry that a process writes makes it look
        self._warned = False

    def load(self, kind: str, key: str, use: Callable[[CacheEntry], Used]) -> Used | None:
        """The result of `use` for the entry under a key; None where no entry gives one.

        An entry of which it raises is removed: the next process would fare no better.
        """
        entry = self.get(kind, key)
        if entry is None:
            return None
        try:
            return use(entry)
        except Exception:  # noqa: BLE001 - whatever is wrong, it is made again
            with self._kind(kind) as entries:
                self._discard(kind, key, entries)
            return None

    def get(self, kind: str, key: str) -> CacheEntry | None:
        """The entry under a key, or None where there is no sound one."""
        try:
            with self._kind(kind) as entries:
                return self._read(kind, key, entries)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn_of(error, "read", "its work is done again")
            return None

    def _read(self, kind: str, key: str, entries: Directory) -> CacheEntry | None:
        try:
            with entries.directory(key) as files:
                manifest = _manifest(files)
                if manifest["key"] != key:
                    raise ValueError("an entry for another key")
                contents = {
                    name: _checked(files.read(name), digest_of_file)
                    for name, digest_of_file in manifest["files"].items()
                }
                with contextlib.suppress(OSError):
                    files.touch(_MANIFEST)
                return CacheEntry(manifest["facts"], contents)
        except FileNotFoundError:
            if key in entries.names():  # a part of it is missing
                self._remove(key, entries)
        except Exception:  # noqa: BLE001 - whatever is wrong, it is made again
            self._discard(kind, key, entries)
        return None

    def put(
        self, kind: str, key: str, facts: Mapping[str, object], files: Mapping[str, bytes]
    ) -> CacheEntry | None:
        """Keep files under a key.

        Parameters
        ----------
        kind : str
            One of `KINDS`.
        key : str
            A digest of all that the files were made from.
        facts : mapping
            What JSON can hold.
        files : mapping of str to bytes
            The contents by name.

        Returns
        -------
        Entry or None
            None where it could not be written.
        """
        digests = {name: digest(data) for name, data in files.items()}
        text = json.dumps({"key": key, "facts": dict(facts), "files": digests})
        contents = {**files, _MANIFEST: f"{digest(text)}\n{text}".encode()}
        try:
            with self._kind(kind, make=True) as entries, self._unfinished(make=True) as unfinished:
                try:
                    _write(contents, unfinished, key, entries)
                except OSError:
                    if not _is_entry(key, entries):
                        raise
                    return self._read(kind, key, entries)  # another process was quicker
        except OSError as error:
            if error.errno not in _BEING_REMOVED:
                self._warn_of(error, "written", "nothing is kept")
            return None
        self._make_room(sum(map(len, files.values())), key)
        return CacheEntry(json.loads(text)["facts"], dict(files))

    @contextlib.contextmanager
    def alone(self, key: str) -> Iterator[None]:
        """Let no other process of this user be here with the same key, if it ends within a minute.

        What takes many seconds is then made once, and found by the others.
        """
        with contextlib.ExitStack() as opened:
            try:
                unfinished = opened.enter_context(self._unfinished(make=True))
                opened.enter_context(unfinished.locked(f"{key}.lock", _PATIENCE))
            except TimeoutError:
                self._warn(f"another process has been compiling the same for {_PATIENCE:g} s")
            except OSError as error:
                self._warn_of(error, "written", "nothing is kept")
            yield

    def entries(self) -> Iterator[tuple[Path, int, float]]:
        """Each entry with its bytes and the time when it was used last."""
        for kind in KINDS:
            with contextlib.suppress(OSError), self._kind(kind) as entries:
                for name in entries.names():
                    with contextlib.suppress(OSError), entries.directory(name) as files:
                        found = list(map(files.status, files.names()))
                        size = sum(status.st_size for status in found)
                        used = max((status.st_mtime for status in found), default=0.0)
                        yield self.directory / kind / name, size, used

    def facts(self, directory: Path) -> Mapping[str, Any]:
        """The facts of an entry; none where it is not sound."""
        try:
            with self._kind(directory.parent.name) as entries:
                with entries.directory(directory.name) as files:
                    return dict(_manifest(files)["facts"])
        except Exception:  # noqa: BLE001 - it is to be looked at, and nothing more
            return {}

    def clear(self) -> None:
        """Remove all entries."""
        self._remove_all(list(self.entries()))

    def _make_room(self, written: int, newest: str) -> None:
        """Remove what was not used for long, now and then."""
        self._written_since_check += written
        if self._written_since_check * 32 < self.limit:
            return
        self._written_since_check = 0
        entries = sorted(self.entries(), key=lambda entry: entry[2])
        excess = sum(size for _, size, _ in entries) - self.limit
        oldest = []
        for entry in entries:
            if excess <= 0 or entry[0].name == newest:
                break
            oldest.append(entry)
            excess -= entry[1]
        self._remove_all(oldest)

    def _remove_all(self, entries: list[tuple[Path, int, float]]) -> None:
        """Remove entries, and what processes were writing that ended before it was done."""
        for directory, _, _ in entries:
            with contextlib.suppress(OSError), self._kind(directory.parent.name) as found:
                self._remove(directory.name, found)
        with contextlib.suppress(OSError), self._unfinished() as unfinished:
            for name in unfinished.names():
                with contextlib.suppress(OSError):
                    if time.time() - unfinished.status(name).st_mtime > _ABANDONED_AFTER:
                        unfinished.delete(name)

    @contextlib.contextmanager
    def _kind(self, kind: str, *, make: bool = False) -> Iterator[Directory]:
        """Open the directory of a kind."""
        with open_directory(self.directory, make=make) as root:
            with root.directory(kind, make=make) as found:
                yield found

    def _unfinished(self, *, make: bool = False) -> contextlib.AbstractContextManager[Directory]:
        """Open the directory of what is being written or removed."""
        return self._kind(_UNFINISHED, make=make)

    def _discard(self, kind: str, key: str, entries: Directory) -> None:
        self._warn(f"{self.directory / kind / key} was damaged, and is made again")
        self._remove(key, entries)

    def _remove(self, key: str, entries: Directory) -> None:
        """Take an entry away at once, then delete its files."""
        with contextlib.suppress(OSError), self._unfinished(make=True) as unfinished:
            name = _new_name()
            entries.move(key, unfinished, name)
            unfinished.delete(name)

    def _warn_of(self, error: OSError, what: str, then: str) -> None:
        self._warn(f"{self.directory} can't be {what} ({error.strerror}): {then}")

    def _warn(self, reason: str) -> None:
        """Say once that the cache does not work as it should."""
        if not self._warned:
            self._warned = True
            warn(f"the cache of tvmtile: {reason}")


def _write(
    contents: Mapping[str, bytes], unfinished: Directory, key: str, entries: Directory
) -> None:
    """Write the files of an entry, and let others see it."""
    name = _new_name()
    try:
        with unfinished.directory(name, make=True) as files:
            for file, data in contents.items():
                files.write(file, data)
        unfinished.move(name, entries, key)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.delete(name)
        raise


def _is_entry(key: str, entries: Directory) -> bool:
    try:
        with entries.directory(key) as files:
            return _MANIFEST in files.names()
    except OSError:
        return False


def _new_name() -> str:
    """A name that no other process has."""
    return os.urandom(12).hex()


def _manifest(files: Directory) -> Any:
    sealed, _, text = files.read(_MANIFEST).partition(b"\n")
    return json.loads(_checked(text, sealed.decode()))


def _checked(data: bytes, expected: str) -> bytes:
    if digest(data) != expected:
        raise ValueError("not what was written")
    return data
