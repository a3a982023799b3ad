"""Pipelined loops of the catalogue on CUDA: asynchronous copies, and few barriers."""

from __future__ import annotations

import pytest
from tvm import ir, tirx
from tvm.target import Target
from tvm_ffi import structural_walk

from tests.fuzz.run import loaded
from tests.programs import catalogue
from tests.programs.pipelines import TILES
from tvmtile import errors
from tvmtile.errors import TileWarning
from tvmtile.ir.asynchronous import issued, waited
from tvmtile.ir.barriers import is_barrier
from tvmtile.ir.kernels import flattened
from tvmtile.pipeline import lowering_passes

# What can't be pipelined, and why.
UNPIPELINED = {"places that a sum decides": "depends on the statement in line"}
# Copies of which none is asynchronous: elements of two bytes that no word aligns.
SYNCHRONOUS = {"products-40-33-45"}
# Barriers that an iteration needs besides that behind its wait: a tile has one copy only, or threads
# write a tile that others have copied.
MORE_BARRIERS = {
    "a consumer that writes back",
    "a tile in parts",
    *(f"by hand-{number}" for number in (2, 3, 5, 6)),
}


def _cases():
    """By name, the program of the catalogue and its parameters but the number of stages."""
    for name, forms in (
        ("pipeline_of_tiles", TILES),
        ("pipeline_of_operands", ("a mask", "rows of a group", "conversions and scales")),
        ("pipeline_of_rows", ("trips of the call", "a pipeline in it")),
        ("pipeline_of_integers", UNPIPELINED),
    ):
        yield from ((form, (name, {"form": form})) for form in forms)
    yield "a ragged vector", ("pipeline_of_a_ragged_vector", {})
    products = catalogue()["pipeline_of_products"].parameters
    for key, given in (("products", "extents"), ("by hand", "schedule")):
        for number, value in enumerate(products[given]):
            label = "-".join(map(str, value)) if given == "extents" else number
            if value is not None:
                yield f"{key}-{label}", ("pipeline_of_products", {given: value})


CASES = dict(_cases())


def with_barriers(name, stages, directory):
    """The program of a case after InsertBarriers."""
    program, given = CASES[name]
    program = loaded(catalogue()[program].case(**given, stages=stages), directory).main
    mod = ir.IRModule({"main": program.with_attr("global_symbol", "main")})
    for step in lowering_passes(Target({"kind": "cuda", "arch": "sm_80"})):
        mod = step(mod)
        if step.info.name == "tvmtile.InsertBarriers":
            break
    return mod["main"]


def pipelined_loops(func):
    loops = []
    structural_walk(func.body, (tirx.For, loops.append))
    return [loop for loop in loops if waited(next(flattened(loop.body))) is not None]


def issues_in(node):
    found = []

    def note(call):
        if issued(call) is not None:
            found.append(issued(call))

    structural_walk(node, (ir.Call, note))
    return found


@pytest.mark.full(but=13)
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::tvmtile.errors.TileWarning")
def test_an_iteration_waits_and_has_one_barrier(name, stages, tmp_path):
    func = with_barriers(name, stages, tmp_path)
    loops = pipelined_loops(func)
    is_asynchronous = name not in {*UNPIPELINED, *SYNCHRONOUS}
    assert bool(issues_in(func)) == is_asynchronous
    assert loops or not is_asynchronous  # waits for nothing go when waits become instructions
    for loop in loops:
        barriers = [is_barrier(stmt) for stmt in flattened(loop.body)]
        assert sum(barriers) <= (2 if name in MORE_BARRIERS else 1)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("name", UNPIPELINED)
def test_what_can_t_be_pipelined_says_so_once(name, stages, tmp_path):
    errors._SHOWN_WARNINGS.clear()
    with pytest.warns(TileWarning, match=UNPIPELINED[name]) as warnings:
        func = with_barriers(name, stages, tmp_path)
    assert len(warnings) == 1
    assert not pipelined_loops(func)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("products-32-64-112", 16),
        ("products-40-72-88", 16),
        ("products-40-30-90", 4),
        ("a ragged vector", 16),
    ],
)
def test_copies_are_as_wide_as_rows_are_aligned(name, size, tmp_path):
    issues = issues_in(with_barriers(name, 3, tmp_path))
    assert min(int(copy.operands[2]) for copy in issues) == size
    fills = any(copy.fills for copy in issues)
    assert fills == (name != "products-32-64-112")
