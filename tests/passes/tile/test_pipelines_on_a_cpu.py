"""Pipelined loops on the CPU, by the passes that plan them for GPUs: numbers without an emulator."""

from __future__ import annotations

import pytest

from tests.fuzz.run import run
from tests.programs import catalogue
from tvmtile import pipeline
from tvmtile.passes import SchedulePipelines, SelectImplementation

PIPELINED = [name for name, entry in catalogue().items() if "pipelined" in entry.tags]


@pytest.fixture
def pipelining(monkeypatch):
    """The CPU's passes and those that pipeline loops."""
    original = pipeline.lowering_passes

    def passes(target):
        steps = list(original(target))
        after = next(
            i for i, step in enumerate(steps) if step.info.name == SelectImplementation.info.name
        )
        return (*steps[: after + 1], SchedulePipelines, *steps[after + 1 :])

    monkeypatch.setattr(pipeline, "lowering_passes", passes)


@pytest.mark.full(but=1)
@pytest.mark.usefixtures("pipelining")
@pytest.mark.parametrize("name", PIPELINED)
def test_a_pipelined_loop_computes_what_it_did(name, tier, tmp_path):
    for case in catalogue()[name].cases("llvm", tier):
        outcome = run(case, "llvm", tmp_path)
        assert outcome.kind == "passed", f"{case.name}: {outcome.detail}\n\n{case.source}"
