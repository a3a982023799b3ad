"""InsertBarriers in pipelined loops: copies that arrive at a wait."""

from __future__ import annotations

import pytest
from tvm import ir, tirx
from tvm.target import Target
from tvm_ffi import structural_mutate, structural_walk

from tests.metal.programs import flash_attention, gemm
from tests.passes.gpu.barriers.oracle import (
    NotArrived,
    Oracle,
    RaceFound,
    assert_each_is_needed,
    barriers_in,
    executed,
    with_pass,
)
from tests.passes.gpu.barriers.programs import KERNELS
from tvmtile.errors import VerifyError
from tvmtile.ir.asynchronous import signalled, wait, waited
from tvmtile.ir.barriers import is_barrier
from tvmtile.ir.kernels import flattened
from tvmtile.ir.rewriting import seq
from tvmtile.language import GemmWarpPolicy
from tvmtile.pipeline import lowering_passes


def with_barriers(program, arch="sm_80"):
    """A tile program for an NVIDIA GPU after InsertBarriers."""
    mod = ir.IRModule({"main": program.with_attr("global_symbol", "main")})
    for step in lowering_passes(Target({"kind": "cuda", "arch": arch})):
        mod = step(mod)
        if step.info.name == "tvmtile.InsertBarriers":
            break
    return mod["main"]


def product(stages, extents=(32, 32, 96)):
    return with_barriers(gemm(*extents, block=(32, 32, 16), threads=64, stages=stages))


def round_of(func):
    """The statements of the pipelined loop."""
    loops = []
    structural_walk(func.body, (tirx.For, loops.append))
    return next(list(flattened(loop.body)) for loop in loops if is_pipelined(loop))


def is_pipelined(loop):
    return waited(next(flattened(loop.body))) is not None


def with_round(func, change):
    """The function with the statements of its pipelined loop changed."""

    def rewrite(loop, mutator):
        if is_pipelined(loop):
            fields = (loop.loop_var, loop.min, loop.extent, loop.kind)
            return tirx.For(*fields, seq(change(list(flattened(loop.body)))))
        return mutator.default_mutate(loop)

    return func.with_body(structural_mutate(func.body, [(tirx.For, rewrite)]))


@pytest.mark.full(but=1)
@pytest.mark.parametrize("stages", [2, 3, 4, 5])
@pytest.mark.parametrize("extents", [(32, 32, 96), (30, 28, 88), (30, 30, 90)])
def test_a_round_of_a_gemm_has_one_barrier_between_the_wait_and_the_next_copy(stages, extents):
    func = product(stages, extents)
    first, second, third, fourth, *rest = round_of(func)
    assert waited(first).behind == stages - 2
    assert is_barrier(second)
    assert isinstance(third, tirx.IfThenElse)  # the copy, where there is an iteration to copy for
    assert signalled(fourth)
    assert not any(map(is_barrier, rest))
    assert len(barriers_in(func)) == 1
    assert executed(func) == 6
    assert_each_is_needed(func)


@pytest.mark.full
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("steps", [1, 2])
def test_what_is_copied_before_a_loop_may_arrive_in_it(stages, steps):
    func = product(stages, (32, 32, 16 * steps))
    assert executed(func) == steps
    assert_each_is_needed(func)


def test_a_round_of_attention_has_one_barrier():
    options = {"block_M": 32, "block_N": 32, "threads": 64, "stages": 2, "dtype": "float16"}
    rows = GemmWarpPolicy.FullRow
    statements = round_of(
        with_barriers(flash_attention(1, 1, 96, 16, False, policy=rows, **options))
    )
    assert [i for i, stmt in enumerate(statements) if is_barrier(stmt)] == [1]


def without_barrier(statements):
    return [stmt for stmt in statements if not is_barrier(stmt)]


def barrier_at_the_end(statements):
    wait, barrier, *others = statements
    return [wait, *others, barrier]


def barrier_before_the_wait(statements):
    wait, barrier, *others = statements
    return [barrier, wait, *others]


@pytest.mark.full
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("change", [without_barrier, barrier_at_the_end, barrier_before_the_wait])
def test_a_barrier_at_another_place_does_not_do(stages, change):
    func = product(stages)
    with pytest.raises(RaceFound):
        Oracle(with_round(func, change)).run()
    # The pass sees what is missing too: it adds the barrier again.
    bare = with_round(func, lambda statements: without_barrier(change(statements)))
    assert executed(with_pass(bare)) == 6


def wait_at_the_end(statements):
    wait, *others = statements
    return [*others, wait]


def one_more_in_flight(statements):
    first, *others = statements
    awaited = waited(first)
    return [wait(awaited.token, awaited.behind + 1), *others]


def without_commits(statements):
    return [stmt for stmt in statements if not signalled(stmt)]


@pytest.mark.full(but=1)
@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("change", [one_more_in_flight, wait_at_the_end, without_commits])
def test_what_has_not_arrived_is_not_read(stages, change):
    func = with_round(product(stages), change)
    with pytest.raises((NotArrived, RaceFound)):
        Oracle(func).run()
    if change is wait_at_the_end:  # right for the analysis of barriers if it comes with one
        return
    with pytest.raises(VerifyError, match="before the asynchronous copy into them is waited for"):
        with_pass(with_round(func, without_barrier))


def test_the_oracle_sees_what_arrives_at_an_inserted_wait():
    kernel = next(kernel for kernel in KERNELS if "which data names" in str(kernel))
    with pytest.raises(NotArrived):
        kernel.run(kernel.before())
    kernel.run(kernel.after())
