"""LowerElementOp: expressions, statements, and what is linked."""

from __future__ import annotations

import pytest
import torch
import tvm
from tvm import ir, tirx

import tvmtile
import tvmtile.language as T


def imported_texts(func):
    texts = []
    node = func.body
    while isinstance(node, tirx.AttrStmt) and node.attr_key == "pragma_import_llvm":
        texts.append(node.value.value)
        node = node.body
    return texts


def test_each_function_is_linked_once():
    @T.prim_func
    def main(A: T.Tensor((8,), "int32"), B: T.Tensor((8,), "float32")):
        with T.Kernel(2, threads=1) as bx:
            T.atomic_add(A[bx], 1)
            T.atomic_add(A[bx + 1], T.atomic_load(A[0]))
            T.atomic_max(B[bx], 2)

    steps = dict(tvmtile.compile(main).lowering)
    (func,) = steps["tvmtile.LowerElementOp"].functions.values()
    texts = imported_texts(func)
    assert len(texts) == len(set(texts)) == 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_kernels_of_one_module_and_one_kernel_twice(dtype):
    """Two functions that need the same atomic are linked into one module."""

    @T.prim_func
    def first(A: T.Tensor((1,), dtype)):
        with T.Kernel(10, threads=1):
            T.atomic_add(A[0], 1)

    @T.prim_func
    def second(A: T.Tensor((1,), dtype)):
        with T.Kernel(20, threads=1):
            T.atomic_add(A[0], 1)
        with T.Kernel(30, threads=1):
            T.atomic_add(A[0], 1)

    functions = {
        name: func.with_attr("global_symbol", name)
        for name, func in (("first", first), ("second", second))
    }
    module = tvm.tirx.build(ir.IRModule(functions), target="llvm", pipeline="tvmtile")
    total = torch.zeros(1, dtype=getattr(torch, dtype))
    module["first"](total)
    module["second"](total)
    assert total.item() == 60


def test_linked_functions_leave_no_call():
    """A library has the atomics inside and needs nothing else."""

    @T.prim_func
    def main(A: T.Tensor((1,), "float32")):
        with T.Kernel(100, threads=1):
            T.atomic_add(A[0], 1)

    source = tvmtile.compile(main).module.inspect_source("ll")
    assert "declare" not in "".join(
        line for line in source.splitlines() if "tvmtile_atomic" in line
    )
    assert "atomicrmw fadd" in source
