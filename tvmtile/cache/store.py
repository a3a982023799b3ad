"""Entries on disk: files under the digest of what they were made from.

An entry is a directory, `<kind>/<key>`, with its files and a manifest of their digests. It is written
under another name and renamed, so that others see all of it or nothing, and is never changed. It is
read whole, and what differs from its digest is removed and counts as absent. Processes need no locks:
of two that write one entry the first one's stays, and they were made from the same.

Where the disk is full, or nothing may be written, there is a warning for the process, and no entry.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmtile.errors import warn

KINDS = ("kernels", "cubins", "emulator", "tuned", "sources")
"""What there is: compiled programs, compiled CUDA sources, what the emulators compiled, results of the
autotuner, and digests of compilers."""

_MANIFEST = "manifest"
_UNFINISHED = "unfinished"
_ABANDONED_AFTER = 3600.0
"""Seconds after which nobody is still writing an entry."""
_BEING_REMOVED = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST)
"""What an entry can't be written for while others remove the cache, or such an entry to make room."""


@dataclass(frozen=True)
class Entry:
    """What was found under a key."""

    directory: Path
    """Where its files are. They stay until the cache needs the room."""
    facts: Mapping[str, Any]
    """What was said of it, as JSON holds it."""
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

    def get(self, kind: str, key: str) -> Entry | None:
        """The entry under a key, or None where there is no sound one."""
        directory = self.directory / kind / key
        try:
            manifest = _manifest(directory)
            if manifest["key"] != key:
                raise ValueError("an entry for another key")
            files = {
                name: _checked(directory / name, digest_of_file)
                for name, digest_of_file in manifest["files"].items()
            }
        except FileNotFoundError:
            if directory.is_dir():  # a part of it is missing
                _remove(directory, self._unfinished())
            return None
        except (ValueError, KeyError, TypeError, AttributeError):
            self._warn(f"{directory} was damaged, and is made again")
            _remove(directory, self._unfinished())
            return None
        except OSError as error:
            self._warn(f"{directory} can't be read ({error.strerror}): its work is done again")
            return None
        with contextlib.suppress(OSError):
            os.utime(directory / _MANIFEST)
        return Entry(directory, manifest["facts"], files)

    def put(
        self, kind: str, key: str, facts: Mapping[str, object], files: Mapping[str, bytes]
    ) -> Entry | None:
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
        directory = self.directory / kind / key
        unfinished = self._unfinished()
        digests = {name: digest(data) for name, data in files.items()}
        text = json.dumps({"key": key, "facts": dict(facts), "files": digests})
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            unfinished.mkdir(parents=True)
            for name, data in files.items():
                (unfinished / name).write_bytes(data)
            (unfinished / _MANIFEST).write_text(f"{digest(text)}\n{text}", encoding="utf-8")
            unfinished.rename(directory)
        except OSError as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            if (directory / _MANIFEST).exists():  # another process was quicker
                return self.get(kind, key)
            if error.errno in _BEING_REMOVED:
                return None
            self._warn(f"{directory} can't be written ({error.strerror}): nothing is kept")
            return None
        self._make_room(sum(map(len, files.values())), directory)
        return Entry(directory, json.loads(text)["facts"], files)

    def entries(self) -> Iterator[tuple[Path, int, float]]:
        """Each entry with its bytes and the time when it was used last."""
        for kind in KINDS:
            for directory in _listed(self.directory / kind):
                with contextlib.suppress(OSError), os.scandir(directory) as items:
                    files = [item.stat() for item in items]
                    size = sum(item.st_size for item in files)
                    used = max((item.st_mtime for item in files), default=0.0)
                    yield directory, size, used

    def facts(self, directory: Path) -> Mapping[str, Any]:
        """What was said of an entry; nothing where it is not sound."""
        try:
            return dict(_manifest(directory)["facts"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def clear(self) -> None:
        """Remove all entries."""
        for directory, _, _ in list(self.entries()):
            _remove(directory, self._unfinished())
        self._remove_abandoned()

    def _make_room(self, written: int, newest: Path) -> None:
        """Remove what was not used for long, now and then."""
        self._written_since_check += written
        if self._written_since_check * 32 < self.limit:
            return
        self._written_since_check = 0
        entries = sorted(self.entries(), key=lambda entry: entry[2])
        excess = sum(size for _, size, _ in entries) - self.limit
        for directory, size, _ in entries:
            if excess <= 0 or directory == newest:
                break
            _remove(directory, self._unfinished())
            excess -= size
        self._remove_abandoned()

    def _remove_abandoned(self) -> None:
        """Remove what processes were writing that ended before it was done."""
        for directory in _listed(self.directory / _UNFINISHED):
            with contextlib.suppress(OSError):
                if time.time() - directory.stat().st_mtime > _ABANDONED_AFTER:
                    shutil.rmtree(directory, ignore_errors=True)

    def _unfinished(self) -> Path:
        """A name that no other process has, for what is being written or removed."""
        return self.directory / _UNFINISHED / os.urandom(12).hex()

    def _warn(self, reason: str) -> None:
        """Say once that the cache does not work as it should."""
        if not self._warned:
            self._warned = True
            warn(f"the cache of tvmtile: {reason}")


def _manifest(directory: Path) -> Any:
    sealed, _, text = (directory / _MANIFEST).read_bytes().partition(b"\n")
    if sealed.decode(errors="replace") != digest(text):
        raise ValueError("not what was written")
    return json.loads(text)


def _checked(path: Path, expected: str) -> bytes:
    data = path.read_bytes()
    if digest(data) != expected:
        raise ValueError("not what was written")
    return data


def _remove(directory: Path, unfinished: Path) -> None:
    """Take an entry away at once, then delete its files."""
    with contextlib.suppress(OSError):
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        directory.rename(unfinished)
        shutil.rmtree(unfinished, ignore_errors=True)


def _listed(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as items:
            return [Path(item.path) for item in items]
    except OSError:
        return []
