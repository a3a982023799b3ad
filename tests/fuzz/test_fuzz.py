"""Random programs on the CPU and on the emulators; and that the fuzzer finds defects."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
from tvm import tirx

from tests.fuzz.__main__ import seed_of
from tests.fuzz.generate import (
    SPECIAL,
    generate,
    generate_chained,
    generate_degenerate,
    generate_exited,
    generate_extreme,
    generate_indexed,
    generate_pipelined,
    generate_reduced,
    generate_shaped,
    generate_threaded,
    generate_viewed,
)
from tests.fuzz.program import Program
from tests.fuzz.run import for_target, run
from tests.fuzz.shrink import shrink
from tvmtile.errors import DataRace
from tvmtile.ir.operators import all_operators
from tvmtile.passes.tile.schedule.iteration_space import FilteredIterationSpace
from tvmtile.passes.tile.schedule.rings import Ring
from tvmtile.pipeline import LOWERING

SEEDS = {
    "cpu_seed": (20, 1),
    "metal_seed": (5, 1),
    "cuda_seed": (5, 1),
    "pipelined_seed": (3, 5),
    "chained_seed": (2, 20),
    "exited_seed": (1, 20),
    "viewed_cpu_seed": (20, 1),
    "viewed_seed": (4, 5),
    "indexed_cpu_seed": (10, 4),
    "indexed_seed": (4, 10),
    "shaped_seed": (4, 10),
    "extreme_seed": (4, 10),
    "degenerate_seed": (4, 10),
    "threaded_seed": (4, 10),
    "reduced_seed": (4, 10),
}
"""How many programs run where `--fuzz-seeds` does not say, and one in how many of what it says.

