"""`tvmtile.compile` and `tvmtile.par_compile`."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import (
    MissingDependency,
    TileWarning,
)


def scale(n, factor):
    @T.prim_func
    def scale(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(1):
            for i in T.Parallel(n):
                B[i] = A[i] * factor

    return scale


def test_several_programs_in_the_order_they_are_given():
    kernels = tvmtile.par_compile([scale(4, i) for i in range(5)], out_idx=-1, num_workers=3)
    a = torch.randn(4)
    for factor, kernel in enumerate(kernels):
        torch.testing.assert_close(kernel(a), a * factor)


def test_several_specialisations_of_a_lazy_kernel():
    @tvmtile.jit(out_idx=[-1])
    def factory(n, factor=2):
        return scale(n, factor)

    first, second = factory.par_compile([(4,), {"n": 6, "factor": 3}])
    torch.testing.assert_close(first(torch.ones(4)), torch.full((4,), 2.0))
    torch.testing.assert_close(second(torch.ones(6)), torch.full((6,), 3.0))


def test_several_specialisations_of_an_eager_kernel():
    @tvmtile.jit
    def fill(A: T.Tensor((4,), "int32"), value):
        with T.Kernel(1):
            for i in range(4):
                A[i] = value

    a = torch.zeros(4, dtype=torch.int32)
    for value, kernel in zip((5, 6), fill.par_compile([(a, 5), {"A": a, "value": 6}]), strict=True):
        kernel(a)
        assert a.tolist() == [value] * 4


def test_what_can_not_be_compiled_is_left_out_on_demand():
    with pytest.warns(TileWarning, match="a program was left out: "):
        kernels = tvmtile.par_compile([scale(4, 1), "no program"], ignore_error=True)
    assert kernels[0] is not None
    assert kernels[1] is None


def test_tilelangs_name_of_a_kernel():
    assert tvmtile.JITKernel is tvmtile.Kernel
    assert isinstance(tvmtile.compile(scale(4, 1)), tvmtile.JITKernel)


@pytest.mark.parametrize(
    ("target", "asked", "given"),
    [
        ("llvm", "auto", "tvm_ffi"),
        ("llvm", None, "tvm_ffi"),
        (None, "auto", "tvm_ffi"),
        ("llvm", "tvm_ffi", "tvm_ffi"),
        ({"kind": "cuda", "arch": "sm_80"}, "nvrtc", "tvm_ffi"),
        ({"kind": "cuda", "arch": "sm_80"}, "emulator", "emulator"),
        ("metal", "emulator", "emulator"),
    ],
)
def test_the_execution_backend_is_the_one_that_calls(target, asked, given, monkeypatch):
    monkeypatch.setattr("tvmtile.jit.following.best_target", lambda: "llvm")
    monkeypatch.delenv("TVMTILE_TARGET", raising=False)
    kernel = tvmtile.compile(scale(8, 3.0), target=target, execution_backend=asked)
    assert kernel.execution_backend == given


@pytest.mark.parametrize(
    "target",
    [
        {"kind": "llvm", "mtriple": "aarch64-linux-gnu"},
        {"kind": "cuda", "arch": "sm_80", "host": {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}},
        {"kind": "llvm", "mtriple": "riscv64-linux-gnu"},
    ],
)
def test_a_program_for_another_machine_is_compiled_and_exported(target, tmp_path):
    kernel = tvmtile.compile(scale(8, 3.0), target=target)
    triple = target.get("host", target)["mtriple"]
    assert f'target triple = "{triple}"' in kernel.get_kernel_source(kernel_only=False)
    assert f'target triple = "{triple}"' in kernel.get_host_source()
    assert kernel.execution_backend == "tvm_ffi"
    library = tmp_path / "kernel.tar"
    kernel.module.export_library(str(library))
    assert library.stat().st_size > 1000
    with pytest.raises(MissingDependency) as caught:
        kernel(torch.zeros(8), torch.zeros(8))
    assert caught.value.message == f"scale was compiled for {triple}, which this machine is not"
    assert caught.value.location.file == __file__
    assert caught.value.location.text == "kernel(torch.zeros(8), torch.zeros(8))"
    assert "export_library" in caught.value.help


def test_options_of_tilelang_that_change_nothing():
    options = {"target_host": None, "verbose": True, "execution_backend": None}
    with pytest.warns(TileWarning, match=r"tvmtile\.jit: (verbose|debug_root_path) has no effect"):
        kernel = tvmtile.jit(scale, target="llvm", debug_root_path="x", **options)(4, 2.0)
    assert kernel.target.kind.name == "llvm"
    with pytest.warns(
        TileWarning, match=r"tvmtile\.compile: verbose has no effect: kernel\.lowering"
    ):
        assert tvmtile.compile(scale(4, 2.0), target="llvm", **options).target == kernel.target
