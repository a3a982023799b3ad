"""Entries on disk: whole or absent, whatever happens to the disk or to a process."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.children import WITHOUT_TORCH
from tvmtile.cache import Store, digest
from tvmtile.errors import TileWarning

FILES = {"code": bytes(range(256)) * 64, "text": b"what the compiler said"}
FACTS = {"name": "gemm", "extents": [1, 2, 3]}
KEY = digest("a program", "a target")
MEGABYTE = 1 << 20


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache", 64 * MEGABYTE)


def put(store, key=KEY, files=FILES):
    return store.put("kernels", key, FACTS, files)


def directory_of(store, key=KEY):
    return store.directory / "kernels" / key


def unfinished(store):
    return list((store.directory / "unfinished").glob("*"))


def test_what_was_put_is_there_for_others(store):
    assert store.get("kernels", KEY) is None
    written = put(store)
    read = Store(store.directory, store.limit).get("kernels", KEY)
    assert read == written
    assert (read.files, read.facts) == (FILES, FACTS)
    assert store.get("cubins", KEY) is None
    assert not unfinished(store)


def test_parts_of_a_key_are_told_apart():
    parts = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), ("1:a", "b"), ()]
    assert len({digest(*each) for each in parts}) == len(parts)
    assert digest("é") == digest("é".encode())


CHANGES = {
    "truncated": lambda data: data[:-1],
    "emptied": lambda data: b"",
    "flipped": lambda data: data[:9] + bytes([data[9] ^ 1]) + data[10:],
    "longer": lambda data: data + b"\0",
    "gone": None,
}


def damage(path, change="flipped"):
    if CHANGES[change] is None:
        path.unlink()
    else:
        path.write_bytes(CHANGES[change](path.read_bytes()))


@pytest.mark.parametrize("name", ["manifest", "code", "text"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_not_as_it_was_written_is_absent_and_goes(store, name, change):
    put(store)
    damage(directory_of(store) / name, change)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert store.get("kernels", KEY) is None
    if change != "gone":
        assert not directory_of(store).exists()
        (message,) = [str(w.message) for w in caught]
        assert re.match("the cache of tvmtile: .* was damaged, and is made again", message)
    assert put(store)
    assert store.get("kernels", KEY).files == FILES


def test_an_entry_in_the_place_of_another_is_not_taken_for_it(store):
    put(store)
    other = digest("another program")
    directory_of(store).rename(directory_of(store, other))
    with pytest.warns(TileWarning, match="was damaged"):
        assert store.get("kernels", other) is None


def test_the_entry_of_a_quicker_process_stays(store):
    first = put(store)
    second = Store(store.directory, store.limit).put("kernels", KEY, {"name": "second"}, {})
    assert second == first
    assert not unfinished(store)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_limit_on_files_that_the_system_enforces_leaves_no_entry_and_one_warning(store):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.warns(TileWarning, match="can't be written .File too large.") as caught:
            assert [put(store, digest(str(index))) for index in range(3)] == [None] * 3
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(caught) == 1
    assert not unfinished(store)
    assert not list(store.entries())
    assert put(store)
    assert store.get("kernels", KEY).files == FILES


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs to mount")
def test_a_disk_that_is_full(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=32k", "tmpfs", str(tmp_path)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        store = Store(tmp_path / "cache", 64 * MEGABYTE)
        small = {"code": b"x" * 1000}
        assert put(store, digest("small"), small)
        with pytest.warns(TileWarning, match="No space left on device") as caught:
            _ = [put(store, digest(str(index))) for index in range(5)]
        assert len(caught) == 1
        assert store.get("kernels", digest("small")).files == small
        for directory, _, _ in store.entries():
            assert store.get("kernels", directory.name) is not None
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


@pytest.mark.parametrize("obstacle", ["a file in the directory's place", "no permission"])
def test_where_nothing_can_be_written(tmp_path, obstacle, monkeypatch):
    if obstacle == "no permission":
        denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        monkeypatch.setattr(Path, "mkdir", Mock(side_effect=denied))
    else:
        (tmp_path / "cache").write_text("")
    store = Store(tmp_path / "cache", MEGABYTE)
    with pytest.warns(TileWarning, match="Not a directory|Permission denied|File exists") as caught:
        found = [(store.get("kernels", KEY), put(store)) for _ in range(3)]
    assert found == [(None, None)] * 3
    assert len(caught) == 1


def test_a_path_that_is_too_long(tmp_path):
    store = Store(tmp_path / ("x" * 300), MEGABYTE)
    with pytest.warns(TileWarning, match="can't be read .File name too long.") as caught:
        assert (store.get("kernels", KEY), put(store)) == (None, None)
    assert len(caught) == 1


@pytest.mark.parametrize("which", ["cache", "cache/kernels"])
@pytest.mark.parametrize(
    ("whose", "reason"),
    [
        ("another's", "another user owns it"),
        ("everybody's", "others may write to it; `chmod -R go-w` forbids it"),
    ],
)
def test_what_others_may_have_written_is_neither_read_nor_removed(store, which, whose, reason):
    put(store)
    place = store.directory.parent / which
    if whose == "everybody's":
        place.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(place, 12345, 12345)
    else:
        pytest.skip("needs another user")
    with pytest.warns(TileWarning) as caught:
        assert (store.get("kernels", KEY), put(store)) == (None, None)
    assert [str(each.message) for each in caught] == [
        f"the cache of tvmtile: {store.directory} can't be read ({reason}): its work is done again"
    ]
    store.clear()
    assert (directory_of(store) / "code").read_bytes() == FILES["code"]


def test_nobody_else_sees_what_is_kept(store):
    put(store)
    modes = {path.stat().st_mode & 0o777 for path in [store.directory, *store.directory.rglob("*")]}
    assert modes == {0o700, 0o600}


def test_names_in_a_manifest_lead_nowhere_else(store, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"not the cache's")
    for name in ("../../../secret", str(secret), "..", "", "a\0b"):
        put(store)
        files = {name: digest(secret.read_bytes())}
        text = json.dumps({"key": KEY, "facts": {}, "files": files})
        (directory_of(store) / "manifest").write_text(f"{digest(text)}\n{text}")
        store._warned = True
        assert store.get("kernels", KEY) is None
        assert not directory_of(store).exists()
    with pytest.raises(ValueError, match="is not the name of a file"):
        store.put("kernels", KEY, {}, {"../x": b""})


@pytest.mark.parametrize("planted", ["a file", "the manifest"])
def test_a_link_is_no_file_and_what_it_leads_to_stays(store, tmp_path, planted):
    put(store)
    other = Store(tmp_path / "other", MEGABYTE)
    put(other)
    at = {"a file": "code", "the manifest": "manifest"}[planted]
    ours, theirs = directory_of(store) / at, directory_of(other) / at
    ours.unlink()
    ours.symlink_to(theirs)
    with pytest.warns(TileWarning, match="was damaged"):
        assert store.get("kernels", KEY) is None
    assert put(store)
    shutil.rmtree(directory_of(store))
    directory_of(store).symlink_to(directory_of(other))
    store.clear()
    assert not list(store.entries())
    assert other.get("kernels", KEY).files == FILES


@pytest.mark.parametrize("what", ["[" * 100_000, "5", "{}", '{"key": 1}'])
def test_a_manifest_of_anything_is_removed(store, what):
    put(store)
    (directory_of(store) / "manifest").write_text(f"{digest(what)}\n{what}")
    with pytest.warns(TileWarning, match="was damaged"):
        assert store.get("kernels", KEY) is None
    assert put(store)


def test_what_an_entry_is_not_good_for_is_made_again(store):
    put(store)
    with pytest.warns(TileWarning, match="was damaged"):
        assert store.load("kernels", KEY, lambda entry: 1 // 0) is None
    assert store.get("kernels", KEY) is None
    assert store.load("kernels", KEY, lambda entry: entry) is None
    assert store.load("kernels", put(store) and KEY, lambda entry: entry.facts) == FACTS


def test_a_lock_is_waited_for_and_not_for_ever(store, monkeypatch):
    """Another process may have been stopped while it holds it."""
    monkeypatch.setattr("tvmtile.cache.store._PATIENCE", 0.1)
    with store.alone(KEY), pytest.warns(TileWarning, match="compiling the same for 0.1 s"):
        with Store(store.directory, MEGABYTE).alone(KEY):
            pass
    with store.alone(KEY):
        pass


def test_a_forked_process_holds_no_lock(store):
    with store.alone(KEY):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    start = time.monotonic()
    with Store(store.directory, MEGABYTE).alone(KEY):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert time.monotonic() - start < 10


def test_a_warning_is_given_once(store):
    for index in range(3):
        put(store, digest(str(index)))
        damage(directory_of(store, digest(str(index))) / "code")
    with pytest.warns(TileWarning) as caught:
        found = [store.get("kernels", digest(str(index))) for index in range(3)]
    assert found == [None] * 3
    assert len(caught) == 1


def test_the_entries_that_were_not_used_for_long_go(tmp_path):
    store = Store(tmp_path, 10 * MEGABYTE)
    keys = [digest(str(index)) for index in range(12)]
    for age, key in enumerate(keys):
        store.put("kernels", key, {}, {"code": os.urandom(MEGABYTE - 512)})
        past = time.time() - 1000 + age
        for file in directory_of(store, key).iterdir():
            os.utime(file, (past, past))
    assert store.get("kernels", keys[2])  # the oldest of those left is used
    assert keys[2] in {directory.name for directory, _, _ in store.entries()}
    store.put("kernels", digest("one more"), {}, {"code": os.urandom(MEGABYTE - 512)})
    left = {directory.name for directory, _, _ in store.entries()}
    assert left == {keys[2], *keys[4:], digest("one more")}
    assert sum(size for _, size, _ in store.entries()) <= store.limit


def test_an_entry_larger_than_the_limit_lasts_until_the_next(tmp_path):
    store = Store(tmp_path, MEGABYTE)
    big = {"code": os.urandom(2 * MEGABYTE)}
    assert put(store, files=big)
    assert store.get("kernels", KEY).files == big
    assert put(store, digest("next"), {"code": os.urandom(MEGABYTE // 2)})
    assert store.get("kernels", KEY) is None


def test_what_a_killed_process_left_goes_after_a_while(store):
    put(store)
    left = store.directory / "unfinished"
    for name, age in (("old", 7200), ("young", 60)):
        (left / name).mkdir(parents=True)
        (left / name / "code").write_bytes(b"half of it")
        os.utime(left / name, (time.time() - age,) * 2)
    Store(store.directory, store.limit).put("kernels", digest("another"), {}, FILES)
    assert [path.name for path in unfinished(store)] == ["young"]


def test_a_cache_that_is_deleted_meanwhile(store, monkeypatch):
    rename = os.rename

    def renamed(*names, **directories):
        shutil.rmtree(store.directory)
        rename(*names, **directories)

    monkeypatch.setattr(os, "rename", renamed)
    assert put(store) is None
    monkeypatch.undo()
    assert put(store)


def test_clearing_leaves_what_is_not_the_caches(store):
    put(store)
    note = store.directory / "note.txt"
    note.write_text("mine")
    store.clear()
    assert store.get("kernels", KEY) is None
    assert note.read_text() == "mine"
    assert put(store)


WRITER = """
import sys
from pathlib import Path
from tvmtile.cache import Store, digest

