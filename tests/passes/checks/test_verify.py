"""The verifier finds violations that are planted, and nothing in programs that are right."""

import itertools
import textwrap

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.script import tirx as T

import tvmtile
import tvmtile.language as L
from tvmtile import passes
from tvmtile.errors import VerifyError
from tvmtile.ir.passes import Property, contract_of, prim_func_pass
from tvmtile.ir.rewriting import replace_loop
from tvmtile.passes.checks import verify
from tvmtile.passes.checks.verify import INVARIANTS, Verify, violations
from tvmtile.pipeline import LOWERING

ALL = tuple(str(step.info.name) for steps in LOWERING.values() for step in steps)


HEAD = """
@T.prim_func
def main(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
"""
TILE = 'tile = T.alloc_buffer((8,), "float32", scope="shared.dyn")\n'
WHOLE_BUFFER = "T.tvmtile.copy(A, C)"
THREAD_LOOP = 'for tx in T.thread_binding(8, thread="threadIdx.x"):\n    A[tx] = T.float32(0)'
PARALLEL = """for i in T.parallel(8):
    A[i] = T.float32(0)
    for j in T.parallel(8):
        A[j] = T.float32(0)"""
BEYOND_TENSOR = "A[8] = T.float32(0)"
SHARED_TILE = TILE + "A[0] = tile[0]"
VIOLATIONS = [
    (WHOLE_BUFFER, "NormalizeOperands", "the operand A[8] float32 of copy is not a region"),
    (WHOLE_BUFFER, "LowerTileOp", "the tile operator copy is left"),
    (WHOLE_BUFFER, "LowerElementOp", "the operator copy is left"),
    (THREAD_LOOP, "SerializeThreads", "the loop over 'tx' is bound to threadIdx.x"),
    ('T.evaluate(T.tvm_storage_sync("shared"))', "SerializeThreads", "there is a barrier"),
    (PARALLEL, None, "the parallel loop over 'j' stands inside another one"),
    (PARALLEL, "LowerParallelOnCpu", "the loop over 'i' is parallel"),
    (BEYOND_TENSOR, "InsertBoundsGuards", "A[8] float32 lies outside A[8] float32"),
    (f"{TILE}for i in range(8):\n    A[i] = tile[i + 8]", None, "tile[i + 8] float32 lies outside"),
    (f"{TILE}for i in range(8):\n    tile[i - 8] = A[i]", None, "tile[i - 8] float32 lies outside"),
    (f"{TILE}T.tvmtile.copy(A[0:8], tile[4:12])", None, "tile[4:12] float32 lies outside tile[8]"),
    (
        f"{TILE}pairs = T.decl_buffer((4, 2), data=tile.data, scope='shared.dyn')\nA[0] = pairs[4, 0]",
        None,
        "pairs[4, 0] float32 lies outside pairs[4, 2] float32",
    ),
    (
        f"{TILE}tile[T.Ramp(6, 1, 4)] = T.Broadcast(T.float32(0), 4)",
        None,
        "lies outside tile[8] float32",
    ),
    (SHARED_TILE, "PlaceMemoryOnCpu", "tile[8] float32 has the scope 'shared.dyn'"),
    (
        "for i in T.unroll(8):\n    if A[i] > T.float32(0):\n        break",
        "PlanUnrolling",
        "the loop over 'i' is left, and is not serial",
    ),
    (SHARED_TILE, "LaunchBlocksOnCpu", "the loop over 'bx' is bound to a block"),
]


def program(body):
    """A kernel with some statements."""
    return tvm.script.from_source(HEAD + textwrap.indent(body, " " * 8), {"T": T})


@pytest.mark.parametrize(("body", "after", "expected"), VIOLATIONS)
def test_a_planted_violation_is_found(body, after, expected):
    found = violations(program(body), [f"tvmtile.{after}"] if after else [])
    assert any(expected in problem for problem in found), found


def test_a_view_of_a_tensor_is_one_until_accesses_are_guarded():
    beyond_view = tvm.script.from_source(
        HEAD.replace(
            "    for", '    pairs = T.decl_buffer((4, 2), "float32", data=A.data)\n    for'
        )
        + '        tile = T.alloc_buffer((4, 4), "float32", scope="shared.dyn")\n'
        + "        T.tvmtile.copy(pairs[0:4, 0:4], tile[0:4, 0:4])",
        {"T": T},
    )
    assert not violations(beyond_view, [])
    assert violations(beyond_view, ["tvmtile.InsertBoundsGuards"])


def test_a_variable_without_a_definition_is_found():
    func = program(BEYOND_TENSOR)
    stray = tirx.BufferStore(func.params[0], tirx.const(0, "float32"), [tirx.Var("i", "int32")])
    broken = func.with_body(replace_loop(func.body, body=stray))
    message = "a variable is used outside of its definition, or defined twice"
    assert message in violations(broken, [])


