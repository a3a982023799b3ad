"""Tensor maps that stay encoded: what tells them apart, and threads that share a kernel."""

from __future__ import annotations

import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tvm
from tvm import ir
from tvm.script import tirx as T

import tvmtile
import tvmtile.language as L
from tvmtile.codegen.kept_maps import ENTRIES, keep_name, keeps_map, kept_maps, recall_name
from tvmtile.ops import programs

TEXT = kept_maps("site", 2)


@T.prim_func
def recall(
    Map: T.Buffer((16,), "int64"),
    A: T.Buffer((1,), "int8"),
    n: T.int64,
    m: T.int64,
    Found: T.Buffer((1,), "int32"),
):
    with T.attr(T.int32(0), "pragma_import_llvm", TEXT):
        Found[0] = T.call_extern("int32", recall_name("site"), Map.data, A.data, n, m)


@T.prim_func
def keep(
    Map: T.Buffer((16,), "int64"),
    A: T.Buffer((1,), "int8"),
    n: T.int64,
    m: T.int64,
    Kept: T.Buffer((1,), "int32"),
):
    Kept[0] = T.call_extern("int32", keep_name("site"), Map.data, A.data, n, m)


class Site:
    """Both functions over a table of their own."""

    def __init__(self):
        module = ir.IRModule({"recall": recall, "keep": keep})
        self._module = tvm.compile(module, target="llvm")
        self._recall, self._keep = self._module["recall"], self._module["keep"]

    def recall(self, tensor, n, m):
        words, found = np.zeros(16, np.int64), np.zeros(1, np.int32)
        self._recall(words, tensor, n, m, found)
        return words if found[0] else None

    def keep(self, words, tensor, n, m):
        kept = np.zeros(1, np.int32)
        self._keep(words, tensor, n, m, kept)
        return bool(kept[0])


@pytest.fixture
def site():
    return Site()


def tensors(count):
    memory = np.zeros(count * 256 + 256, np.int8)
    start = -memory.ctypes.data % 256
    return [memory[start + 256 * i :][:1] for i in range(count)]


def made_of(tensor, n, m):
    """The words of a map: no two of these calls have the same."""
    return np.arange(16, dtype=np.int64) + 16 * (tensor.ctypes.data * 1_000 + n * 31 + m)


def test_a_map_is_found_by_all_that_it_is_made_of(site):
    a, b = tensors(2)
    assert site.recall(a, 3, 5) is None
    assert site.keep(made_of(a, 3, 5), a, 3, 5)
    assert np.array_equal(site.recall(a, 3, 5), made_of(a, 3, 5))
    assert [site.recall(*key) for key in ((b, 3, 5), (a, 4, 5), (a, 3, 6), (a, 5, 3))] == [None] * 4


def test_the_last_of_an_entry_is_kept(site):
    """Many more maps than entries: what is found is right, and what was kept last is there."""
    many = [(tensor, n, 7) for tensor in tensors(10 * ENTRIES) for n in (1, 2)]
    for key in many:
        assert site.keep(made_of(*key), *key)
        assert np.array_equal(site.recall(*key), made_of(*key))
    found = [(key, site.recall(*key)) for key in many]
    assert all(words is None or np.array_equal(words, made_of(*key)) for key, words in found)
    assert 0 < sum(words is not None for _, words in found) <= ENTRIES


def test_layers_that_share_a_kernel_find_most_of_their_maps(site):
    layers = [(tensor, 4096, 8192) for tensor in tensors(ENTRIES // 2)]
    for key in layers:
        site.keep(made_of(*key), *key)
    assert sum(site.recall(*key) is not None for key in layers) > ENTRIES // 4


def test_threads_never_see_another_map(site):
    keys = [(tensor, n, 1) for tensor in tensors(4) for n in range(64)]
    start = threading.Barrier(8)

    def launches(seed):
        chance, hits = random.Random(seed), 0
        start.wait()
        for _ in range(4000):
            key = chance.choice(keys)
            words = site.recall(*key)
            if words is None:
                site.keep(made_of(*key), *key)
            else:
                hits += 1
                assert np.array_equal(words, made_of(*key))
        return hits

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(launches, range(8))) > 100


@pytest.mark.full
def test_a_kernel_looks_for_its_maps_before_it_encodes_them():
    """An emulator's host says with each launch what its maps are."""
    target = {"kind": "cuda", "arch": "sm_90a"}
    program = programs.matmul(L.dynamic("M"), 256, 256, "bfloat16", target=target)
    kernel = tvmtile.compile(program, target=target)
    host = kernel.get_host_source()
    sites = re.findall(r"^@tvmtile_kept_maps_(\w+) = internal global", host, re.MULTILINE)
    assert sorted(sites) == [f"{kernel.name}_{number}" for number in range(3)]
    locks = [line for line in host.splitlines() if "atomicrmw xchg" in line]
    assert len(locks) == 2 * len(sites), "looked for before it is encoded, and kept behind it"
    emulated = tvmtile.compile(program, target=target, execution_backend="emulator")
    assert not any(
        keeps_map(name) for name in re.findall(r"@(\w+)", emulated.adapter.source(False))
    )
