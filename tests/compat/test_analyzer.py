"""A program's work is counted as one would by hand."""

from __future__ import annotations

import pytest
from tvm import ir

import tvmtile.language as T
from tests.running import gemm
from tvmtile import carver
from tvmtile.carver.counts import Counts, counts_of
from tvmtile.errors import InvalidOperand, InvalidValue
from tvmtile.tools import Analyzer
from tvmtile.tools.analyzer import AnalysisResult

MATMUL = gemm(256, 512, 128, transposes=(False, True), stages=2)


def test_a_product():
    blocks = (512 // 64) * (256 // 64)
    result = 256 * 512 * 4
    assert counts_of(MATMUL) == Counts(
        {"float16": 2 * 256 * 512 * 128},
        blocks * 2 * 64 * 128 * 2 + result,
        (256 + 512) * 128 * 2 + result,
    )


def test_single_elements():
    @T.prim_func
    def add(
        A: T.Tensor((8, 64), "int8"), B: T.Tensor((8, 64), "int8"), C: T.Tensor((8, 64), "int32")
    ):
        with T.Kernel(8, threads=64) as by:
            for i in T.Parallel(64):
                C[by, i] = A[by, i] + B[by, i]

    moved = 8 * 64 * (1 + 1 + 4)
    assert counts_of(add) == Counts({}, moved, moved)


def test_what_a_device_takes_at_least():
    h200 = carver.CUDA({"kind": "cuda", "arch": "sm_90a"})
    result = Analyzer.analysis(MATMUL, h200)
    assert (result.total_flops, result.total_global_bytes) == (33554432, 1572864)
    assert result.expected_bandwidth_GBps == pytest.approx(h200.memory)
    assert result.expected_tflops == pytest.approx(33554432 / result.estimated_time / 1e12)
    module = ir.IRModule({"main": MATMUL})
    assert Analyzer.analysis(module, h200) == result
    with pytest.raises(InvalidOperand, match="takes one program"):
        Analyzer.analysis(ir.IRModule({"a": MATMUL, "b": MATMUL}), h200)


def test_an_extent_that_is_not_known():
    n = T.symbolic("n")

    @T.prim_func
    def double(A: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
            for i in T.Parallel(32):
                A[bx * 32 + i] *= 2

    with pytest.raises(InvalidValue, match="is not known before the kernel runs"):
        counts_of(double)
    # The last block has 28 elements less, which the guard that is not there yet would leave out.
    assert counts_of(double, {n: 100}) == Counts({}, 2 * 128 * 4, 2 * 100 * 4)


def test_loops_that_depend_on_the_block():
    """As in causal attention: a block of rows meets the columns before its end."""

    @T.prim_func
    def causal(A: T.Tensor((64, 16), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(4, 3, threads=128) as (bx, by):
            a = T.alloc_shared((16, 16), "float16")
            b = T.alloc_shared((16, 16), "float16")
            c = T.alloc_fragment((16, 16), "float32")
            end = T.min((bx + 1) * 16, 64)
            for k in T.serial(T.ceildiv(end, 16)):
                T.copy(A[bx * 16, 0], a)
                T.copy(A[k * 16, 0], b)
                T.gemm(a, b, c, transpose_B=True, clear_accum=True)
                T.copy(c, C[bx * 16, k * 16])

    steps = 3 * (1 + 2 + 3 + 4)
    counts = counts_of(causal)
    assert counts.products == {"float16": steps * 2 * 16**3}
    assert counts.global_bytes == steps * 16 * 16 * (2 + 2 + 4)
    assert counts.tensor_bytes == 64 * 16 * 2 + 64 * 64 * 4


def test_a_program_that_moves_nothing_takes_no_time():
    @T.prim_func
    def empty(A: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=32):
            T.clear(T.alloc_shared((4,), "float32"))

    h200 = carver.CUDA({"kind": "cuda", "arch": "sm_90a"})
    assert Analyzer.analysis(empty, h200) == AnalysisResult(0, 0, 0.0, 0.0, 0.0)
