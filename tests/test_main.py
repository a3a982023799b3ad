"""`python -m tvmtile`."""

from __future__ import annotations

import re

import pytest

import tvmtile
import tvmtile.language as T
from tvmtile.__main__ import main
from tvmtile.cache import current_store


@T.prim_func
def double(A: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64):
        for i in T.Parallel(64):
            A[i] = A[i] + A[i]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TVMTILE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("tvmtile.jit.artifacts.current_store", current_store)
    return tmp_path


def test_the_cache(cache, capsys):
    tvmtile.compile(double, target="llvm")
    main(["cache", "path"])
    assert capsys.readouterr().out == f"{cache}\n"
    main(["cache"])
    entry, total = capsys.readouterr().out.splitlines()
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d +\d+\.\d KB  kernels  double +\{.*llvm", entry)
    assert re.fullmatch(rf"1 entries, \d\.\d MB in {cache}", total)
    main(["cache", "clear"])
    main(["cache", "list"])
    assert capsys.readouterr().out == f"0 entries, 0.0 MB in {cache}\n"


def test_what_there_is_not(capsys):
    with pytest.raises(SystemExit):
        main(["cache", "burn"])
    assert "invalid choice: 'burn'" in capsys.readouterr().err
