"""OrderIterations: barriers stand where other threads write an element again, and nowhere else."""

from __future__ import annotations

import re

import pytest

import tvmtile
import tvmtile.language as T
from tests.fuzz.run import loaded
from tests.programs import catalogue

GPUS = [{"kind": "cuda", "arch": "sm_90a"}, "metal"]
BARRIER = r"^ +(?:__syncthreads|tvmtile_threadgroup_barrier)\("


def source_for(program, target):
    kernel = tvmtile.compile(program, target=target, execution_backend="emulator")
    return kernel.get_kernel_source()


def barriers(source):
    return len(re.findall(BARRIER, source, re.MULTILINE))


@pytest.mark.parametrize("step", [0, 64, 128])
@pytest.mark.parametrize("target", GPUS, ids=str)
@pytest.mark.parametrize("form", ["elements", "a tile", "two loops", "a view"])
def test_iterations_wait_where_other_threads_write_an_element_again(form, target, step, tmp_path):
    case = catalogue()["stores_of_later_iterations_stay"].case(form=form, step=step)
    assert barriers(source_for(loaded(case, tmp_path).main, target)) == (step == 64)


@pytest.mark.parametrize("target", GPUS, ids=str)
def test_iterations_of_a_while_always_wait_and_those_of_tiles_never(target, tmp_path):
    """How the variable of a while changes is not known."""
    case = catalogue()["stores_of_later_iterations_stay"].case(form="while")
    assert barriers(source_for(loaded(case, tmp_path).main, target)) == 1
    case = catalogue()["stores_of_persistent_blocks"].case()
    assert barriers(source_for(loaded(case, tmp_path).main, target)) == 0


@pytest.mark.parametrize("target", GPUS, ids=str)
def test_there_is_no_order_among_the_steps_of_a_parallel_loop(target):
    """How far they are apart is not known: the loop has one barrier, none of its steps has."""

    @T.prim_func
    def main(n: T.int32, A: T.Tensor((128,), "float32"), C: T.Tensor((512,), "float32")):
        with T.Kernel(1, threads=64):
            for k in T.serial(3):
                for i, j in T.Parallel(n, n):
                    C[k * 16 + i * n + j] = A[i] + k

    source = source_for(main, target)
    assert barriers(source) == barriers(source.partition("for (int step")[0]) == 1


def test_several_threads_that_write_one_element_wait_for_the_next_value():
    @T.prim_func
    def main(A: T.Tensor((128,), "float32"), C: T.Tensor((512,), "float32")):
        with T.Kernel(1, threads=128):
            for n in T.serial(3):
                for i in T.Parallel(128):
                    C[i // 64] = A[n]

    assert [barriers(source_for(main, target)) for target in GPUS] == [1, 1]