@pytest.mark.parametrize(
    ("body", "after"),
    [
        (THREAD_LOOP, "tvmtile.SerializeThreads"),
        (WHOLE_BUFFER, "tvmtile.LowerTileOp"),
        (BEYOND_TENSOR, "tvmtile.InsertBoundsGuards"),
        (SHARED_TILE, "tvmtile.PlaceMemoryOnCpu"),
    ],
)
def test_before_its_pass_an_invariant_need_not_hold(body, after):
    earlier = [name for name in ALL[: ALL.index(after)] if name != "tvmtile.NormalizeOperands"]
    assert violations(program(body), earlier) == []


def test_guarded_and_unreachable_accesses_are_right():
    body = """for i in range(8):
    if i + 8 < 8:
        A[i + 8] = T.float32(0)
    else:
        A[i] = T.if_then_else(i >= 8, A[i + 8], T.float32(0))
for i in range(0):
    A[i + 8] = T.float32(0)"""
    assert violations(program(body), ["tvmtile.InsertBoundsGuards"]) == []


@pytest.mark.full
def test_what_stands_under_conditions_that_exclude_each_other_is_right():
    columns = L.dynamic("columns")

    @L.prim_func
    def main(A: L.Tensor((320, columns), "float32"), C: L.Tensor((1, 318), "float32")):
        with L.Kernel(3, threads=32) as block:
            for by, bx in L.Persistent([20, L.ceildiv(columns, 64)], 3, block):
                for i in L.Parallel(16):
                    C[bx, by * 16 + i] = L.if_then_else(by >= 24, 2.0, 1.0)

    tvmtile.compile(main, target="llvm")


def test_invariants_are_those_of_passes_of_the_lowering():
    steps = [step for steps in LOWERING.values() for step in steps]
    assert set(INVARIANTS) <= {p for step in steps for p in contract_of(step.info.name).establishes}


# The instrument, the pass and the option ----------------------------------------------------------


@prim_func_pass(
    "SerializeThreads", requires=(Property.EXITS_ARE_BRANCHES,), establishes=(Property.NO_THREADS,)
)
def ForgetfulSerializeThreads(func):  # takes the name of a pass, and does nothing
    return func


@prim_func_pass(
    "PlaceMemoryOnCpu", requires=(Property.NO_TILE_OPERATORS,), establishes=(Property.HOST_MEMORY,)
)
def UndoingPlaceMemory(_):
    return program(WHOLE_BUFFER)


def test_the_verifier_checks_a_pass_that_runs_alone():
    module = ir.IRModule({"main": program(THREAD_LOOP)})
    with pytest.raises(
        VerifyError, match=r"after tvmtile.SerializeThreads, main breaks(.|\n)*'tx'"
    ):
        ForgetfulSerializeThreads(module)


def test_within_a_lowering_earlier_invariants_still_hold(monkeypatch):
    steps = LOWERING["llvm"]
    place = next(i for i, step in enumerate(steps) if step.info.name == "tvmtile.PlaceMemoryOnCpu")
    monkeypatch.setitem(LOWERING, "llvm", (*steps[:place], UndoingPlaceMemory))
    with pytest.raises(VerifyError, match="the tile operator copy is left"):
        passes.LowerTilePrograms("llvm")(ir.IRModule({"main": program(WHOLE_BUFFER)}))


def test_within_a_lowering_what_is_as_it_was_is_not_checked_again(monkeypatch):
    looked_at = []
    monkeypatch.setattr(verify, "ALWAYS", (lambda func: looked_at.append(func) or iter(()),))
    passes.LowerTilePrograms("llvm")(ir.IRModule({"main": program(WHOLE_BUFFER)}))
    assert 2 < len(looked_at) < len(LOWERING["llvm"]) / 2
    for before, after in itertools.pairwise(looked_at):
        assert not tvm_ffi.structural_equal(before, after)


def test_functions_that_are_no_tile_programs_are_not_checked():
    @T.prim_func
    def plain(A: T.Buffer((8,), "float32")):
        A[9] = T.float32(0)

    module = ir.IRModule({"plain": plain, "main": program(WHOLE_BUFFER)})
    passes.LowerTilePrograms("llvm")(module)


def test_the_verify_pass_reads_a_module():
    module = ir.IRModule({"main": program(WHOLE_BUFFER)})
    tvm.ir.assert_structural_equal(Verify()(module), module)
    with pytest.raises(VerifyError, match="is not a region"):
        Verify("tvmtile.NormalizeOperands")(module)


def test_the_option_of_compile_asks_for_the_verifier(monkeypatch):
    @L.prim_func
    def program(A: L.Tensor((8,), "float32"), C: L.Tensor((8,), "float32")):
        with L.Kernel(1):
            L.copy(A, C)

    steps = LOWERING["llvm"]
    faulty = tuple(
        ForgetfulSerializeThreads if step.info.name == "tvmtile.SerializeThreads" else step
        for step in steps
    )
    with tvm.transform.PassContext():  # without the verifier of the tests
        a, c = np.ones(8, np.float32), np.zeros(8, np.float32)
        tvmtile.compile(program, target="llvm", pass_configs={"tvmtile.verify": True})(a, c)
        np.testing.assert_array_equal(a, c)
        monkeypatch.setitem(LOWERING, "llvm", faulty)
        with pytest.raises(VerifyError, match=r"after tvmtile\.SerializeThreads"):
            tvmtile.compile(program, target="llvm", pass_configs={"tvmtile.verify": True})
