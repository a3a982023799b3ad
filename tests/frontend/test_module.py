"""Tile programs in `@I.ir_module` classes."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as TVMScript

import tvmtile.language as T
from tvmtile.passes import LowerTilePrograms

N = 80


@I.ir_module
class Mixed:
    @T.prim_func
    def double(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
        with T.Kernel(T.ceildiv(N, 32), threads=32) as bx:
            tile = T.alloc_shared((32,), "float32")
            T.copy(A[bx * 32], tile)
            for i in T.Parallel(32):
                tile[i] = tile[i] * 2.0
            T.copy(tile, B[bx * 32])

    @TVMScript.prim_func(s_tir=True)
    def increment(A: TVMScript.Buffer((80,), "float32"), B: TVMScript.Buffer((80,), "float32")):
        for i in range(80):
            with TVMScript.sblock("increment"):
                vi = TVMScript.axis.spatial(80, i)
                B[vi] = A[vi] + TVMScript.float32(1)

    @R.function
    def main(x: R.Tensor((80,), "float32")) -> R.Tensor((80,), "float32"):
        cls = Mixed
        with R.dataflow():
            y = R.call_tir(cls.double, (x,), out_ty=R.Tensor((80,), "float32"))
            z = R.call_tir(cls.increment, (y,), out_ty=R.Tensor((80,), "float32"))
            R.output(z)
        return z


def test_relax_calls_a_tile_program_beside_a_function_of_tvm():
    lowered = LowerTilePrograms("llvm")(Mixed)
    module = tvm.compile(lowered, target="llvm")
    machine = relax.VirtualMachine(module, tvm.cpu())
    x = np.random.default_rng(0).standard_normal(N, dtype=np.float32)
    result = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(result, x.astype("float64") * 2 + 1, rtol=1e-6)


def test_functions_of_tvm_are_left_alone():
    lowered = LowerTilePrograms("llvm")(Mixed)
    tvm.ir.assert_structural_equal(lowered["increment"], Mixed["increment"])
    assert "tvmtile" in str(Mixed["double"])
    assert "tvmtile" not in str(lowered["double"])


def test_options_of_the_decorator_are_kept():
    @I.ir_module
    class Module:
        @T.prim_func(private=True)
        def hidden(A: T.Tensor((8,), "int32")):
            with T.Kernel(1) as _:
                A[0] = 1

        @T.prim_func
        def shown(A: T.Tensor((8,), "int32")):
            with T.Kernel(1) as _:
                A[0] = 2

    attrs = Module["hidden"].attrs
    assert attrs is None or "global_symbol" not in attrs
    assert Module["shown"].attrs["global_symbol"] == "shown"


def test_a_member_sees_the_names_around_the_class():
    rows = 12

    @I.ir_module
    class Module:
        @T.prim_func
        def ones(A: T.Tensor((rows,), "int32")):
            with T.Kernel(1) as _:
                for i in range(rows):
                    A[i] = 1

    assert [int(extent) for extent in Module["ones"].params[0].ty.shape] == [12]


def test_a_method_of_an_ordinary_class_becomes_a_program_at_once():
    class Kernels:
        @T.prim_func
        def one(A: T.Tensor((8,), "int32")):
            with T.Kernel(1) as _:
                A[0] = 1

    assert isinstance(Kernels.one, tirx.PrimFunc)


def test_a_printed_module_reads_back_equal():
    again = tvm.script.from_source(Mixed.script())
    tvm.ir.assert_structural_equal(again, Mixed)


def test_text_under_our_decorator_is_read_by_the_parser():
    text = """
@T.prim_func
def f(A: T.Buffer((8,), "int32")):
    for i in range(8):
        A[i] = i
"""
    with_ours = tvm.script.from_source(text, {"T": T})
    tvm.ir.assert_structural_equal(with_ours, tvm.script.from_source(text))
