"""`tvmtile.compile` and `tvmtile.par_compile`."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.kernels import scaling
from tvmtile.errors import MissingDependency, TileWarning

SM_80 = {"kind": "cuda", "arch": "sm_80"}
AARCH64 = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}


def fill(A: T.Tensor((4,), "int32"), value):
    with T.Kernel(1):
        for i in range(4):
            A[i] = value


def test_several_programs_and_specialisations_in_the_order_they_are_given():
    kernels = tvmtile.par_compile([scaling(4, i) for i in range(5)], out_idx=-1, num_workers=3)
    a = torch.randn(4)
    torch.testing.assert_close([kernel(a) for kernel in kernels], [a * i for i in range(5)])
    lazy = tvmtile.jit(scaling, out_idx=[-1]).par_compile([(4,), {"n": 6, "factor": 3}])
    for kernel, n, factor in zip(lazy, (4, 6), (2, 3), strict=True):
        assert kernel(torch.ones(n)).tolist() == [factor] * n
    a = torch.zeros(4, dtype=torch.int32)
    eager = tvmtile.jit(fill).par_compile([(a, 5), {"A": a, "value": 6}])
    for value, kernel in zip((5, 6), eager, strict=True):
        kernel(a)
        assert a.tolist() == [value] * 4


def test_what_can_not_be_compiled_is_left_out_on_demand():
    with pytest.warns(TileWarning, match="a program was left out: "):
        kernels = tvmtile.par_compile([scaling(4), "no program"], ignore_error=True)
    assert isinstance(kernels[0], tvmtile.JITKernel)  # TileLang's name
    assert kernels[1] is None


@pytest.mark.parametrize(
    ("target", "asked", "given"),
    [
        ("llvm", "auto", "tvm_ffi"),
        ("llvm", None, "tvm_ffi"),
        (None, "auto", "tvm_ffi"),
        ("llvm", "tvm_ffi", "tvm_ffi"),
        (SM_80, "nvrtc", "tvm_ffi"),
        (SM_80, "cython", "tvm_ffi"),
        (SM_80, "emulator", "emulator"),
        ("metal", "emulator", "emulator"),
    ],
)
def test_the_execution_backend_is_the_one_that_calls(target, asked, given, monkeypatch):
    monkeypatch.setattr("tvmtile.jit.backends.best_target", lambda: "llvm")
    monkeypatch.delenv("TVMTILE_TARGET", raising=False)
    kernel = tvmtile.compile(scaling(8), target=target, execution_backend=asked)
    assert kernel.execution_backend == given


@pytest.mark.parametrize(
    "target", [AARCH64, {**SM_80, "host": AARCH64}, {**AARCH64, "mtriple": "riscv64-linux-gnu"}]
)
def test_a_program_for_another_machine_is_compiled_and_exported(target, tmp_path):
    kernel = tvmtile.compile(scaling(8), target=target)
    triple = target.get("host", target)["mtriple"]
    assert f'target triple = "{triple}"' in kernel.get_kernel_source(kernel_only=False)
    assert f'target triple = "{triple}"' in kernel.get_host_source()
    kernel.print_source_code("both", tmp_path / "code")
    both = f"{kernel.kernel_source}\n{kernel.host_source}"
    assert (tmp_path / "code").read_text() == both
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


def test_parameters_are_described_in_python_terms():
    n = T.dynamic("n")

    @T.prim_func
    def kernel(
        A: T.Tensor((n, 8), "float16"), C: T.Tensor((4,), T.uint8), scale: T.float32, p: T.ptr
    ):
        with T.Kernel(1):
            for i in T.Parallel(4):
                C[i] = T.cast(T.cast(A[i, 0], "float32") * scale, T.uint8)

    rows, results, factor, pointer = tvmtile.compile(kernel).params
    assert (rows.name, str(rows.shape[0]), rows.shape[1], rows.dtype) == ("A", "n", 8, T.float16)
    assert type(rows.shape[1]) is int
    assert not rows.is_scalar()
    assert (results.shape, results.torch_dtype()) == ([4], torch.uint8)
    assert factor.is_scalar()
    assert (factor.dtype, pointer.dtype) == ("float32", "handle")
