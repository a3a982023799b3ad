"""Which vectorised loops run in order."""

from __future__ import annotations

import pytest
import torch
import tvm
from tvm import ir, tirx
from tvm.script import tirx as T

import tvmtile
import tvmtile.language as L
from tvmtile.passes import SerializeVectors

INDEPENDENT = (
    "B[bx, i] = B[bx, i] + A[i, bx]",
    "B[i, bx * 2] = B[i, 0]",
    "B[0, 7 - i] = B[0, 7 - i] * A[0, i]",
    "B[0, i * 2] = B[0, i * 2 + 1]",
    "B[0, i] = B[0, i + 4]",
    "B[0, A_index[0] + i] = A[0, i]",
)
DEPENDENT = (
    "B[0, 0] = B[0, 0] + A[0, i]",
    "B[0, i + 1] = B[0, i]",
    "B[0, i] = B[0, 3 - i]",
    "B[0, i * 2] = B[0, i * 2 + 2]",
    "B[0, i // 2] = A[0, i]",
    "B[0, A_index[i]] = A[0, i]",
    "A_index[A_index[0] + i] = i",
)


def vectors(statement):
    func = tvm.script.from_source(
        f"""
@T.prim_func
def main(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32"),
         A_index: T.Buffer((8,), "int32")):
    for bx in T.thread_binding(4, thread="blockIdx.x", annotations={{"tvmtile.kernel": True}}):
        for i in T.vectorized(4):
            {statement}
""",
        extra_vars={"T": T},
    )
    body = SerializeVectors(ir.IRModule({"main": func}))["main"].body.body
    return body.kind == tirx.ForKind.VECTORIZED


@pytest.mark.parametrize("statement", INDEPENDENT)
def test_independent_iterations_stay_a_vector(statement):
    assert vectors(statement)


@pytest.mark.parametrize("statement", DEPENDENT)
def test_iterations_that_may_depend_on_each_other_run_in_order(statement):
    assert not vectors(statement)


METAL = {"target": "metal", "execution_backend": "emulator"}
CUDA = {"target": {"kind": "cuda", "arch": "sm_90a"}, "execution_backend": "emulator"}


@pytest.mark.full(but=2)
@pytest.mark.parametrize("place", [{"target": "llvm"}, METAL, CUDA], ids=["llvm", "metal", "cuda"])
@pytest.mark.parametrize(("dtype", "n"), [("int8", 32), ("float16", 8), ("float32", 24)])
def test_stores_wider_than_a_vector_are_loops(place, dtype, n):
    @L.prim_func
    def kernel(A: L.Tensor((2 * n,), dtype), B: L.Tensor((n,), dtype), C: L.Tensor((n,), dtype)):
        with L.Kernel(1, threads=1):
            row = L.alloc_local((n,), dtype)
            row[0:n] = L.Broadcast(B[1], n)
            C[L.Ramp(0, 1, n)] = B[L.Ramp(0, 1, n)] + row[L.Ramp(0, 1, n)]
            A[0:n] = A[n : 2 * n]

    a, b, c = (torch.randint(0, 50, (m,)).to(getattr(torch, dtype)) for m in (2 * n, n, n))
    expected = torch.cat([a[n:], a[n:]])
    tvmtile.compile(kernel, **place)(a, b, c)
    assert torch.equal(c, b + b[1])
    assert torch.equal(a, expected)


def bodies(statement):
    func = tvm.script.from_source(
        f"""
@T.prim_func
def main(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    T.func_attr({{"target": T.target("metal")}})
    for bx in T.thread_binding(4, thread="blockIdx.x", annotations={{"tvmtile.kernel": True}}):
        {statement}
""",
        extra_vars={"T": T},
    )
    return func.body.body, SerializeVectors(ir.IRModule({"main": func}))["main"].body.body


def test_a_store_of_a_vector_that_the_gpu_has_stays():
    before, after = bodies("B[T.Ramp(0, 1, 4)] = A[T.Ramp(0, 1, 4)]")
    assert before.same_as(after)


def test_a_store_that_reads_what_it_writes_elsewhere_stays():
    before, after = bodies("A[T.Ramp(0, 1, 8)] = A[T.Ramp(1, 1, 8)]")
    assert before.same_as(after)
