"""Tile programs in TVM's own flows: its pipelines, its compiler, beside functions that it schedules."""

import numpy as np
import pytest
import tvm
from tvm import ir, relax, te
from tvm.s_tir import Schedule
from tvm.script import relax as R
from tvm.target import Target

import tvmtile.language as T
from tvmtile.errors import UnknownTarget
from tvmtile.ir.kernels import is_tile_program
from tvmtile.passes import LowerTilePrograms

RNG = np.random.default_rng(0)
M, N, K = 70, 50, 90


@T.prim_func
def matmul(
    A: T.Tensor((M, K), "float32"), B: T.Tensor((K, N), "float32"), C: T.Tensor((M, N), "float32")
):
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=64) as (bx, by):
        A_shared = T.alloc_shared((32, 16), "float32")
        B_shared = T.alloc_shared((16, 32), "float32")
        C_local = T.alloc_fragment((32, 32), "float32")
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, 16), num_stages=2):
            T.copy(A[by * 32, k * 16], A_shared)
            T.copy(B[k * 16, bx * 32], B_shared)
            T.gemm(A_shared, B_shared, C_local)
        T.copy(C_local, C[by * 32, bx * 32])


def operands():
    a, b = RNG.random((M, K), np.float32), RNG.random((K, N), np.float32)
    return a, b, a.astype(np.float64) @ b


def scheduled():
    """`x + 1` as TVM's own tools write and schedule it."""
    x = te.placeholder((M, N), name="x")
    y = te.compute((M, N), lambda i, j: x[i, j] + 1, name="y")
    schedule = Schedule(te.create_prim_func([x, y]))
    rows, _ = schedule.get_loops(schedule.get_sblock("y"))
    schedule.parallel(rows)
    return schedule.mod["main"].with_attr("global_symbol", "add_one")


def mixed():
    return ir.IRModule(
        {"matmul": matmul.with_attr("global_symbol", "matmul"), "add_one": scheduled()}
    )


def check_matmul(function):
    a, b, expected = operands()
    c = np.zeros((M, N), np.float32)
    arguments = [tvm.runtime.tensor(x) for x in (a, b, c)]
    function(*arguments)
    np.testing.assert_allclose(arguments[2].numpy(), expected, rtol=1e-5)


def check_add_one(function):
    x = RNG.random((M, N), np.float32)
    arguments = [tvm.runtime.tensor(x), tvm.runtime.tensor(np.zeros_like(x))]
    function(*arguments)
    np.testing.assert_array_equal(arguments[1].numpy(), x + 1)


def test_build_with_the_registered_pipeline():
    built = tvm.tirx.build(matmul, target="llvm", pipeline="tvmtile")
    check_matmul(tvm.runtime.Executable(built)["matmul"])


def test_compile_a_lowered_module_with_tvm_s_default_pipeline():
    lowered = LowerTilePrograms("llvm")(ir.IRModule({"main": matmul}))
    assert not any(is_tile_program(func) for func in lowered.functions.values())
    check_matmul(tvm.compile(lowered, target="llvm")["matmul"])


@pytest.mark.parametrize("pipeline", ["tvmtile", None])
def test_a_tile_program_beside_a_scheduled_function(pipeline):
    mod = mixed()
    if pipeline is None:
        lowered = LowerTilePrograms("llvm")(mod)
        assert lowered["add_one"].same_as(mod["add_one"])
        mod = lowered
    executable = tvm.compile(mod, target="llvm", tir_pipeline=pipeline or "default")
    check_matmul(executable["matmul"])
    check_add_one(executable["add_one"])


def test_relax_calls_a_lowered_tile_program():
    builder = relax.BlockBuilder()
    a, b = (
        relax.Var(name, R.Tensor(shape, "float32"))
        for name, shape in (("a", (M, K)), ("b", (K, N)))
    )
    with builder.function("main", [a, b]):
        program = builder.add_func(matmul.with_attr("global_symbol", "matmul"), "matmul")
        product = builder.emit(relax.call_tir(program, [a, b], R.Tensor((M, N), "float32")))
        total = builder.emit(relax.op.add(product, product))
        builder.emit_func_output(total)
    lowered = LowerTilePrograms("llvm")(builder.finalize())
    machine = relax.VirtualMachine(tvm.compile(lowered, target="llvm"), tvm.cpu())
    left, right, expected = operands()
    result = machine["main"](tvm.runtime.tensor(left), tvm.runtime.tensor(right))
    np.testing.assert_allclose(result.numpy(), 2 * expected, rtol=1e-5)


def test_a_module_without_tile_programs_is_the_same_module():
    mod = ir.IRModule({"add_one": scheduled()})
    assert LowerTilePrograms("llvm")(mod).same_as(mod)


def test_lowering_leaves_the_module_that_it_is_given():
    mod = mixed()
    LowerTilePrograms("llvm")(mod)
    assert is_tile_program(mod["matmul"])


def test_the_target_is_the_functions_own_or_the_current_one():
    bound = matmul.with_attr("target", Target("llvm"))
    lowered = LowerTilePrograms()(ir.IRModule({"main": bound}))
    assert lowered["main"].attrs["target"].kind.name == "llvm"
    with Target({"kind": "llvm", "mcpu": "x86-64-v2"}):
        lowered = LowerTilePrograms()(ir.IRModule({"main": matmul}))
    assert str(lowered["main"].attrs["target"].attrs["mcpu"]) == "x86-64-v2"


def test_a_target_without_a_lowering():
    with pytest.raises(UnknownTarget, match="can't be lowered for 'opencl'"):
        LowerTilePrograms("opencl")(ir.IRModule({"main": matmul}))
