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

import tvmtile
import tvmtile.language as T
from tests.children import WITHOUT_TORCH
from tvmtile.errors import ArgumentError, InvalidOperand, InvalidValue, UnknownTarget

n = T.dynamic("n")
AARCH64 = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}
AARCH64_MACHINE = b"\xb7\0"  # of an ELF file's header


@T.prim_func
def spread(
    X: T.Tensor((n, 8), "float32"), factor: T.float32, Y: T.Tensor((n * 2 + 1, 8), "float32")
):
    with T.Kernel(n * 2 + 1) as row:
        for j in T.Parallel(8):
            Y[row, j] = X[T.min(row // 2, n - 1), j] * factor


def expected(x: np.ndarray[Any, Any], factor: float) -> np.ndarray[Any, Any]:
    return x[[*np.repeat(np.arange(len(x)), 2), len(x) - 1]] * np.float32(factor)


@pytest.fixture(scope="module")
def library(tmp_path_factory: Any) -> Path:
    kernel = tvmtile.compile(spread, target="llvm", out_idx=-1)
    return kernel.export_library(tmp_path_factory.mktemp("export") / "spread.so")


def on_the_runtime_alone(code: str, *arguments: object) -> str:
    """What a process prints that has no compiler, and in which each warning is an error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_TORCH + code, *map(str, arguments)],
        env={**os.environ, "TVM_USE_RUNTIME_LIB": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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
        "Y: float32[n * 2 + 1, 8]",
    ]
    with pytest.raises(ArgumentError, match="spread takes 2 arguments, not 1"):
        kernel(x)
    with pytest.raises(TypeError, match="float32"):
        kernel(x.astype("float64"), 2.0)


@pytest.mark.full
def test_on_the_runtime_alone(library):
    code = """
import sys
import numpy as np
import tvmtile
x = np.arange(16, dtype=np.float32).reshape(2, 8)
print(tvmtile.load(sys.argv[1])(x, 2.0).sum())
import tvm
assert tvm.base._RUNTIME_ONLY
print(*sorted(name for name in sys.modules if name.startswith("tvmtile")))
"""
    total, modules = on_the_runtime_alone(code, library).splitlines()
    assert float(total) == expected(np.arange(16, dtype=np.float32).reshape(2, 8), 2.0).sum()
    assert modules.split() == ["tvmtile", "tvmtile._plugin", "tvmtile.errors", "tvmtile.library"]


@pytest.mark.full
def test_what_kernels_call_is_on_the_runtime_alone_too(tmp_path):
    @T.prim_func
    def shown(X: T.Tensor((4,), "float32")):
        with T.Kernel(1):
            tile = T.alloc_shared((4,), "float32")
            T.copy(X, tile)
            T.print(tile, msg="X")

    path = tvmtile.compile(shown, target="llvm").export_library(tmp_path / "shown.so")
    code = """
import sys, numpy as np, tvmtile
tvmtile.load(sys.argv[1])(np.arange(4, dtype=np.float32))
"""
    assert "[0. 1. 2. 3.]" in on_the_runtime_alone(code, path)


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
    path = tvmtile.compile(halves, target="llvm", out_idx=[1, 2]).export_library(tmp_path / "a.so")
    first, second = tvmtile.load(path)(x)
    np.testing.assert_array_equal(np.concatenate([first, second]), x)
    path = tvmtile.compile(halves, target="llvm").export_library(tmp_path / "b.so")
    first, second = np.zeros(2, np.float32), np.zeros(2, np.float32)
    assert tvmtile.load(path)(x, first, second) is None
    np.testing.assert_array_equal(np.concatenate([first, second]), x)


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


@pytest.mark.parametrize("triple", ["wasm32-unknown-unknown", "wasm64-unknown-unknown"])
def test_there_is_no_webassembly(triple):
    target = {"kind": "llvm", "mtriple": triple}
    with pytest.raises(UnknownTarget, match=f"can't be lowered for {triple[:6]}"):
        tvmtile.compile(spread, target=target)
    with pytest.raises(UnknownTarget, match=f"can't be lowered for {triple[:6]}"):
        tvm.compile(spread, tvm.target.Target(target))


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
    with pytest.raises(InvalidValue, match="there is no file"):
        tvmtile.load(tmp_path / "absent.so")
    path = tmp_path / "plain.so"
    tvmtile.compile(spread, target="llvm").module.export_library(str(path))
    with pytest.raises(InvalidValue, match="holds no kernel that kernel.export_library wrote"):
        tvmtile.load(path)
