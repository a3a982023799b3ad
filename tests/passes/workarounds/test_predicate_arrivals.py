"""PredicateArrivals: conditions on iterations are predicates of arrivals, those on threads branches."""

from __future__ import annotations

import pytest
import tvm
from tvm import ir
from tvm.script import tirx as T

from tvmtile.passes import PredicateArrivals

HEAD = """\
@T.prim_func
def main():
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            empty = T.alloc_buffer((4,), "uint64", scope="shared.dyn")
            for k in range(8):
"""
ADDRESS = "T.cuda.cvta_generic_to_shared(T.address_of(empty[k % 4]))"
ARRIVE = f'T.ptx.mbarrier({ADDRESS}, "arrive", "", "", "shared", "b64", "")'


def predicated(condition):
    return f'T.ptx.mbarrier({ADDRESS}, {condition}, "arrive", "", "", "shared", "b64", "pred")'


def program(body):
    lines = "".join(f"{' ' * 16}{line}\n" for line in body.splitlines())
    return ir.IRModule({"main": tvm.script.from_source(HEAD + lines, extra_vars={"T": T})})


@pytest.mark.parametrize(
    ("asked", "of_threads", "others"),
    [
        ("k > 0 and tx % 32 == 0", "tx % 32 == 0", "k > 0"),
        ("tx < 64 and k > 0 and tx % 32 == 0 and k < 5", "tx < 64 and tx % 32 == 0", "k > 0 and k < 5"),
    ],
)  # fmt: skip
def test_what_a_branch_asks_of_iterations_becomes_a_predicate(asked, of_threads, others):
    result = PredicateArrivals(program(f"if {asked}:\n    {ARRIVE}"))
    expected = program(f"if {of_threads}:\n    {predicated(others)}")
    tvm.ir.assert_structural_equal(result, expected)


@pytest.mark.parametrize(
    "body",
    [
        ARRIVE,
        f"if tx == 0:\n    {ARRIVE}",
        f"if k > 0:\n    {ARRIVE}",
        f"if k > tx:\n    {ARRIVE}",
        f"if k > 0 or tx == 0:\n    {ARRIVE}",
        f"if k > 0 and tx == 0:\n    {ARRIVE}\nelse:\n    {ARRIVE}",
        f"if k > 0 and tx == 0:\n    {ARRIVE}\n    {ARRIVE}",
        f"if k > 0 and tx == 0:\n    {predicated('k < 4')}",
        'if k > 0 and tx == 0:\n    T.evaluate(T.tvm_storage_sync("warp"))',
        "if k > 0 and tx == 0:\n    T.cuda.mbarrier_wait(T.address_of(empty[0]), k % 2)",
        "if k > 0 and tx == 0:\n    T.evaluate(T.max(T.abs(k), 1))",
    ],
)
def test_other_statements_stay_as_they_are(body):
    before = program(body)
    tvm.ir.assert_structural_equal(PredicateArrivals(before), before)
