"""Pipelined loops of every kind in CUDA's emulator: any number of stages computes the same."""

import pytest

import tvmtile
from tests.pipelines import CASES

STAGES = range(5)
# By default each case with one number of stages, the others nightly.
RUNS = [
    pytest.param(name, stages, marks=[] if stages == number % len(STAGES) else pytest.mark.nightly)
    for number, name in enumerate(CASES)
    for stages in STAGES
]


@pytest.mark.parametrize(("name", "stages"), RUNS)
@pytest.mark.filterwarnings("ignore::tvmtile.errors.TileWarning")
def test_any_number_of_stages_computes_the_same(name, stages):
    run = CASES[name](stages)
    target = {"kind": "cuda", "arch": "sm_90a" if stages % 2 else "sm_80"}
    run.check(tvmtile.compile(run.program, target=target, execution_backend="emulator"))
