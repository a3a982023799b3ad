"""ReduceAccumulations: what is reduced, what stays, and that the numbers are the same."""

from __future__ import annotations

import math

import pytest
import torch
from tvm import ir, tirx
from tvm_ffi import structural_equal

import tvmtile
import tvmtile.language as T
from tests.metal.programs import runnable
from tvmtile._tvm import walk
from tvmtile.ir.calls import op_name
from tvmtile.passes import Legalize, ReduceAccumulations

CUDA = {"kind": "cuda", "arch": "sm_80"}

M, N = 24, 64


def kernel(body, result=(M,), dtype="float32", threads=64, start=0):
    """Accumulate over a tile into a fragment, as `body(total, x)` says."""

    @T.prim_func
    def main(A: T.Tensor((M, N), dtype), C: T.Tensor(result, dtype)):
        with T.Kernel(1, threads=threads):
            x = T.alloc_shared((M, N), dtype)
            total = T.alloc_fragment(result, dtype)
            T.copy(A, x)
            T.fill(total, start)
            body(total, x)
            T.copy(total, C)

    return main


def is_reduced(program):
    module = Legalize(ir.IRModule({"main": program.with_attr("global_symbol", "main")}))
    return not structural_equal(ReduceAccumulations(module), module)


@T.macro
def by_rows(total, x):
    for i, j in T.Parallel(M, N):
        total[i] += x[i, j] * x[i, j]


@T.macro
def by_columns(total, x):
    for i, j in T.Parallel(M, N):
        total[j] += x[i, j]


@T.macro
def by_all(total, x):
    for i, j in T.Parallel(M, N):
        total[0] = x[i, j] + total[0]


@T.macro
def with_names(total, x):
    for i, j in T.Parallel(M, N):
        value = x[i, j] * 2
        total[i] += value * value


@T.macro
def where_positive(total, x):
    for i, j in T.Parallel(M, N):
        if x[i, j] > 0:
            total[i] += x[i, j]


@T.macro
def greatest(total, x):
    for i, j in T.Parallel(M, N):
        total[i] = T.max(total[i], x[i, j])


@T.macro
def least_where_large(total, x):
    for i, j in T.Parallel(M, N):
        if j >= 5:
            total[i] = T.min(total[i], x[i, j])


