"""Which vectorised loops run in order."""

from __future__ import annotations

import pytest
import tvm
from tvm import ir, tirx
from tvm.script import tirx as T

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
