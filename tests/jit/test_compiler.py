"""`tvmtile.compile` and `tvmtile.par_compile`."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile.errors import (
    InvalidOperand,
    InvalidValue,
    MissingDependency,
    TileWarning,
    UnknownTarget,
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
    with pytest.raises(InvalidOperand, match="takes a T.prim_func"):
        tvmtile.par_compile([scale(4, 1), "no program"])
    with pytest.warns(
        TileWarning, match="a program was left out: .* takes a T.prim_func, not a str"
    ):
        kernels = tvmtile.par_compile([scale(4, 1), "no program"], ignore_error=True)
    assert kernels[0] is not None
    assert kernels[1] is None


def test_results_are_named_once():
    @T.prim_func
    def one(n: T.int32):
        A = T.empty((4,), "int32")
        with T.Kernel(1):
            A[0] = n
        return A

    with pytest.raises(InvalidValue, match="out_idx=-1 for a kernel that makes its results"):
        tvmtile.compile(one, out_idx=-1)


def test_a_position_that_is_no_parameter():
    with pytest.raises(InvalidOperand, match="out_idx=2 is outside the 2 parameters"):
        tvmtile.compile(scale(4, 1), out_idx=2)


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


@pytest.mark.parametrize("architecture", ["wasm32", "wasm64", "i686", "armv7"])
def test_machines_that_tile_programs_are_not_lowered_for(architecture):
    with pytest.raises(UnknownTarget, match=f"can't be lowered for {architecture}") as caught:
        tvmtile.compile(
            scale(8, 3.0), target={"kind": "llvm", "mtriple": f"{architecture}-unknown-linux"}
        )
    assert "64-bit addresses" in caught.value.help
    assert caught.value.location.file == __file__
    assert caught.value.location.text == "tvmtile.compile("


def test_the_host_of_a_metal_program_is_this_machine():
    target = {"kind": "metal", "host": {"kind": "llvm", "mtriple": "riscv64-linux-gnu"}}
    with pytest.raises(UnknownTarget, match="a Metal program is launched from this machine"):
        tvmtile.compile(scale(8, 3.0), target=target, execution_backend="emulator")


OPTIONS = (
    "out_idx",
    "target",
    "execution_backend",
    "target_host",
    "verbose",
    "pass_configs",
    "compile_flags",
)


@pytest.mark.parametrize(
    ("call", "message", "help"),
    [
        (
            lambda: tvmtile.compile(scale(8, 3.0), out_ids=-1),
            "compile has no option 'out_ids'",
            "did you mean 'out_idx'?",
        ),
        (
            lambda: tvmtile.jit(targt="llvm"),
            "jit has no option 'targt'",
            "did you mean 'target'?",
        ),
        (
            lambda: tvmtile.jit(scale, pass_config={}),
            "jit has no option 'pass_config'",
            "did you mean 'pass_configs'?",
        ),
        (
            lambda: tvmtile.par_compile([], num_worker=2),
            "par_compile has no option 'num_worker'",
            "did you mean 'num_workers'?",
        ),
        (
            lambda: tvmtile.par_compile([], outidx=-1),
            "par_compile has no option 'outidx'",
            "did you mean 'out_idx'?",
        ),
        (
            lambda: tvmtile.compile(scale(8, 3.0), xyz=1),
            "compile has no option 'xyz'",
            f"its options are {', '.join(OPTIONS)}",
        ),
    ],
)
def test_an_option_that_does_not_exist(call, message, help):
    with pytest.raises(InvalidOperand) as caught:
        call()
    assert (caught.value.message, caught.value.help) == (message, help)
    assert caught.value.location.file == __file__


def test_options_of_tilelang_that_change_nothing():
    options = {"target_host": None, "verbose": True, "execution_backend": None}
    with pytest.warns(TileWarning, match=r"tvmtile\.jit: (verbose|debug_root_path) has no effect"):
        kernel = tvmtile.jit(scale, target="llvm", debug_root_path="x", **options)(4, 2.0)
    assert kernel.target.kind.name == "llvm"
    with pytest.warns(
        TileWarning, match=r"tvmtile\.compile: verbose has no effect: kernel\.lowering"
    ):
        assert tvmtile.compile(scale(4, 2.0), target="llvm", **options).target == kernel.target