CI says 200. The share is smaller where each program is compiled for several targets.
"""
SIZE = 3
"""Small programs: twenty of them take the CPU target a quarter of a minute."""
_PARTIAL = r"T.Kernel: threads=\d+, but "  # and a shuffle
_OUTSIDE = r"copy: .* reaches outside"  # of a tensor that is smaller than a tile
DOCUMENTED = {
    "llvm": (_OUTSIDE,),
    "cuda": (_OUTSIDE, _PARTIAL),
    "metal": (_OUTSIDE, _PARTIAL, r"T.Kernel: the shared tiles need "),
}
"""Programs that a target refuses by its documentation, by their message."""

_has_compiler = shutil.which("g++") is not None or shutil.which("clang++") is not None
emulated = pytest.mark.skipif(not _has_compiler, reason="the emulator needs a C++ compiler")


def pytest_generate_tests(metafunc):
    """The programs of the first seeds, on each target."""
    for name in SEEDS.keys() & set(metafunc.fixturenames):
        asked, (count, one_in) = metafunc.config.getoption("fuzz_seeds"), SEEDS[name]
        metafunc.parametrize(name, range(count if asked is None else asked // one_in))


def check(program, target, directory):
    outcome = run(for_target(program, target), target, directory)
    if outcome.kind == "refused":
        reason = outcome.detail.partition(": ")[2]
        assert any(re.match(known, reason) for known in DOCUMENTED.get(target, ())), outcome.detail
        return
    assert outcome.kind == "passed", f"{outcome.kind}: {outcome.detail}"


def test_a_program_that_takes_too_long_is_slow(tmp_path):
    program = generate(0, SIZE)
    assert run(program, "llvm", tmp_path, limit=0.0).kind == "slow"
    assert run(program, "llvm", tmp_path, limit=100.0).kind == "passed"


def test_programs_on_the_cpu(cpu_seed, tmp_path):
    check(generate(cpu_seed, SIZE), "llvm", tmp_path)


@emulated
def test_programs_on_metal(metal_seed, tmp_path):
    check(generate(metal_seed, SIZE), "metal", tmp_path)


@emulated
def test_programs_on_cuda(cuda_seed, tmp_path):
    check(generate(cuda_seed, SIZE), "cuda", tmp_path)


@pytest.mark.full
@emulated
def test_pipelined_programs_on_hopper(pipelined_seed, tmp_path):
    """With two roles, with one, and on the CPU: all compute what the interpreter does."""
    for target in ("llvm", "hopper", "hopper-one-role"):
        check(generate_pipelined(pipelined_seed, SIZE), target, tmp_path)


@pytest.mark.full
@emulated
@pytest.mark.parametrize("target", ["llvm", "metal", "cuda", "hopper", "hopper-one-role"])
def test_programs_on_chains_of_products(chained_seed, target, tmp_path):
    check(generate_chained(chained_seed, SIZE), target, tmp_path)


@pytest.mark.full
@emulated
@pytest.mark.parametrize("target", ["llvm", "metal", "cuda", "hopper", "hopper-one-role"])
def test_programs_on_loops_that_are_left_early(exited_seed, target, tmp_path):
    check(generate_exited(exited_seed, SIZE), target, tmp_path)


@pytest.mark.full
def test_programs_on_the_cpu_whose_tiles_and_tensors_have_several_names(viewed_cpu_seed, tmp_path):
    check(generate_viewed(viewed_cpu_seed, SIZE), "llvm", tmp_path)


@pytest.mark.full
@emulated
@pytest.mark.parametrize("target", ["metal", "cuda"])
def test_programs_on_gpus_whose_tiles_and_tensors_have_several_names(viewed_seed, target, tmp_path):
    check(generate_viewed(viewed_seed, SIZE), target, tmp_path)


@pytest.mark.full
def test_programs_on_the_cpu_whose_indices_are_computed(indexed_cpu_seed, tmp_path):
    check(generate_indexed(indexed_cpu_seed, SIZE), "llvm", tmp_path)


@pytest.mark.full
@emulated
@pytest.mark.parametrize("target", ["metal", "cuda"])
def test_programs_on_gpus_whose_indices_are_computed(indexed_seed, target, tmp_path):
    check(generate_indexed(indexed_seed, SIZE), target, tmp_path)


@pytest.mark.full
@emulated
@pytest.mark.parametrize("target", ["llvm", "metal", "cuda"])
def test_programs_on_tiles_of_many_axes(shaped_seed, target, tmp_path):
    check(generate_shaped(shaped_seed, SIZE), target, tmp_path)


@pytest.mark.full
@emulated
@pytest.mark.parametrize("target", ["llvm", "metal", "cuda"])
def test_programs_on_extreme_numbers(extreme_seed, target, tmp_path):
    check(generate_extreme(extreme_seed, 2 * SIZE), target, tmp_path)


@pytest.mark.full
@emulated
@pytest.mark.parametrize("target", ["llvm", "metal", "cuda"])
def test_programs_on_extents_of_0(degenerate_seed, target, tmp_path):
    check(generate_degenerate(degenerate_seed, SIZE), target, tmp_path)


@pytest.mark.full
@emulated
@pytest.mark.parametrize("target", ["llvm", "metal", "cuda"])
def test_programs_by_thread_index(threaded_seed, target, tmp_path):
    check(generate_threaded(threaded_seed, 2 * SIZE), target, tmp_path)


@pytest.mark.full
@emulated
@pytest.mark.parametrize("target", ["llvm", "metal", "cuda"])
def test_programs_of_totals(reduced_seed, target, tmp_path):
    check(generate_reduced(reduced_seed, SIZE), target, tmp_path)


@pytest.mark.parametrize("make", [generate, *SPECIAL.values()])
def test_a_seed_always_gives_the_same_program(make):
    assert make(7).source == make(7).source
    assert make(7).source != make(8).source


def test_programs_of_float64_run_on_metal(tmp_path):
    program = generate_reduced(6104, SIZE)
    assert "float64" in program.source
    assert run(for_target(program, "metal"), "metal", tmp_path).kind == "passed"


def test_a_reader_that_leaves_gets_no_traceback(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(
        '"""0"""\n@T.prim_func\ndef main(A: T.Tensor((8,), "float32")):\n    A[0] = A[9]\n'
    )
    command = [sys.executable, "-m", "tests.fuzz", file, "--failures", tmp_path, "--no-shrink"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


def test_programs_are_the_same_in_each_process():
    """The order of the parameters of this one came from a set."""
    script = "from tests.fuzz.generate import *; print(generate_pipelined(285).source)"
    command = [sys.executable, "-c", script]
    found = {
        subprocess.check_output(command, env={**os.environ, "PYTHONHASHSEED": str(number)})
        for number in (1, 2)
    }
    assert len(found) == 1


def test_a_saved_program_has_the_inputs_that_it_failed_with():
    assert seed_of(generate(7).source + "\n# llvm: wrong\n") == 7


# The fuzzer finds what is broken on purpose -----------------------------------------------------


def first_failure(target, directory, wanted, count, size=4):
    """The first of some programs that fails; those without the text `wanted` are not compiled."""
    for seed in range(count):
        program = generate(seed, size)
        if not re.search(wanted, program.source):
            continue
        outcome = run(for_target(program, target), target, directory)
        if outcome.is_failure:
            return outcome, program
    pytest.fail(f"none of {count} programs fails")


def test_a_wrong_fill_is_found(monkeypatch, tmp_path):
    fill = all_operators()["fill"]
    as_loops = fill.as_loops
    monkeypatch.setattr(fill, "as_loops", lambda op: as_loops(fill(op.buffer, tirx.const(5))))
    outcome, _ = first_failure("llvm", tmp_path, r"T\.(clear|fill)", 40)
    assert outcome.kind == "wrong"
    assert " is 5" in outcome.detail


def test_a_guard_that_is_off_by_one_is_found(monkeypatch, tmp_path):
    from tvmtile.passes.nests import insert_bounds_guards, ranges

    within_axis = ranges.within_axis
    for module in (insert_bounds_guards, ranges):
        monkeypatch.setattr(
            module, "within_axis", lambda low, high, extent: within_axis(low, high - 1, extent)
        )
    outcome, _ = first_failure("llvm", tmp_path, r"O\d+: T.Tensor", 40)
    assert outcome.kind == "wrong"


@pytest.mark.full
def test_a_clear_that_does_not_see_views_is_found(monkeypatch, tmp_path):
    """A view reads cleared sums, before the first of a loop's products sets them.

    That is what the memory has held before, which differs from processor to processor.
    """
    from tvmtile.passes.cpu import fold_clear_into_first_gemm

    monkeypatch.setattr(fold_clear_into_first_gemm.Aliases, "aliased", frozenset())
    seeds = (138, 139, 156)
    outcomes = [run(generate_viewed(seed, SIZE), "llvm", tmp_path) for seed in seeds]
    assert "wrong" in {outcome.kind for outcome in outcomes}


@emulated
def test_missing_barriers_are_found(monkeypatch, tmp_path):
    from tvmtile.passes import InsertBarriers

    kept = tuple(p for p in LOWERING["metal"] if p is not InsertBarriers)
    monkeypatch.setitem(LOWERING, "metal", kept)
    outcome, _ = first_failure("metal", tmp_path, r"T.reduce|T.gemm|T.cumsum", 40)
    assert outcome.kind == "internal"
    assert "race" in outcome.detail


@pytest.mark.full
@emulated
def test_a_producer_that_does_not_wait_is_found(monkeypatch, tmp_path):
    """The producer waits for the tile to be full, not for it to be free."""
    program = generate_pipelined(5, 2)
    assert run(program, "hopper", tmp_path).is_split
    monkeypatch.setattr(Ring, "wait_until_empty", Ring.wait_until_full)
    assert "DataRace" in run(program, "hopper", tmp_path).detail


@pytest.mark.full
@emulated
def test_roles_that_do_not_count_what_they_have_done_are_found(monkeypatch, tmp_path):
    """An iteration that a mask leaves in would have the tiles of the one before."""
    program = generate_pipelined(14, 2)
    assert run(program, "hopper", tmp_path).is_split
    passed = FilteredIterationSpace.passed
    monkeypatch.setattr(FilteredIterationSpace, "passed", lambda trips: passed(trips)[1:])
    assert run(program, "hopper", tmp_path).is_failure


def test_a_race_in_a_right_program_is_a_failure(monkeypatch, tmp_path):
    """The other errors of tvmtile say what it can't do, this one that the program is wrong."""

    def refuse(*_):
        raise DataRace("elements of s are written and read")

    monkeypatch.setattr("tests.fuzz.run.compiled", refuse)
    outcome = run(generate(7, SIZE), "llvm", tmp_path)
    assert (outcome.kind, outcome.is_failure) == ("race", True)


