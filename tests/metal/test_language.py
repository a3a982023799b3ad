"""What the catalogue can't say on Metal: threads, functions by name, kernels of one name."""

from __future__ import annotations

import pytest
import torch

import tvmtile
import tvmtile.language as T


@pytest.mark.full(but=1)
def test_loops_of_a_thread(compiled):
    """unroll, vectorized, serial with break and continue, while, and threads that end early."""

    @T.prim_func
    def main(A: T.Tensor((32, 16), "int32"), C: T.Tensor((32,), "int32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            total = T.alloc_var("int32", 0)
            own = T.alloc_local((4,), "int32")
            for i in T.unroll(4):
                own[i] = A[tx, i]
            for i in T.vectorized(4):
                own[i] = own[i] + A[tx, 4 + i]
            for i in T.serial(16):
                if A[tx, i] < 0:
                    continue
                if A[tx, i] > 90:
                    break
                total += A[tx, i]
            k = T.alloc_var("int32", 0)
            while k < 4:
                total += own[k]
                k += 1
            if tx >= 30:
                T.thread_return()
            C[tx] = total

    a, results = torch.randint(-20, 100, (32, 16), dtype=torch.int32), []
    for compile_program in (compiled, tvmtile.compile):
        out = torch.full((32,), -1, dtype=torch.int32)
        compile_program(main)(a, out)
        results.append(out.tolist())
    assert results[0] == results[1]
    assert results[0][30:] == [-1, -1]


def test_functions_of_metal_by_name(compiled):
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), C: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                C[i] = T.call_extern("float32", "fma", A[i], 2.0, 1.0)

    a, c = torch.randn(64), torch.zeros(64)
    compiled(main)(a, c)
    torch.testing.assert_close(c, 2 * a + 1)


def test_a_view_of_vectors_has_an_element_for_each_lane():
    @T.prim_func
    def main(A: T.Tensor((8,), "float16"), C: T.Tensor((8,), "float16")):
        with T.Kernel(1, threads=32):
            pairs = T.alloc_local((4,), "float16x2")
            single = T.view(pairs, (8,), "float16")
            for i in T.serial(8):
                single[i] = A[i] * 2
            for i in T.serial(8):
                C[i] = single[i]

    a, c = torch.randn(8).half(), torch.empty(8).half()
    tvmtile.compile(main)(a, c)
    assert torch.equal(c, a * 2)


@pytest.mark.parametrize(
    ("threads", "rows", "columns"), [(1, 5, 7), (24, 3, 48), (48, 8, 16), (100, 16, 32)]
)
def test_threads_of_any_number_meet_at_barriers(compiled, threads, rows, columns):
    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), C: T.Tensor((rows, columns), "float32")):
        with T.Kernel(1, threads=threads):
            thread = T.get_thread_binding()
            shared = T.alloc_shared((threads,), "float32")
            for i, step in T.grid(rows, T.ceildiv(columns, threads)):
                shared[thread] = 0
                if step * threads + thread < columns:
                    shared[thread] = A[i, step * threads + thread]
                T.sync_threads()
                if step * threads + thread < columns:
                    C[i, step * threads + thread] = shared[thread] + shared[0]
                T.sync_threads()

    a, c = torch.randn(rows, columns), torch.zeros(rows, columns)
    compiled(main)(a, c)
    steps = a.split(threads, dim=1)
    assert torch.equal(c, torch.cat([step + step[:, :1] for step in steps], 1))


def test_two_kernels_of_one_name_and_different_bodies(compiled):
    def add(value):
        @T.prim_func
        def main(A: T.Tensor((40,), "float32")):
            with T.Kernel(1, threads=32):
                for i in T.Parallel(40):
                    A[i] = A[i] * 2 + value

        return compiled(main)

    a = torch.zeros(40)
    one, ten = add(1), add(10)
    one(a)
    ten(a)
    one(a)
    assert (a == 25).all()
