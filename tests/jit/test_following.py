"""Kernels without a target run where their tensors are."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import tvm

import tvmtile
import tvmtile.language as T
from tests.kernels import scaling
from tvmtile.errors import ArgumentError, InvalidOperand, TileWarning, UnknownTarget
from tvmtile.jit import backends, compiler
from tvmtile.jit.backends import best_target, chosen_target, target_of
from tvmtile.jit.kernel import Kernel

double = scaling(8)


class OnMps(torch.Tensor):
    """A tensor on the CPU that says it is elsewhere."""

    device = torch.device("mps")


class OnCuda(torch.Tensor):
    device = torch.device("cuda:1")


a = torch.zeros(8)
CUDA, MPS = a.as_subclass(OnCuda), a.as_subclass(OnMps)


@pytest.fixture(autouse=True)
def no_choice(monkeypatch):
    monkeypatch.delenv("TVMTILE_TARGET")


@pytest.fixture
def apple_gpu(monkeypatch):
    """A machine whose GPU is Apple's, emulated."""
    for module in ("compiler", "kernel"):
        monkeypatch.setattr(f"tvmtile.jit.{module}.best_target", lambda: "metal")


@pytest.mark.parametrize(
    ("tensors", "target"),
    [
        ([3, a, 2.0], "llvm"),
        ([a, CUDA], "cuda"),
        ([MPS, a], "metal"),
        ([np.zeros(8)], "llvm"),
        ([tvm.runtime.tensor(np.zeros(8))], "llvm"),
        ([a.to("meta")], "llvm"),
        ([3], None),
    ],
)
def test_the_target_of_tensors(tensors, target):
    assert target_of(tensors) == target


@pytest.mark.parametrize(
    ("nvidia", "platform", "target"),
    [(False, "linux", "llvm"), (False, "darwin", "metal"), (True, "darwin", "cuda")],
)
def test_the_best_target_of_a_machine(nvidia, platform, target, monkeypatch):
    monkeypatch.setattr(backends, "has_gpu", lambda: nvidia)
    monkeypatch.setattr(backends, "mps_is_available", lambda: True)
    monkeypatch.setattr("sys.platform", platform)
    assert best_target() == target


def test_where_there_is_a_cpu_only_a_kernel_is_built_at_once(monkeypatch):
    monkeypatch.setattr(compiler, "best_target", lambda: "llvm")
    assert "for the device of its tensors" not in repr(tvmtile.compile(double))


@pytest.mark.filterwarnings("ignore:this machine has no Apple GPU")
def test_a_kernel_is_built_once_for_each_kind_of_device(apple_gpu, monkeypatch):
    kernel = tvmtile.jit(lambda: double, out_idx=-1)()
    assert "for the device of its tensors" in repr(kernel)
    assert "#include <metal_stdlib>" in kernel.get_kernel_source()
    assert kernel.target.kind.name == "metal"
    a = torch.randn(8)
    torch.testing.assert_close(kernel(a), a * 2)
    assert kernel.target.kind.name == "llvm"
    assert "target triple" in kernel.get_kernel_source()
    assert kernel.lowering
    cpu = kernel.module
    with monkeypatch.context() as patch:
        patch.setattr("tvmtile.jit.kernel.target_of", lambda _: "metal")
        torch.testing.assert_close(kernel(a), a * 2)
        assert "#include <metal_stdlib>" in kernel.get_kernel_source()
    kernel(a)
    assert kernel.module is cpu
    assert copy.deepcopy(kernel) is kernel


def test_the_first_gpu_among_the_tensors_decides_in_every_call():
    built = []

    def compile_for(kind):
        built.append(kind)
        return SimpleNamespace(run=lambda args, named: (None, kind), method=None)

    kernel = Kernel(double, (), compile_for=compile_for)
    for _ in range(2):
        assert kernel(a, a) == "llvm"
        assert kernel(CUDA, a) == kernel(a, CUDA) == kernel(3, CUDA) == "cuda"
        assert kernel(MPS, MPS) == "metal"
    assert built == ["llvm", "cuda", "metal"]


def test_calls_on_a_gpu_enter_what_was_generated(monkeypatch):
    """A kernel without results is called by one function on each device, with keywords too."""
    monkeypatch.setattr("tvmtile.jit.kernel.target_on", lambda device: "cuda")
    built = []

    def compile_for(kind):
        built.append(kind)
        return tvmtile.compile(double, target="llvm").executable

    kernel = Kernel(double, (), compile_for=compile_for)
    names = [param.name for param in double.params]
    a, c = torch.randn(8), torch.empty(8)
    for _ in range(3):
        kernel(a, c.zero_())
        torch.testing.assert_close(c, a * 2)
        kernel(a, **{names[1]: c.zero_()})
        torch.testing.assert_close(c, a * 2)
        with pytest.raises(ArgumentError, match="takes 2 arguments"):
            kernel(a)
    assert kernel.executable.method is not None
    assert built == ["llvm"]


def test_a_call_enters_the_executable_of_its_tensors_device_at_once(monkeypatch):
    monkeypatch.setattr("tvmtile.jit.kernel.target_on", str)
    monkeypatch.setattr("tvmtile.jit.kernel.target_of", lambda args: str(args[0].device))
    kernel = Kernel(double, (), compile_for=lambda _: compiled().executable)
    for _ in range(3):
        for tensor in (a, a, CUDA):
            kernel(tensor, c := torch.ones(8))
            assert c.equal(a * 2)
            assert kernel.executable is kernel._executables[str(tensor.device)]
    assert type(kernel) is kernel.executable.caller


def compiled():
    return tvmtile.compile(double, target="llvm")


def test_what_can_be_known_is_said_when_it_is_compiled(apple_gpu):
    with pytest.raises(InvalidOperand, match="out_idx=2 is outside the 2 parameters"):
        tvmtile.compile(double, out_idx=2)
    with pytest.raises(AttributeError, match="'Kernel' object has no attribute 'modul'"):
        tvmtile.compile(double).modul


def test_the_environment_names_the_target(monkeypatch, apple_gpu):
    monkeypatch.setenv("TVMTILE_TARGET", "llvm")
    assert repr(tvmtile.compile(double)).endswith("for llvm>")
    monkeypatch.setenv("TVMTILE_TARGET", '{"kind": "cuda", "arch": "sm_80"}')
    assert chosen_target() == {"kind": "cuda", "arch": "sm_80"}
    assert tvmtile.compile(double, target="auto").target.attrs["arch"] == "sm_80"
    assert tvmtile.compile(double, target="llvm").target.kind.name == "llvm"
    monkeypatch.setenv("TVMTILE_TARGET", "cudda")
    with pytest.raises(UnknownTarget, match="there is no target 'cudda'"):
        tvmtile.compile(double)

    @tvmtile.jit
    def fill(A: T.Tensor((32,), "float32")):
        with T.Kernel(1):
            T.fill(A, 1)

    monkeypatch.setenv("TVMTILE_TARGET", "metal")
    with pytest.warns(TileWarning, match="runs in the emulator"):
        assert fill.compile(torch.zeros(32)).target.kind.name == "metal"
