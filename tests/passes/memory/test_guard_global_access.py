"""Accesses over the edge of a tensor, by the numbers that a kernel computes."""

from __future__ import annotations

import pytest
import torch
from tvm import ir
from tvm.script import tirx as TS

import tvmtile
import tvmtile.language as T
from tvmtile.passes import GuardGlobalAccess

N, M = 100, 70


def test_index_bound_to_a_name_inside_the_loop() -> None:
    @T.prim_func
    def shift(A: T.Tensor((M,), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 32)) as bx:
            for i in T.Parallel(32):
                here = bx * 32 + i
                there = here + 3
                C[here] = A[there] + 1

    a = torch.randn(M)
    expected = torch.ones(N)
    expected[: M - 3] += a[3:]
    assert torch.equal(tvmtile.compile(shift, out_idx=-1)(a), expected)


def test_index_read_from_memory() -> None:
    @T.prim_func
    def gather(
        A: T.Tensor((M,), "float32"), I: T.Tensor((N,), "int32"), C: T.Tensor((N,), "float32")
    ):
        with T.Kernel(T.ceildiv(N, 32)) as bx:
            for i in T.Parallel(32):
                C[bx * 32 + i] = A[I[bx * 32 + i]]

    a, index = torch.randn(M), torch.randint(-20, M + 20, (N,), dtype=torch.int32)
    inside = (index >= 0) & (index < M)
    expected = torch.where(inside, a[index.clamp(0, M - 1).long()], 0.0)
    assert torch.equal(tvmtile.compile(gather, out_idx=-1)(a, index), expected)


def test_loop_over_rows_inside_a_parallel_loop() -> None:
    @T.prim_func
    def column_sums(A: T.Tensor((M, N), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 32)) as bx:
            total = T.alloc_fragment((32,), "float32")
            T.clear(total)
            for i in T.Parallel(32):
                for row in T.serial(M + 5):
                    total[i] += A[row, bx * 32 + i]
            T.copy(total, C[bx * 32])

    a = torch.randn(M, N)
    result = tvmtile.compile(column_sums, out_idx=-1)(a)
    torch.testing.assert_close(result, a.double().sum(0).float(), rtol=1e-5, atol=1e-5)


def test_a_tile_larger_than_its_tensor_has_one_version() -> None:
    @TS.prim_func(private=True)
    def main(A: TS.Buffer((23,), "float32"), n: TS.int32):
        for bx in TS.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in TS.parallel(24):
                A[n * 24 + i] = TS.float32(0)

    module = GuardGlobalAccess(ir.IRModule({"main": main.with_attr("global_symbol", "main")}))
    assert module["main"].script().count("T.parallel") == 1


@pytest.mark.full
def test_condition_of_the_user_is_enough() -> None:
    @T.prim_func
    def double(A: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 32)) as bx:
            for i in T.Parallel(32):
                if bx * 32 + i < N:
                    C[bx * 32 + i] = A[bx * 32 + i] * 2

    kernel = tvmtile.compile(double, out_idx=-1)
    guarded = dict(kernel.lowering)["tvmtile.GuardGlobalAccess"].script()
    assert "if_then_else" not in guarded
    a = torch.randn(N)
    assert torch.equal(kernel(a), a * 2)


def test_dynamic_extent() -> None:
    n = T.dynamic("n")

    @T.prim_func
    def negate(A: T.Tensor((n,), "float32"), C: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 32)) as bx:
            for i in T.Parallel(32):
                C[bx * 32 + i] = -A[bx * 32 + i]

    kernel = tvmtile.compile(negate)
    for size in (1, 31, 32, 33, 100):
        memory = torch.full((size + 64,), 7.0)
        a, c = torch.randn(size), memory[:size]
        kernel(a, c)
        assert torch.equal(c, -a)
        assert (memory[size:] == 7).all()


