"""Copies between shared memory and fragments by `ldmatrix` and `stmatrix`."""

import pytest
import torch

import tvmtile.language as T
from tests.gpu.machine import DEVICE, on_gpu, random
from tests.metal.programs import assert_close


def product(
    m, n, k, *, dtype="float16", out="float16", fragments="A", transposes=(False, False), k_pack=1
):
    """C = A @ B of whole tiles; operands in fragments, and the result through shared memory.

    Parameters
    ----------
    fragments : str
        Which of A and B are copied from shared memory into a fragment.
    out : str
        Dtype of the tile that the accumulator is stored in.
    k_pack : int
        Of the product.
    """
    sums = "int32" if dtype == "int8" else "float32"
    transpose_A, transpose_B = transposes
    shape_A, shape_B = (k, m) if transpose_A else (m, k), (n, k) if transpose_B else (k, n)

    @T.prim_func
    def main(A: T.Tensor(shape_A, dtype), B: T.Tensor(shape_B, dtype), C: T.Tensor((m, n), out)):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared(shape_A, dtype)
            b = T.alloc_shared(shape_B, dtype)
            c = T.alloc_shared((m, n), out)
            a_fragment = T.alloc_fragment(shape_A, dtype)
            b_fragment = T.alloc_fragment(shape_B, dtype)
            acc = T.alloc_fragment((m, n), sums)
            T.copy(A, a)
            T.copy(B, b)
            T.clear(acc)
            T.copy(a, a_fragment)
            T.copy(b, b_fragment)
            left = a_fragment if "A" in fragments else a
            right = b_fragment if "B" in fragments else b
            T.gemm(left, right, acc, transpose_A, transpose_B, k_pack=k_pack)
            T.copy(acc, c)
            T.copy(c, C)

    return main


def check(program, m, n, k, dtype, out, transposes):
    kernel = on_gpu(program, arch="sm_90a")
    a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype)
    transpose_A, transpose_B = transposes
    c = torch.empty(m, n, dtype=getattr(torch, out), device=DEVICE)
    kernel(a.T.contiguous() if transpose_A else a, b.T.contiguous() if transpose_B else b, c)
    assert_close(c, a.double() @ b.double())


@pytest.mark.parametrize("transposes", [(a, b) for a in (False, True) for b in (False, True)])
@pytest.mark.parametrize("fragments", ["A", "B", "AB"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_operands_come_into_fragments(dtype, fragments, transposes):
    program = product(
        64, 64, 32, dtype=dtype, out=dtype, fragments=fragments, transposes=transposes
    )
    check(program, 64, 64, 32, dtype, dtype, transposes)


@pytest.mark.parametrize("transposes", [(a, b) for a in (False, True) for b in (False, True)])
@pytest.mark.parametrize("fragments", ["A", "B", "AB"])
@pytest.mark.parametrize("k_pack", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_a_thread_holds_the_elements_of_several_instructions_side_by_side(
    dtype, k_pack, fragments, transposes
):
    """K is of 3 or 4 instructions, so that some are packed together by 1, all are or two are."""
    depth = 128 if dtype == "int8" else 64 if k_pack != 3 else 48
    out = "int32" if dtype == "int8" else dtype
    options = {"fragments": fragments, "transposes": transposes, "k_pack": k_pack}
    program = product(64, 64, depth, dtype=dtype, out=out, **options)
    check(program, 64, 64, depth, dtype, out, transposes)


@pytest.mark.parametrize("extents", [(64, 128, 16), (128, 64, 48), (32, 96, 64), (64, 16, 16)])
@pytest.mark.parametrize("out", ["float16", "bfloat16", "float32"])
def test_accumulators_go_to_shared_memory(out, extents):
    program = product(*extents, out=out, fragments="")
    check(program, *extents, "float16", out, (False, False))


@pytest.mark.parametrize(
    ("out", "arch", "is_used"),
    [("float16", "sm_90a", True), ("float32", "sm_90a", False), ("float16", "sm_80", False)],
)
def test_stmatrix_is_used_where_it_is(out, arch, is_used):
    from tvmtile import compile as compile_program

    kernel = compile_program(
        product(64, 64, 32, out=out, fragments=""), target={"kind": "cuda", "arch": arch}
    )
    assert ("stmatrix.sync.aligned.m8n8.x4" in kernel.get_kernel_source()) == is_used


def test_an_operand_is_scaled_by_a_vector_that_depends_on_one_element():
    """What all threads hold does not decide which of them compute with it."""
    n = 64

    @T.prim_func
    def main(
        X: T.Tensor((n, n), "float16"),
        S: T.Tensor((n,), "float32"),
        B: T.Tensor((n, n), "float16"),
        C: T.Tensor((n, n), "float32"),
    ):
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((n, n), "float16")
            b = T.alloc_shared((n, n), "float16")
            rows = T.alloc_fragment((n, n), "float16")
            columns = T.alloc_fragment((n, n), "float16")
            last = T.alloc_fragment((1,), "float32")
            given = T.alloc_fragment((n,), "float32")
            scale = T.alloc_fragment((n,), "float32")
            acc = T.alloc_fragment((n, n), "float32")
            T.copy(X, x)
            T.copy(B, b)
            T.copy(S, given)
            last[0] = S[n - 1]
            for j in T.Parallel(n):
                scale[j] = last[0] - given[j]
            T.copy(x, rows)
            for i, j in T.Parallel(n, n):
                columns[i, j] = rows[j, i] * scale[j]
            T.gemm(columns, b, acc, clear_accum=True)
            T.copy(acc, C)

    x, b = random(n, n, dtype="float16"), random(n, n, dtype="float16")
    s = random(n, dtype="float32")
    c = torch.empty(n, n, device=DEVICE)
    on_gpu(main)(x, s, b, c)
    scaled = (x.double().T * (s[-1] - s)).half()
    assert_close(c, scaled.double() @ b.double(), "float16")


def test_squares_of_an_operand_are_summed_a_few_columns_at_a_time():
    m, n, k = 32, 32, 64

    @T.prim_func
    def main(
        X: T.Tensor((m, k), "float32"),
        B: T.Tensor((n, k), "float32"),
        C: T.Tensor((m, n), "float32"),
        S: T.Tensor((m,), "float32"),
    ):
        with T.Kernel(1, threads=128):
            b = T.alloc_shared((n, k), "float32")
            x = T.alloc_fragment((m, k), "float32")
            part = T.alloc_fragment((m, 4), "float32")
            sums = T.alloc_fragment((m,), "float32")
            acc = T.alloc_fragment((m, n), "float32")
            T.copy(B, b)
            T.copy(X, x)
            T.clear(part)
            for step in T.serial(k // 4):
                for i, j in T.Parallel(m, 4):
                    part[i, j] += x[i, step * 4 + j] * x[i, step * 4 + j]
            T.gemm(x, b, acc, transpose_B=True, clear_accum=True)
            T.reduce_sum(part, sums)
            T.copy(sums, S)
            T.copy(acc, C)

    x, b = random(m, k, dtype="float32"), random(n, k, dtype="float32")
    c, s = torch.empty(m, n, device=DEVICE), torch.empty(m, device=DEVICE)
    on_gpu(main)(x, b, c, s)
    assert_close(c, x.double() @ b.double().T, "float16")
    assert_close(s, (x.double() ** 2).sum(1), "float32")
