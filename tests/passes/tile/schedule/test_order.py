"""In which order each role waits, works and hands over: what is too late, no number shows."""

from __future__ import annotations

import pytest
from tvm import ir

from tests.fuzz.run import loaded
from tests.programs import catalogue
from tvmtile.ir.operators import operators_in
from tvmtile.pipeline import lowering_passes
from tvmtile.target import resolve


@pytest.fixture
def steps(tmp_path):
    """The work of a program's roles on tiles and mbarriers, in the text's order."""

    def found(name):
        (case,) = catalogue()[name].cases("sm_90a", "fast")
        mod = ir.IRModule({"main": loaded(case, tmp_path).main})
        for step in lowering_passes(resolve("sm_90a")):
            mod = step(mod)
            if step.info.name == "tvmtile.SchedulePipelines":
                break
        operators = operators_in(mod["main"].body)
        barriers = [op.barriers for op in operators if op.name == "init_mbarriers"]
        numbers = {barrier: index // 2 for index, barrier in enumerate(barriers)}
        shown = []
        for op in operators:
            if op.name == "mbarrier":
                barrier = getattr(op.barrier, "source", op.barrier)
                shown.append(f"{op.action} {barrier.name}{numbers[barrier]}")
            elif op.name in ("copy", "gemm", "reduce", "tma_copy"):
                (written,) = op.writes()
                shown.append(f"{op.name} {written.source.name}")
        return shown

    return found


def test_a_producer_loads_what_it_computes_from_before_it_waits_for_room(steps):
    assert steps("roles_weights_that_are_converted")[-5:] == [
        *("copy packed", "wait empty0", "tma_copy a", "copy w", "arrive full0"),
    ]


def test_a_tile_is_given_back_behind_its_last_use(steps):
    """K (0) behind the first product, V (1) when the second one is done, Q (2) before the last one."""
    head = ["wait full0", "gemm scores", "arrive empty0", "reduce total", "copy weights"]
    steady = [
        *("wait full0", "gemm scores", "wait full1", "gemm c"),
        *("arrive empty0", "reduce total", "arrive empty1", "copy weights"),
    ]
    tail = ["arrive empty2", "wait full1", "gemm c", "arrive empty1"]
    without_iterations = ["arrive empty2"]
    producer = [
        *("wait empty2", "tma_copy q", "arrive full2", "wait empty0", "tma_copy k", "arrive full0"),
        *("wait empty1", "tma_copy v", "arrive full1"),
    ]
    assert steps("roles_two_products_with_a_sum_between_them") == [
        *("wait full2", *head, *steady, *tail, *without_iterations, "copy C", *producer),
    ]


def test_a_small_tile_comes_and_goes_with_a_large_one_around_it(steps):
    shown = steps("roles_a_small_tile_between_two_uses_of_a_large_one")
    filled = ["wait empty0", "tma_copy b", "tma_copy row", "arrive full0"]
    assert shown[-4:] == filled
    assert "wait full2" not in shown  # ring 1 is that of A


def test_a_tile_is_given_back_when_the_product_that_reads_it_is_waited_for(steps):
    """C (1) as something needs `y`, B (0) and A (2), which `added` reads, at the end."""
    assert steps("roles_products_that_are_waited_for_apart")[:10] == [
        *("wait full2", "wait full0", "gemm x", "wait full1", "gemm y", "arrive empty1", "copy z"),
        *("gemm added", "arrive empty0", "arrive empty2"),
    ]
