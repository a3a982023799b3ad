"""Kernels whose source is no file of its own: `python -c`, standard input, strings."""

from __future__ import annotations

import linecache
import subprocess
import sys

import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.children import WITHOUT_TORCH
from tvmtile.errors import SyntaxNotSupported
from tvmtile.frontend.syntax import keep_source

PROGRAM = """\
import tvmtile
import tvmtile.language as T

@T.prim_func
def fill(A: T.Tensor((4,), "int32")):
    with T.Kernel(4) as block:
        A[block] = 7

@tvmtile.jit
def eager(A):
    N = T.const("N")
    A: T.Tensor((N,), "int32")
    with T.Kernel(N) as block:
        A[block] = 8

print("= 7" in fill.script(), "= 8" in eager.get_tir(N=4).script())

@T.prim_func
def wrong(A: T.Tensor((4,), "int32")):
    A[0] = valeu
"""


@pytest.mark.parametrize(
    "where",
    [pytest.param("-c", marks=pytest.mark.full), pytest.param("stdin", marks=pytest.mark.nightly)],
)
def test_source_behind_c_and_in_a_file_on_standard_input(where, tmp_path):
    arguments = ["-W", "ignore", "-c", WITHOUT_TORCH + PROGRAM] if where == "-c" else []
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    with path.open() as file:
        command = [sys.executable, *arguments]
        done = subprocess.run(command, stdin=file, capture_output=True, text=True, check=False)
    assert done.stdout == "True True\n", done.stderr
    # Errors show the line, as those of files do.
    assert "'valeu' is not defined" in done.stderr
    assert "|  A[0] = valeu" in done.stderr


EAGER = """\
@tvmtile.jit
def eager(A):
    N = T.const("N")
    A: T.Tensor((N,), "int32")
    with T.Kernel(N) as block:
        A[block] = 8
"""


@pytest.mark.parametrize("zeros", [np.zeros, torch.zeros])
def test_an_eager_kernel_of_a_string_says_that_its_source_is_missing(zeros):
    names = {"T": T, "tvmtile": tvmtile}
    exec(EAGER, names)
    with pytest.raises(SyntaxNotSupported, match="the source of eager is not available") as caught:
        names["eager"](zeros(4))
    assert "`exec(compile(text, path, 'exec'))`" in caught.value.help


@pytest.mark.parametrize("other", [None, "import sys\n", "def g():\n    pass\n", "f(\n"])
def test_a_kernel_whose_source_is_missing(monkeypatch, other):
    """Python may have another text under the name of the file, as 3.13 has for `python -c`."""
    if other is not None:
        lines = other.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, "<string>", (len(other), None, lines, "<string>"))
    with pytest.raises(SyntaxNotSupported, match="the source of f is not available"):
        exec("@T.prim_func\ndef f(A: T.Tensor((4,), 'int32')):\n    pass\n", {"T": T})


def test_a_string_that_is_compiled_as_a_file(tmp_path):
    path = tmp_path / "eager.py"
    path.write_text(EAGER)
    names = {"T": T, "tvmtile": tvmtile}
    exec(compile(EAGER, str(path), "exec"), names)
    assert "A: T.Buffer((4,)" in names["eager"].get_tir(N=4).script()


def test_another_text_under_the_name_is_not_taken(monkeypatch):
    monkeypatch.delitem(linecache.cache, "<string>", raising=False)
    names = {}
    exec(compile("def f(a):\n    return a + 1\n", "<string>", "exec", dont_inherit=True), names)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-c", "def f(a):\n    return a + 2"])
    keep_source(names["f"].__code__)
    assert "<string>" not in linecache.cache
    monkeypatch.setattr(sys, "orig_argv", ["python", "-bc", "def f(a):\n    return a + 1", "x"])
    keep_source(names["f"].__code__)
    assert linecache.getline("<string>", 2) == "    return a + 1\n"
    del linecache.cache["<string>"]
