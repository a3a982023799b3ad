"""InsertBarriers: no race is left, and no barrier is there without a reason."""

from __future__ import annotations

import warnings

import pytest
import tvm

import tvmtile
from tests.fuzz.run import compiled
from tests.metal.programs import flash_attention
from tests.passes.gpu.barriers.oracle import (
    Oracle,
    Programs,
    RaceFound,
    barriers_in,
    for_metal,
    with_pass,
    without,
)
from tests.passes.gpu.barriers.programs import KERNELS
from tests.programs import catalogue
from tvmtile.analysis.effects import Effects
from tvmtile.errors import TileError, TileWarning
from tvmtile.language import GemmWarpPolicy


@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if not kernel.error], ids=str)
def test_barriers_stand_where_the_table_has_them(kernel):
    tvm.ir.assert_structural_equal(with_pass(kernel.before()), kernel.after())


@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if kernel.error], ids=str)
def test_what_no_barrier_orders_is_an_error(kernel):
    with pytest.raises(TileError, match=kernel.error):
        with_pass(kernel.before())


RUNNABLE = [k for k in KERNELS if not k.error and k.options.get("oracle") != "no"]


@pytest.mark.full  # what the pass makes is in the table
@pytest.mark.parametrize("kernel", RUNNABLE, ids=str)
def test_no_race_is_left(kernel):
    kernel.run(kernel.after())


@pytest.mark.full
@pytest.mark.parametrize("kernel", [k for k in RUNNABLE if k.is_always_needed], ids=str)
def test_each_barrier_is_needed(kernel):
    func = kernel.after()
    for number in range(len(barriers_in(func))):
        with pytest.raises(RaceFound):
            kernel.run(func.with_body(without(func.body, number)[0]))


@pytest.mark.full(but=4)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "scopes",
    [("shared", "shared"), ("global", "shared"), ("shared", "global"), ("global", "global")],
)
def test_random_programs_have_no_race_left(seed, scopes):
    for number in range(25):
        func = Programs(1000 * seed + number, scopes).program()
        func = for_metal(func) if number % 2 else func
        exchanged = {buffer.name for buffer in Effects(func.body).device_memory}
        tensors = {param.name for param in func.params}
        Oracle(with_pass(func), ignored=tensors - exchanged).run()


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("dtypes", "stages", "transposes", "extents"),
    [
        (("float16", "float16", "float32", "float32"), 2, (False, False), (64, 64, 96)),
        (("float16", "float16", "float32", "float32"), 3, (True, False), (101, 67, 70)),
        (("bfloat16", "bfloat16", "float32", "float32"), 2, (False, True), (40, 33, 45)),
        (("bfloat16", "bfloat16", "float32", "float32"), 3, (True, True), (64, 64, 96)),
        (("float32", "float32", "float32", "float32"), 2, (True, True), (97, 64, 128)),
        (("int8", "int8", "int32", "int32"), 3, (True, False), (64, 64, 96)),
    ],
)
def test_one_barrier_an_iteration_of_a_pipelined_product(
    dtypes, stages, transposes, extents, tmp_path
):
    given = dict(zip(("transpose_A", "transpose_B"), transposes, strict=True))
    case = catalogue()["gemm"].case(dtypes=dtypes, stages=stages, extents=extents, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TileWarning)  # int8 is multiplied element by element
        source = compiled(case, "metal", tmp_path).get_kernel_source()
    assert source.count("threadgroup_barrier(") == 1


@pytest.mark.full
@pytest.mark.parametrize("causal", [False, True])
def test_one_barrier_an_iteration_of_pipelined_attention(causal):
    options = {"block_M": 32, "block_N": 32, "threads": 128, "stages": 2, "dtype": "float16"}
    func = flash_attention(1, 1, 256, 64, causal, policy=GemmWarpPolicy.FullRow, **options)
    kernel = tvmtile.compile(func, target="metal", execution_backend="emulator")
    assert kernel.get_kernel_source().count("threadgroup_barrier(") == 1
