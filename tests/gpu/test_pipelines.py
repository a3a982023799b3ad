"""Pipelined loops of every kind on an NVIDIA GPU: any number of stages computes the same."""

import pytest

from tests.gpu.machine import DEVICE, on_gpu
from tests.pipelines import CASES

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("stages", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::tvmtile.errors.TileWarning")
def test_any_number_of_stages_computes_the_same(name, stages):
    run = CASES[name](stages)
    run.check(on_gpu(run.program), DEVICE)