@T.macro
def in_iterations(total, x):
    for k in T.serial(4):
        for i, j in T.Parallel(M, N // 4):
            total[i] += x[i, k * (N // 4) + j]


REDUCED = {
    "rows": (by_rows, (M,), lambda a: (a * a).sum(1)),
    "columns": (by_columns, (N,), lambda a: a.sum(0)),
    "all": (by_all, (1,), lambda a: a.sum().view(1)),
    "names": (with_names, (M,), lambda a: (4 * a * a).sum(1)),
    "condition": (where_positive, (M,), lambda a: a.clamp(min=0).sum(1)),
    "maximum": (greatest, (M,), lambda a: a.amax(1).clamp(min=0)),
    "minimum": (least_where_large, (M,), lambda a: a[:, 5:].amin(1).clamp(max=0)),
    "iterations": (in_iterations, (M,), lambda a: a.sum(1)),
}


@pytest.mark.full(but=2)
@pytest.mark.parametrize("target", ["llvm", "metal"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("form", REDUCED)
def test_accumulations_are_reduced(form, dtype, target):
    body, result, reference = REDUCED[form]
    program = kernel(body, result, dtype)
    assert is_reduced(program)
    a = torch.randint(-9, 9, (M, N)).to(getattr(torch, dtype))
    c = torch.empty(result, dtype=a.dtype)
    runnable(program, target)(a, c)
    torch.testing.assert_close(c, reference(a).to(a.dtype))


@T.macro
def read_again(total, x):
    for i, j in T.Parallel(M, N):
        total[i] += x[i, j]
        x[i, j] = total[i]


@T.macro
def in_a_loop(total, x):
    for i, j in T.Parallel(M, N // 4):
        for k in T.serial(4):
            total[i] += x[i, j * 4 + k]


@T.macro
def elementwise(total, x):
    for i in T.Parallel(M):
        total[i] += x[i, 0]


@T.macro
def backwards(total, x):
    for i, j in T.Parallel(M, N):
        total[M - 1 - i] += x[i, j]


@T.macro
def no_accumulation(total, x):
    for i, j in T.Parallel(M, N):
        total[i] = x[i, 0]


@pytest.mark.parametrize("body", [read_again, in_a_loop, elementwise, backwards, no_accumulation])
def test_what_is_something_else_stays(body):
    assert not is_reduced(kernel(body))


def test_sums_of_narrow_floats_stay_as_they_round_after_each_term():
    assert not is_reduced(kernel(by_rows, dtype="float16"))


def test_a_few_terms_are_left_to_a_thread_where_all_threads_have_sums():
    @T.macro
    def body(total, x):
        for i, j in T.Parallel(M, 4):
            total[i] += x[i, j]

    assert not is_reduced(kernel(body, threads=16))
    assert is_reduced(kernel(body, threads=64))


def test_terms_in_other_threads_than_the_sums_need_no_shared_memory():
    @T.prim_func
    def main(A: T.Tensor((M, N), "float16"), C: T.Tensor((M,), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((M, N), "float16")
            total = T.alloc_fragment((M,), "float32")
            T.copy(A, x)
            T.clear(total)
            for i, j in T.Parallel(M, N):
                total[i] += T.cast(x[i, j], "float32") * T.cast(x[i, j], "float32")
            T.copy(total, C)

    source = tvmtile.compile(main, target={"kind": "cuda", "arch": "sm_80"}).get_kernel_source()
    assert "__shfl_xor_sync" in source
    assert "__shared__" not in source


def dot_products(rows, columns, threads):
    """Rows of one matrix times those of another, straight from memory."""
    shape = (rows, columns)

    @T.prim_func
    def main(
        A: T.Tensor(shape, "float32"),
        B: T.Tensor(shape, "float32"),
        C: T.Tensor((rows,), "float32"),
    ):
        with T.Kernel(1, threads=threads):
            total = T.alloc_fragment((rows,), "float32")
            T.fill(total, 3)
            for i, j in T.Parallel(rows, columns):
                if A[i, j] > -1:
                    total[i] += A[i, j] * B[i, j]
            T.copy(total, C)

    return main


def most_held(program):
    """The most elements of a fragment after the pass."""
    module = Legalize(ir.IRModule({"main": program.with_attr("global_symbol", "main")}))
    sizes = []
    walk(
        ReduceAccumulations(module)["main"].body,
        (tirx.AllocBuffer, lambda node: sizes.append(math.prod(map(int, node.buffer.ty.shape)))),
    )
    return max(sizes)


def test_many_terms_are_accumulated_piece_by_piece():
    assert most_held(dot_products(2, 16384, threads=32)) == 32 * 32
    assert most_held(dot_products(4, 20000, threads=32)) == 4 * 250  # divides 20,000
    assert most_held(dot_products(2, 16384, threads=128)) == 2 * 16384  # 256 a thread


@pytest.mark.full
@pytest.mark.parametrize("target", ["llvm", "metal", CUDA], ids=["llvm", "metal", "cuda"])
@pytest.mark.parametrize(("rows", "columns"), [(2, 16384), (4, 20000)])
def test_pieces_add_up_to_the_same_sums(rows, columns, target):
    program = dot_products(rows, columns, threads=32)
    kernel = runnable(program, target)
    A, B = (torch.randint(-2, 3, (rows, columns)).float() for _ in range(2))
    C = torch.empty(rows)
    kernel(A, B, C)
    assert torch.equal(C, 3 + (A * B * (A > -1)).sum(1))


# Through serial loops ------------------------------------------------------------------------------


@T.macro
def nested_loops(total, x):
    for k in T.serial(2):
        for l in T.serial(2):
            for i, j in T.Parallel(M, N // 4):
                if x[i, j] > 0:
                    total[i] += x[i, (k * 2 + l) * (N // 4) + j]


@T.macro
def greatest_of_iterations(total, x):
    for k in T.serial(4):
        for i, j in T.Parallel(M, N // 4):
            total[i] = T.max(total[i], x[i, k * (N // 4) + j])


@T.macro
def read_in_an_iteration(total, x):
    for k in T.serial(4):
        for i, j in T.Parallel(M, N // 4):
            total[i] += x[i, k * (N // 4) + j]
        for i in T.Parallel(M):
            x[i, k] = total[i]


@T.macro
def read_in_another_shape(total, x):
    view = T.reshape(total, (M // 2, 2))
    for k in T.serial(4):
        for i, j in T.Parallel(M, N // 4):
            total[i] += x[i, k * (N // 4) + j]
        for i, j in T.Parallel(M // 2, 2):
            x[i * 2 + j, k] = view[i, j]


@T.macro
def in_some_iterations(total, x):
    for k in T.serial(4):
        if k % 2 == 0:
            for i, j in T.Parallel(M, N // 4):
                total[i] += x[i, k * (N // 4) + j]


def reductions_in_loops(program):
    """How many reductions are done once an iteration of a serial loop."""
    module = Legalize(ir.IRModule({"main": program.with_attr("global_symbol", "main")}))
    found = []

    def loop(node):
        if node.kind == tirx.ForKind.SERIAL:
            walk(node.body, (ir.Call, lambda call: found.append(op_name(call))))

    walk(ReduceAccumulations(module)["main"].body, (tirx.For, loop))
    return found.count("tvmtile.reduce")


@pytest.mark.parametrize("body", [in_iterations, nested_loops, greatest_of_iterations])
def test_terms_are_carried_through_loops(body):
    assert reductions_in_loops(kernel(body)) == 0


@pytest.mark.parametrize("body", [read_in_an_iteration, read_in_another_shape, in_some_iterations])
def test_what_an_iteration_needs_or_leaves_out_is_reduced_in_it(body):
    assert reductions_in_loops(kernel(body)) == 1


def test_more_terms_than_registers_are_reduced_in_each_iteration():
    assert reductions_in_loops(kernel(in_iterations, threads=4)) == 0  # 96 a thread
    assert reductions_in_loops(kernel(in_iterations, threads=2)) == 1  # 192


CARRIED = {
    "nested": (nested_loops, lambda a: ((a[:, :16] > 0).repeat(1, 4) * a).sum(1)),
    "greatest": (greatest_of_iterations, lambda a: a.amax(1).clamp(min=0)),
    "some": (in_some_iterations, lambda a: a[:, :16].sum(1) + a[:, 32:48].sum(1)),
}


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", ["llvm", "metal", CUDA], ids=["llvm", "metal", "cuda"])
@pytest.mark.parametrize("form", CARRIED)
def test_carried_terms_add_up_to_the_same(form, target):
    body, reference = CARRIED[form]
    a, c = torch.randint(-9, 9, (M, N)).float(), torch.empty(M)
    runnable(kernel(body), target)(a, c)
    assert torch.equal(c, reference(a))


def cosines(rows, columns):
    """Of the angles between the rows of two matrices, tile by tile."""

    @T.prim_func
    def main(
        A: T.Tensor((rows, columns), "float16"),
        B: T.Tensor((rows, columns), "float16"),
        C: T.Tensor((rows,), "float32"),
    ):
        with T.Kernel(T.ceildiv(rows, 32), threads=64) as bx:
            a, b = T.alloc_shared((32, 32), "float16"), T.alloc_shared((32, 32), "float16")
            product = T.alloc_fragment((32,), "float32")
            lengths = T.alloc_fragment((2, 32), "float32")
            T.clear(product)
            T.clear(lengths)
            for k in T.Pipelined(T.ceildiv(columns, 32), num_stages=3):
                T.copy(A[bx * 32, k * 32], a)
                T.copy(B[bx * 32, k * 32], b)
                for i, j in T.Parallel(32, 32):
                    x, y = T.cast(a[i, j], "float32"), T.cast(b[i, j], "float32")
                    product[i] += x * y
                    lengths[0, i] += x * x
                for i, j in T.Parallel(32, 32):
                    y = T.cast(b[i, j], "float32")
                    lengths[1, i] += y * y
            for i in T.Parallel(32):
                if bx * 32 + i < rows:
                    C[bx * 32 + i] = product[i] * T.rsqrt(lengths[0, i] * lengths[1, i])

    return main


@pytest.mark.full
@pytest.mark.parametrize("target", ["llvm", "metal", CUDA], ids=["llvm", "metal", "cuda"])
def test_sums_over_a_pipelined_loop(target):
    a, b, c = torch.randn(40, 100).half(), torch.randn(40, 100).half(), torch.empty(40)
    runnable(cosines(40, 100), target)(a, b, c)
    expected = torch.nn.functional.cosine_similarity(a.double(), b.double())
    torch.testing.assert_close(c.double(), expected, rtol=1e-5, atol=1e-6)
