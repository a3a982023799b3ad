"""Pipelined loops of every kind on CUDA: no race, no read before an arrival, and few barriers."""

from __future__ import annotations

import pytest
from tvm import ir, tirx
from tvm_ffi import structural_walk

from tests.passes.gpu.barriers.oracle import Oracle
from tests.passes.gpu.barriers.test_asynchronous import is_pipelined, with_barriers
from tests.pipelines import CASES
from tvmtile import errors
from tvmtile.errors import TileWarning
from tvmtile.ir.asynchronous import issued
from tvmtile.ir.barriers import is_barrier
from tvmtile.ir.kernels import flattened

# What can't be pipelined, and why.
UNPIPELINED = {"a_sum_that_the_next_copy_needs": "depends on the statement in line"}
# Copies of which none is asynchronous: elements of two bytes that no word aligns.
SYNCHRONOUS = {"product_of_rows_of_odd_length"}
# Barriers that an iteration needs besides that behind its wait: a tile has one copy only, or threads
# write a tile that others have copied.
MORE_BARRIERS = {
    "a_consumer_that_writes_back",
    "a_tile_in_parts",
    "copies_around_the_product",
    "one_copy_does_not_run_ahead",
    "product_first",
    "product_first_two_ahead",
}


def pipelined_loops(func):
    loops = []
    structural_walk(func.body, (tirx.For, loops.append))
    return [loop for loop in loops if is_pipelined(loop)]


def issues_in(node):
    found = []

    def note(call):
        if issued(call) is not None:
            found.append(issued(call))

    structural_walk(node, (ir.Call, note))
    return found


@pytest.mark.parametrize("name", [name for name in CASES if name not in UNPIPELINED])
def test_threads_see_what_has_arrived_and_nothing_else(name):
    run = CASES[name](3)
    func = with_barriers(run.program)
    oracle = Oracle(func, arguments=run.arguments).run()
    assert oracle.barriers
    assert not oracle.pending


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::tvmtile.errors.TileWarning")
def test_an_iteration_waits_and_has_one_barrier(name, stages):
    func = with_barriers(CASES[name](stages).program)
    loops = pipelined_loops(func)
    assert bool(issues_in(func)) == bool(loops) == (name not in {*UNPIPELINED, *SYNCHRONOUS})
    for loop in loops:
        barriers = [is_barrier(stmt) for stmt in flattened(loop.body)]
        assert sum(barriers) <= (2 if name in MORE_BARRIERS else 1)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("name", UNPIPELINED)
def test_what_can_t_be_pipelined_says_so_once(name, stages):
    errors._SHOWN_WARNINGS.clear()
    with pytest.warns(TileWarning, match=UNPIPELINED[name]) as warnings:
        func = with_barriers(CASES[name](stages).program)
    assert len(warnings) == 1
    assert not pipelined_loops(func)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("product_of_7_steps", 16),
        ("ragged_product", 16),
        ("product_of_unaligned_rows", 4),
        ("a_ragged_vector", 16),
    ],
)
def test_copies_are_as_wide_as_rows_are_aligned(name, size):
    issues = issues_in(with_barriers(CASES[name](3).program))
    assert min(int(copy.operands[2]) for copy in issues) == size
    fills = any(copy.fills for copy in issues)
    assert fills == (name != "product_of_7_steps")