def test_a_value_for_reads_outside() -> None:
    @T.prim_func
    def shift(A: T.Tensor((N,), "float16"), C: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 32)) as bx:
            T.annotate_safe_value({A: -2.5})
            tile = T.alloc_shared((32,), "float32")
            T.copy(A[bx * 32 + 3], tile)
            for i in T.Parallel(32):
                C[bx * 32 + i] = tile[i] + A[bx * 32 + i - 4]

    a = torch.randn(N).half()
    padded = torch.cat([torch.full((4,), -2.5), a.float(), torch.full((3,), -2.5)])
    expected = padded[7:] + padded[:N]
    assert torch.equal(tvmtile.compile(shift, out_idx=-1)(a), expected)


def test_each_lane_of_a_vector_is_guarded_by_itself() -> None:
    @T.prim_func
    def shift(A: T.Tensor((N,), "int32"), C: T.Tensor((N,), "int32")):
        with T.Kernel(T.ceildiv(N, 8)) as bx:
            C[bx * 8 - 2 : bx * 8 + 6] = A[bx * 8 - 4 : bx * 8 + 4]

    a = torch.arange(N, dtype=torch.int32) + 1
    expected = torch.cat([torch.zeros(2, dtype=torch.int32), a[:-2]])
    result = torch.full((N,), -1, dtype=torch.int32)
    tvmtile.compile(shift)(a, result)
    written = min(N, (N + 7) // 8 * 8 - 2)
    assert torch.equal(result[:written], expected[:written])
    assert result[written:].eq(-1).all()


def test_a_name_keeps_the_value_that_a_variable_had() -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: T.Tensor((4,), "float32")):
        with T.Kernel(1) as _:
            v = T.alloc_var("int32", 6)
            start = v
            v = 0
            for i in T.Parallel(4):
                B[i] = A[start + i]

    memory = torch.arange(1.0, 17)
    assert tvmtile.compile(main, out_idx=1)(memory[:8]).tolist() == [7, 8, 0, 0]


def test_a_condition_on_a_variable_holds_until_it_changes() -> None:
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), B: T.Tensor((5,), "float32")):
        with T.Kernel(1) as _:
            v = T.alloc_var("int32", 3)
            if v < 4:
                v = v + 4
                for i in T.Parallel(4):
                    B[i] = A[v + i]
                if v < 4:
                    B[4] = 1
                else:
                    B[4] = 2

    memory = torch.arange(1.0, 17)
    assert tvmtile.compile(main, out_idx=1)(memory[:8]).tolist() == [8, 0, 0, 0, 2]


def test_only_the_innermost_loop_gets_a_version_without_guards() -> None:
    """What comes before it and after it is done once."""
    m = T.dynamic("m")

    @T.prim_func
    def sums(A: T.Tensor((m, 64), "float32"), C: T.Tensor((m,), "float32")):
        with T.Kernel(T.ceildiv(m, 32), threads=32) as bx:
            total = T.alloc_fragment((32,), "float32")
            for i in T.Parallel(32):
                total[i] = C[bx * 32 + i]
            for k in T.serial(64):
                for i in T.Parallel(32):
                    total[i] += A[bx * 32 + i, k]
            for i in T.Parallel(32):
                C[bx * 32 + i] = total[i]

    kernel = tvmtile.compile(sums, target="metal", execution_backend="emulator")
    lines = kernel.get_kernel_source().splitlines()
    assert sum("A_ptr[" in line for line in lines) == 2
    assert sum("C_ptr[" in line for line in lines) == 2
    a, c = torch.randn(45, 64), torch.randn(45)
    expected = c + a.sum(1)
    kernel(a, c)
    torch.testing.assert_close(c, expected)


def test_an_index_of_floats_that_the_nest_decides() -> None:
    @T.prim_func
    def gather(S: T.Tensor((4,), "float32"), B: T.Tensor((6,), "float32"), C: T.Tensor((8,))):
        with T.Kernel(1, threads=32):
            for k in T.serial(4):
                first = S[k]
                for i in T.Parallel(2):
                    C[2 * k + i] = B[T.cast(first * (i + 1), "int32")]

    b, c = torch.arange(6.0) + 1, torch.full((8,), -1.0)
    tvmtile.compile(gather)(torch.tensor([1.0, 2.5, 3.0, -4.0]), b, c)
    assert c.tolist() == [2, 3, 3, 6, 4, 0, 0, 0]