store = Store(Path(sys.argv[1]), 64 << 20)
sys.stdout.write("ready\\n")
sys.stdout.flush()
for number in range(100000):
    key = digest(str(number % 40))
    files = {name: (key + name).encode() * 4000 for name in ("a", "b", "c")}
    if number % 7 == 0:
        store.clear()
    entry = store.get("kernels", key) or store.put("kernels", key, {"of": key}, files)
    assert entry is None or (entry.files == files and entry.facts == {"of": key})
"""


def test_an_entry_that_another_process_is_removing_is_not_written(tmp_path):
    """Its manifest is gone, and a file is left: no reason for a warning."""
    rest = tmp_path / "kernels" / digest(b"key")
    rest.mkdir(parents=True)
    (rest / "source").write_bytes(b"some")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Store(tmp_path, MEGABYTE).put("kernels", rest.name, {}, {"source": b"all"}) is None
    assert [path.name for path in rest.iterdir()] == ["source"]


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signal")
def test_processes_that_are_killed_while_they_write(tmp_path):
    """Whatever a process was at, the others find whole entries or none."""
    random.seed(0)
    program = WITHOUT_TORCH + WRITER
    command = [sys.executable, "-W", "error", "-c", program, str(tmp_path / "cache")]
    store = Store(tmp_path / "cache", 64 * MEGABYTE)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    witness = subprocess.Popen(command, **pipes)
    try:
        witness.stdout.readline()
        for _ in range(6):
            with subprocess.Popen(command, **pipes) as writer:
                writer.stdout.readline()
                time.sleep(random.random() / 20)
                writer.send_signal(signal.SIGKILL)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                for directory, _, _ in list(store.entries()):
                    entry = store.get("kernels", directory.name)
                    assert entry is None or all(
                        data == (directory.name + name).encode() * 4000
                        for name, data in entry.files.items()
                    )
        assert witness.poll() is None, witness.stderr.read()
    finally:
        witness.kill()
        witness.communicate()
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
