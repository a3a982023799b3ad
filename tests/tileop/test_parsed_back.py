"""Programs with tile operators are read back as they were printed."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tvm.ir import assert_structural_equal
from tvm.script import from_source

import tvmtile.language as T
from tests.children import WITHOUT_TORCH


@T.prim_func
def operators(
    A: T.Tensor((20, 72), "float32"), C: T.Tensor((20,), "float32"), R: T.Tensor((8,), "int32")
):
    with T.Kernel(8, threads=32) as bx:
        tile = T.alloc_shared((4, 32), "float32")
        T.copy(A[bx, 0:32], tile[0, :], disable_tma=True)
        T.copy(A[bx, 0:4], A[0, 4:8], annotations={"direct": False})
        T.gather4(A, tile, bx * 32, [R[i] for i in range(4)])
        T.gather_rows(A, tile, R[0:4], 32)
        T.scatter_rows(tile, A, R[4:8], 0)
        T.reduce_max(A, C, dim=1, clear=False, nan_propagate=True)
        T.cumsum(A, dim=1, reverse=True)
        T.atomic_max(C[bx], A[bx, 0], "release")
        T.atomic_add(C, C)
        C[bx] = T.atomic_add(C[bx], 1, return_prev=True) + T.atomic_load(A[bx, 1], "relaxed")
        T.print(A[bx, 0], msg="x")
        T.print(tile)


@T.prim_func
def copies_of_threads(
    A: T.Tensor((64, 64), "float16"),
    B: T.Tensor((64, 64), "float8_e4m3fn"),
    C: T.Tensor((64,), "float32"),
):
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((64, 64), "float16")
        right = T.alloc_shared((64, 64), "float8_e4m3fn")
        sums = T.alloc_fragment((64, 64), "float32")
        arrived = T.alloc_barrier([128, 128])
        T.tma_copy(A, tile, barrier=arrived[1], leader_scope_threads=64)
        T.mbarrier_arrive(arrived[1])
        T.mbarrier_wait_parity(arrived[1], 0)
        T.ptx_cp_async(T.access_ptr(tile, "w"), T.access_ptr(A[1:2, 4:8], "r"), 4)
        T.ptx_cp_async(
            T.access_ptr(tile[3, 4], "w", ignore_last_ndim=1),
            T.access_ptr(A[2, 0], "r", offset=2),
            2,
        )
        T.clear(sums)
        T.copy(B, right)
        T.fp8_scaled_matmul(
            right, B[0:64, 0:2], right, B[0:64, 2:4], sums, transpose_B=True,
            block_scale_layout=T.BlockScaledLayout("float8_e4m3fn", 32),
        )  # fmt: skip


def test_operators_are_parsed_back():
    assert_structural_equal(from_source(operators.script()), operators)
    text = copies_of_threads.script()
    assert "tvmtile.fp8_scaled_matmul" in text
    assert_structural_equal(from_source(text, s_tir=True), copies_of_threads)


@pytest.mark.full
def test_a_process_that_has_imported_tvm_alone_parses_them():
    """`T.tvmtile` imports the operators when the first one is named."""
    text = operators.script()
    program = f"""
import sys
import tvm
from tvm.script import from_source, tirx as T

assert not hasattr(T.tvmtile, "__wrapped__") and "tvmtile.ir.operators" not in sys.modules
assert not hasattr(T.tvmtile, "flip")
sys.exit(from_source({text!r}).script() != {text!r})
"""
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH + program], check=True)
