"""Kernels written as libraries, and called on TVM's runtime alone."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tvm
from tvm.support import cc

import tvmtile
import tvmtile.language as T
from tests.children import WITHOUT_TORCH
from tvmtile.errors import (
    ArgumentError,
    InvalidOperand,
    InvalidValue,
    MissingDependency,
    UnknownTarget,
)

n = T.dynamic("n")
ROWS = (n * 16 + 8) // 8  # n * 2 + 1, by each of the operations
AARCH64 = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}
AARCH64_MACHINE = b"\xb7\0"  # of an ELF file's header


@T.prim_func
def spread(X: T.Tensor((n, 8), "float32"), factor: T.float32, Y: T.Tensor((ROWS, 8), "float32")):
    with T.Kernel(ROWS) as row:
        for j in T.Parallel(8):
            Y[row, j] = X[T.min(row // 2, n - 1), j] * factor


def expected(x: np.ndarray[Any, Any], factor: float) -> np.ndarray[Any, Any]:
    return x[[*np.repeat(np.arange(len(x)), 2), len(x) - 1]] * np.float32(factor)


@pytest.fixture(scope="module")
def library(tmp_path_factory: Any) -> Path:
    kernel = tvmtile.compile(spread, target="llvm", out_idx=-1)
    return kernel.export_library(tmp_path_factory.mktemp("export") / "spread.so")


@pytest.fixture(scope="module")
def printing(tmp_path_factory: Any) -> Path:
    """A library with what kernels call."""

    @T.prim_func
    def shown(X: T.Tensor((4,), "float32")):
        with T.Kernel(1):
            tile = T.alloc_shared((4,), "float32")
            T.copy(X, tile)
            T.print(tile, msg="X")

    path = tmp_path_factory.mktemp("export") / "shown.so"
    return tvmtile.compile(shown, target="llvm").export_library(path)


def test_called_as_the_kernel_was(library):
    kernel = tvmtile.load(library)
    x = np.random.default_rng(0).random((3, 8), np.float32)
    np.testing.assert_array_equal(kernel(x, 2.0), expected(x, 2.0))
    result = kernel(torch.from_numpy(x), 3.0)
    np.testing.assert_array_equal(result.numpy(), expected(x, 3.0))
    given = tvm.runtime.tensor(np.zeros((7, 8), "float32"))
    assert kernel(tvm.runtime.tensor(x), 2.0, given) is given
    np.testing.assert_array_equal(given.numpy(), expected(x, 2.0))
    assert kernel.params == [
        "X: float32[n, 8]",
        "factor: float32",
        "Y: float32[(n * 16 + 8) // 8, 8]",
    ]
    with pytest.raises(ArgumentError, match="spread takes 2 arguments, not 1"):
        kernel(x)
    with pytest.raises(TypeError, match="float32"):
        kernel(x.astype("float64"), 2.0)


ALONE = """
import sys
import numpy as np
import tvmtile
x = np.arange(16, dtype=np.float32).reshape(2, 8)
print(tvmtile.load(sys.argv[1])(x, 2.0).sum())
import tvm
assert tvm.base._RUNTIME_ONLY
print(*sorted(name for name in sys.modules if name.startswith("tvmtile")))
tvmtile.load(sys.argv[2])(x[0, :4])
"""


@pytest.mark.full
def test_on_the_runtime_alone(library, printing):
    """In a process that has no compiler, and in which each warning is an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_TORCH + ALONE, library, printing],
        env={**os.environ, "TVM_USE_RUNTIME_LIB": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    total, modules, *shown = done.stdout.splitlines()
    assert float(total) == expected(np.arange(16, dtype=np.float32).reshape(2, 8), 2.0).sum()
    ours = [
        "tvmtile",
        *(f"tvmtile.{name}" for name in ("_loading", "_plugin", "compat", "errors", "library")),
    ]
    assert modules.split() == ours
    assert "[0. 1. 2. 3.]" in "".join(shown)


def test_under_tvm_ffi_alone(library):
    """The caller has not imported TVM, whose runtime has the threads of its blocks."""
    child = (
        "import sys, numpy as np, tvm_ffi\n"
        "x, y = np.ones((3, 8), 'float32'), np.zeros((7, 8), 'float32')\n"
        "a, b = map(tvm_ffi.from_dlpack, (x, y))\n"
        "tvm_ffi.load_module(sys.argv[1])['spread'](a, 2.0, b)\n"
        "assert (y == 2).all() and 'tvm' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH + child, library],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_without_a_compiler(tmp_path, monkeypatch):
    monkeypatch.setattr(cc, "get_cc", lambda: None)
    kernel = tvmtile.compile(spread, target="llvm", out_idx=-1)
    with pytest.raises(MissingDependency) as caught:
        kernel.export_library(tmp_path / "spread.so")
    assert caught.value.message == (
        "spread.so: linking a library takes a C++ compiler, and there is none"
    )
    assert caught.value.help == (
        "install g++ or clang++, or name a compiler by compiler= or CXX; a path that ends in .tar "
        "holds the object files, to be linked elsewhere"
    )
    assert kernel.export_library(tmp_path / "spread.tar").exists()


def test_several_results_and_none(tmp_path):
    @T.prim_func
    def halves(
        X: T.Tensor((4,), "float32"), Y: T.Tensor((2,), "float32"), Z: T.Tensor((2,), "float32")
    ):
        with T.Kernel(1):
            for i in T.Parallel(2):
                Y[i] = X[i]
                Z[i] = X[i + 2]

    x = np.arange(4, dtype=np.float32)
    given = np.zeros(2, np.float32), np.zeros(2, np.float32)
    for name, options, tensors in (("a.so", {"out_idx": [1, 2]}, ()), ("b.so", {}, given)):
        kernel = tvmtile.compile(halves, target="llvm", **options)
        results = tvmtile.load(kernel.export_library(tmp_path / name))(x, *tensors)
        assert (results is None) == bool(tensors)
        np.testing.assert_array_equal(np.concatenate(results or given), x)


def test_for_another_cpu(tmp_path):
    kernel = tvmtile.compile(spread, target=AARCH64, out_idx=-1)
    path = kernel.export_library(tmp_path / "spread.tar")
    with tarfile.open(path) as archive:
        objects = [archive.extractfile(m).read() for m in archive if m.name.startswith("lib")]
    assert len(objects) == 2
    assert all(code[:4] == b"\x7fELF" and code[18:20] == AARCH64_MACHINE for code in objects)
    with pytest.raises(InvalidValue) as caught:
        kernel.export_library(tmp_path / "spread.so")
    assert caught.value.message == (
        "spread.so: linking a library for aarch64-linux-gnu takes a compiler for it"
    )
    assert "compiler='aarch64-linux-gnu-g++'" in caught.value.help
    assert not (tmp_path / "spread.so").exists()


def test_there_is_no_webassembly_for_tvm_either():
    """For tvmtile.compile: tests/messages/calls.txt."""
    target = tvm.target.Target({"kind": "llvm", "mtriple": "wasm32-unknown-unknown"})
    with pytest.raises(UnknownTarget, match="can't be lowered for wasm32"):
        tvm.compile(spread, target)


def test_the_target_c_is_machine_code(tmp_path):
    kernel = tvmtile.compile(spread, target="c", out_idx=-1)
    x = np.ones((2, 8), np.float32)
    path = kernel.export_library(tmp_path / "spread.so")
    np.testing.assert_array_equal(tvmtile.load(path)(x, 2.0), kernel(x, 2.0))


def test_what_takes_more_than_the_runtime(tmp_path):
    emulated = tvmtile.compile(spread, target="metal", execution_backend="emulator")
    with pytest.raises(InvalidOperand, match="compile it with execution_backend='tvm_ffi'"):
        emulated.export_library(tmp_path / "spread.so")

    @T.prim_func
    def pointed(p: T.ptr, Y: T.Tensor((4,), "float32")):
        X = T.make_tensor(p, (4,), "float32")
        with T.Kernel(1):
            T.copy(X, Y)

    with pytest.raises(
        InvalidOperand, match=r"p is a pointer(.*\n)*.*kernel\.module\.export_library"
    ):
        tvmtile.compile(pointed, target="llvm").export_library(tmp_path / "pointed.so")


def test_what_is_no_exported_kernel(tmp_path):
    path = tmp_path / "plain.so"
    tvmtile.compile(spread, target="llvm").module.export_library(str(path))
    for file, message in (
        (tmp_path / "absent.so", "there is no file"),
        (path, "holds no kernel that kernel.export_library wrote"),
    ):
        with pytest.raises(InvalidValue, match=message):
            tvmtile.load(file)
