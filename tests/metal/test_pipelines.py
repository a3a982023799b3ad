"""Pipelined loops of every kind, on Metal's emulator and on the CPU, compute what is expected."""

import pytest

import tvmtile
from tests.metal.programs import emulated
from tests.pipelines import CASES


@pytest.mark.parametrize("name", CASES)
def test_the_cpu(name):
    run = CASES[name](3)
    run.check(tvmtile.compile(run.program, target="llvm"))


@pytest.mark.parametrize("stages", [0, 2, 3, 4])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::tvmtile.errors.TileWarning")
def test_any_number_of_stages_on_metal(name, stages):
    run = CASES[name](stages)
    run.check(emulated(run.program))