# Shrinking ---------------------------------------------------------------------------------------


def test_a_failing_program_is_made_smaller():
    program = Program(
        """
@T.prim_func
def main(A: T.Tensor((8,), "float32"), B: T.Tensor((8,), "float32"), C: T.Tensor((8,), "int32")):
    with T.Kernel(1, threads=32) as bx:
        s = T.alloc_shared((8,), "float32")
        u = T.alloc_shared((8,), "float32")
        T.copy(A, s)
        T.copy(s, u)
        for i in T.Parallel(8):
            if i > 2:
                u[i] = T.max(s[i] + T.exp(s[i]), T.float32(1))
        T.copy(u, B)
""",
        seed=3,
    )
    smaller = shrink(program, lambda candidate: "T.exp" in candidate.source)
    body = smaller.source[smaller.source.index("threads") :].splitlines()[1:]
    assert [line.strip() for line in body] == [
        "s = T.alloc_shared((8,), 'float32')",
        "u = T.alloc_shared((8,), 'float32')",
        "T.copy(A, s)",
        "for i in T.Parallel(8):",
        "u[i] = T.exp(s[i])",
    ]
    assert "B:" not in smaller.source


def test_a_smaller_program_of_extreme_numbers_has_such_numbers():
    smaller = shrink(generate_extreme(113), lambda candidate: "T.truncmod" in candidate.source)
    assert "s4[i, j] = T.truncmod(T.cast(A3[bx, j], 'int64'), T.int64(8))" in smaller.source
    assert {0, 65535} <= set(smaller.arguments(0)["A3"].flat)


def test_what_has_no_meaning_is_not_a_smaller_program():
    program = Program(
        """
@T.prim_func
def main(A: T.Tensor((8,), "float32")):
    with T.Kernel(1, threads=32) as bx:
        s = T.alloc_shared((8,), "float32")
        T.clear(s)
        T.copy(s, A)
""",
        seed=0,
    )
    tried = []
    smaller = shrink(
        program, lambda candidate: tried.append(candidate) or "T.copy" in candidate.source
    )
    assert "T.clear" in smaller.source
    assert all("T.clear" in t.source or "T.copy" not in t.source for t in tried)
