"""Iterations that count themselves: where they are in a ring is what a division would say."""

import pytest
from tvm import tirx
from tvm.sym import Analyzer

from tvmtile.ir.rewriting import for_loop, substitute
from tvmtile.passes.tile.schedule.iteration_space import CountingIterationSpace, iteration_space


@pytest.mark.parametrize("stages", [3, 5, 6])
def test_a_counter_that_goes_round_is_a_place_in_the_ring(stages):
    counter = tirx.decl_buffer((1,), "int32", scope="local")
    loop = for_loop(tirx.Var("k", "int32"), 9, tirx.Evaluate(tirx.const(0, "int32")))
    space = iteration_space(loop, stages, counter)
    assert isinstance(space, CountingIterationSpace)
    current = space.current
    for number in range(2 * stages):
        at = {current: tirx.const(number, "int32")}
        for distance in range(-1, stages + 1):
            place = space.position.at(space.shifted(distance)).at(at)
            found = [int(Analyzer().simplify(each)) for each in (place.slot, place.parity)]
            later = number + distance
            assert found == [later % stages, later // stages % 2]
            counted = substitute(space.shifted(distance)[current], at)
            assert int(Analyzer().simplify(counted)) == later % (2 * stages)
