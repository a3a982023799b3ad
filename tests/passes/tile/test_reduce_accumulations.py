"""ReduceAccumulations: how many terms threads hold."""

from __future__ import annotations

import math

import pytest
from tvm import ir, tirx

import tvmtile.language as T
from tvmtile._tvm import walk
from tvmtile.ir.calls import op_name
from tvmtile.passes import Legalize, ReduceAccumulations


def reduced(program):
    module = ir.IRModule({"main": program.with_attr("global_symbol", "main")})
    return ReduceAccumulations(Legalize(module))["main"].body


@pytest.mark.parametrize(
    ("rows", "columns", "threads", "most"),
    [
        (2, 16384, 32, 32 * 32),
        (4, 20000, 32, 4 * 250),  # divides 20,000
        (2, 16384, 128, 2 * 16384),  # 256 a thread
    ],
)
def test_many_terms_are_accumulated_piece_by_piece(rows, columns, threads, most):
    @T.prim_func
    def main(A: T.Tensor((rows, columns), "float32"), C: T.Tensor((rows,), "float32")):
        with T.Kernel(1, threads=threads):
            total = T.alloc_fragment((rows,), "float32")
            T.fill(total, 3)
            for i, j in T.Parallel(rows, columns):
                total[i] += A[i, j]
            T.copy(total, C)

    sizes = []
    walk(
        reduced(main),
        (tirx.AllocBuffer, lambda node: sizes.append(math.prod(map(int, node.buffer.ty.shape)))),
    )
    assert max(sizes) == most


@pytest.mark.parametrize(("threads", "reductions"), [(4, 0), (2, 1)])  # 96 and 192 terms a thread
def test_more_terms_than_registers_are_reduced_in_each_iteration(threads, reductions):
    @T.prim_func
    def main(A: T.Tensor((24, 64), "float32"), C: T.Tensor((24,), "float32")):
        with T.Kernel(1, threads=threads):
            total = T.alloc_fragment((24,), "float32")
            T.clear(total)
            for k in T.serial(4):
                for i, j in T.Parallel(24, 16):
                    total[i] += A[i, k * 16 + j]
            T.copy(total, C)

    found = []

    def loop(node):
        if node.kind == tirx.ForKind.SERIAL:
            walk(node.body, (ir.Call, lambda call: found.append(op_name(call))))

    walk(reduced(main), (tirx.For, loop))
    assert found.count("tvmtile.reduce") == reductions
