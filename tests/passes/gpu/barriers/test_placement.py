"""InsertBarriers: no race is left, and no barrier is there without a reason."""

from __future__ import annotations

import warnings

import pytest
import tvm

import tvmtile
from tests.fuzz.run import compiled
from tests.passes.gpu.barriers.oracle import RaceFound
from tests.passes.gpu.barriers.programs import KERNELS, Kernel, barriers_in, with_pass
from tests.passes.gpu.barriers.random_kernels import RandomKernel
from tests.programs import catalogue
from tests.running import traced
from tvmtile.analysis.conflicts import footprint
from tvmtile.errors import NestingError, TileError, TileWarning
from tvmtile.ir.annotations import BARRIER_ID


@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if not kernel.error], ids=str)
def test_barriers_stand_where_the_table_has_them(kernel):
    tvm.ir.assert_structural_equal(with_pass(kernel.before()), kernel.after())


@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if kernel.error], ids=str)
def test_what_no_barrier_orders_is_an_error(kernel):
    with pytest.raises(TileError, match=kernel.error):
        with_pass(kernel.before())


@pytest.mark.full  # what the pass makes is in the table
@pytest.mark.parametrize("kernel", [k for k in KERNELS if k.is_runnable], ids=str)
def test_no_race_is_left_and_each_barrier_is_needed(kernel):
    func = kernel.after()
    for number in range(kernel.run(func).barriers if kernel.is_always_needed else 0):
        with pytest.raises(RaceFound):
            kernel.run(func, missed=number)


@pytest.mark.full(but=4)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tiles", ["SR", "WR", "SL", "WL"])
def test_random_programs_have_no_race_left(monkeypatch, seed, tiles):
    """An index of elements, as many accesses have, is as good as comparing all pairs."""
    for number in range(25):
        made = RandomKernel(1000 * seed + number, tiles)
        target = "metal" if number % 2 else ""
        options = {"threads": made.threads, "target": target, "ignored": "C"}
        kernel = Kernel("", tuple(made.text.splitlines()), "", options)
        by_pairs = with_pass(kernel.before())
        kernel.run(by_pairs)
        with monkeypatch.context() as patch:
            patch.setattr(footprint, "_FEW", 0)
            by_index = with_pass(kernel.before())
        kernel.run(by_index)
        assert len(barriers_in(by_index)) <= len(barriers_in(by_pairs))


def test_one_of_sixteen_barriers_is_that_of_the_block():
    def numbers(groups):
        text = "S = shared((1024,))\n" + "".join(
            f"if tx >= {first} and tx < {first + 64}:\n    with group({first}, 64):\n"
            f"        S[tx] = A[0, tx % 64]\n        L[tx // 64, tx % 64] = S[{2 * first + 63} - tx]\n"
            for first in range(0, 64 * groups, 64)
        )
        func = with_pass(Kernel("", tuple(text.splitlines()), "", {"threads": 1024}).before())
        return {str(barrier.value.attrs[BARRIER_ID]) for barrier in barriers_in(func)}

    assert len(numbers(15)) == 15
    with pytest.raises(NestingError, match="all 16 barriers of a block are taken"):
        numbers(16)


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
    func = traced("attention", batch=1, heads=1, length=256, causal=causal, stages=2)
    kernel = tvmtile.compile(func, target="metal", execution_backend="emulator")
    assert kernel.get_kernel_source().count("threadgroup_barrier(") == 1
