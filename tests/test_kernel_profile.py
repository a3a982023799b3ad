"""`kernel.profile()` counts as one would by hand, and compares with the device's data."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import tvmtile
import tvmtile.language as T
from tests.programs.text import Name
from tests.running import gemm
from tvmtile import carver
from tvmtile.carver.counts import Counts
from tvmtile.cuda_runtime import has_gpu

SM_80 = {"kind": "cuda", "arch": "sm_80"}


def product(M=64):
    name = "gemm" if isinstance(M, int) else "gemm_of_assumed_extents"
    return gemm(M, 64, 64, name=name, block=(32, 32, 32), begin=())


def test_a_measured_kernel():
    device = dataclasses.replace(
        carver.CPU(), clock=1.0, compute_max_core=2, matrix=64.0, memory=10.0, name="a CPU"
    )
    kernel = tvmtile.compile(product(), out_idx=-1, target="llvm")
    a, b = torch.randn(64, 64).half(), torch.randn(64, 64).half()
    found = kernel.profile(a, b, warmup=1, rep=5, device=device)
    tensors = 2 * 64 * 64 * 2 + 64 * 64 * 4
    assert found.counts == Counts(
        {"float16": 2 * 64**3}, 2 * 2 * 64 * 64 * 2 + 64 * 64 * 4, tensors
    )
    assert found.arithmetic_ms == pytest.approx(2 * 64**3 / (2 * 64e9) * 1e3)
    assert found.bandwidth_ms == pytest.approx(tensors / 10e9 * 1e3)
    assert found.limit == "arithmetic"
    assert found.milliseconds > 0
    assert found.efficiency == found.arithmetic_ms / found.milliseconds
    assert found.resources == ()
    first, arithmetic, bandwidth, moved = repr(found).splitlines()
    assert first.startswith("main on a CPU (limits of a typical one): ")
    assert arithmetic.startswith("  arithmetic   524.3 kFLOP, at least 0.0041 ms at 128 GFLOP/s, ")
    assert bandwidth.startswith("  bandwidth    32.77 kB, at least 0.00328 ms at 10 GB/s, ")
    assert moved == "  blocks move  49.15 kB"


def test_a_dynamic_kernel_is_counted_for_its_tensors():
    kernel = tvmtile.compile(product(M=Name("m")), out_idx=-1, target="llvm")
    found = kernel.profile(torch.randn(96, 64).half(), torch.randn(64, 64).half(), warmup=1, rep=1)
    assert found.counts.flops == 2 * 96 * 64 * 64


def test_what_depends_on_what_tensors_hold_is_not_counted():
    @T.prim_func
    def ragged(A: T.Tensor((64,), "float32"), N: T.Tensor((1,), "int32")):
        with T.Kernel(1, threads=64):
            for k in T.serial(N[0]):
                A[k] = A[k] + 1.0

    found = tvmtile.compile(ragged, target="llvm").profile(warmup=1, rep=1)
    assert found.counts is None
    assert found.efficiency is None
    assert "what it does depends on what its tensors hold" in repr(found)


@pytest.mark.skipif(has_gpu(), reason="there is a GPU to measure on")
def test_a_kernel_for_a_gpu_that_is_elsewhere_is_not_measured():
    kernel = tvmtile.compile(product(), out_idx=-1, target=SM_80)
    found = kernel.profile()
    assert found.milliseconds is None
    assert found.efficiency is None
    (used,) = found.resources
    assert used.threads == 128
    blocks = min(
        65536 // (128 * (-(-used.registers // 8) * 8)), (164 << 10) // (used.shared + 1024), 16
    )
    assert found.occupancy == (blocks * 128 / 2048,)
    assert f"{used.registers} registers, {used.spills} bytes of spills" in repr(found)
    assert repr(found).startswith("main on A100: not measured")


@pytest.mark.full(but=1)
@pytest.mark.parametrize(("pitch", "conflicts"), [(32, 31), (33, 0)])
@pytest.mark.parametrize("target", [SM_80, "metal"])
def test_bank_conflicts_in_an_emulator(target, pitch, conflicts):
    @T.prim_func
    def column(A: T.Tensor((32,), "float32"), B: T.Tensor((32,), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32, pitch), "float32")
            T.annotate_layout({tile: tvmtile.layout.make_linear_layout(tile)})
            t = T.get_thread_binding(0)
            tile[t, 0] = A[t]
            T.sync_threads()
            B[t] = tile[31 - t, 0]

    kernel = tvmtile.compile(column, out_idx=-1, target=target, execution_backend="emulator")
    x = torch.randn(32)
    found = kernel.profile(x)
    assert found.milliseconds is None
    assert found.statistics.bank_conflicts == 2 * conflicts
    assert f"bank conflicts  {2 * conflicts} of {2 * (conflicts + 1)} moves" in repr(found)
    kernel(x)
    assert kernel.adapter.statistics.bank_conflicts == 0  # they are not counted any more


@pytest.mark.parametrize(
    ("target", "dtype", "tflops"),
    [
        ("sm_90a", "float16", 990), ("sm_90a", "bfloat16", 990), ("sm_90a", "float8_e4m3fn", 1979),
        ("sm_90a", "float32", 495), ("sm_90a", "float64", 62), ("sm_80", "float8_e4m3fn", 312),
        ("sm_80", "int8", 624), ("sm_80", "float32", 156),
    ],
)  # fmt: skip
def test_the_limits_are_those_of_the_white_papers(target, dtype, tflops):
    device = carver.CUDA({"kind": "cuda", "arch": target})
    assert device.operations(dtype) / 1e12 == pytest.approx(tflops, rel=0.08)
