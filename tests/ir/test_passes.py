"""Passes come in an order in which each finds what it requires."""

import pytest
from tvm import ir
from tvm.script import tirx as T

from tvmtile.errors import VerifyError
from tvmtile.ir.passes import Property, check_order, contract_of
from tvmtile.passes import DistributeParallel, InferLayout, SchedulePipelines
from tvmtile.pipeline import CHECKS, LOWERING


def test_a_pass_before_what_it_relies_on_is_an_error_that_names_both():
    names = [step.info.name for step in LOWERING["cuda"]]
    before = [*CHECKS, *LOWERING["cuda"][: names.index(SchedulePipelines.info.name)]]
    with pytest.raises(ValueError, match=r"InferLayout requires PIPELINED .*no pass before it"):
        check_order([*before, InferLayout, SchedulePipelines])


@pytest.mark.parametrize("kind", LOWERING)
def test_no_requirement_is_met_without_the_pass_that_establishes_it(kind):
    """Leave out each pass that establishes something another one requires: the order is refused."""
    steps = LOWERING[kind]
    required = {p for step in steps for p in contract_of(step.info.name).requires}
    for left_out in steps:
        if required & set(contract_of(left_out.info.name).establishes):
            with pytest.raises(ValueError, match="requires"):
                check_order([step for step in steps if step is not left_out])


def test_every_property_is_established_by_a_pass():
    steps = [step for steps in LOWERING.values() for step in steps]
    assert {p for step in steps for p in contract_of(step.info.name).establishes} == set(Property)


def test_the_verifier_checks_what_a_pass_requires():
    @T.prim_func
    def program(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
        T.func_attr({"target": T.target("metal")})
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                T.tvmtile.copy(A[0:8], C[0:8])

    module = ir.IRModule({"main": program})
    with pytest.raises(VerifyError, match=r"main is not what tvmtile.DistributeParallel requires"):
        DistributeParallel(module)
