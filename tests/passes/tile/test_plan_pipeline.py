"""PlanPipeline: what runs ahead, and the reasons why something does not."""

from __future__ import annotations

import linecache
import re
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import tvmtile
import tvmtile.language as T
from tvmtile import errors
from tvmtile.errors import TileWarning

SM80 = {"kind": "cuda", "arch": "sm_80"}
RNG = np.random.default_rng(0)


def floats(*shape):
    return RNG.integers(-4, 5, shape).astype("float32")


@pytest.fixture(autouse=True)
def _show_every_warning():
    errors._SHOWN_WARNINGS.clear()


def zeros(*shape):
    return np.zeros(shape, "float32")


def scaled(num_stages, order=None, stage=None):
    @T.prim_func
    def program(A: T.Tensor((6, 32), "float32"), C: T.Tensor((6, 32), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            for k in T.Pipelined(6, num_stages=num_stages, order=order, stage=stage):
                factor = k + 1
                T.copy(A[k, :], tile)
                for i in T.Parallel(32):
                    C[k, i] = tile[i] * factor

    return program


@pytest.mark.parametrize("num_stages", [0, 1])
def test_nothing_runs_ahead_of_one_stage(pipelines, num_stages):
    assert "annotations" not in pipelines.planned(scaled(num_stages)).script().split("for k")[1]


def test_two_copies_and_two_consumers(pipelines):
    @T.prim_func
    def program(
        A: T.Tensor((6, 32), "float32"),
        B: T.Tensor((6, 32), "float32"),
        C: T.Tensor((6, 32), "float32"),
    ):
        with T.Kernel(1, threads=32):
            A_s = T.alloc_shared((32,), "float32")
            B_s = T.alloc_shared((32,), "float32")
            for k in T.Pipelined(6, num_stages=3):
                T.copy(A[k, :], A_s)
                for i in T.Parallel(32):
                    C[k, i] = A_s[i]
                for i in T.Parallel(32):
                    B_s[i] = B[k, i] * 2
                for i in T.Parallel(32):
                    C[k, i] += B_s[i]

    script = pipelines.planned(program).script()
    assert '{"tvmtile.order": [0, 2, 1, 3], "tvmtile.stage": [0, 2, 0, 2]}' in script
    a, b = floats(6, 32), floats(6, 32)
    result = pipelines.check(program, a, b, zeros(6, 32))
    np.testing.assert_array_equal(result[2], a + b * 2)


def test_a_plan_by_hand_may_have_entries_for_names(pipelines):
    with_name = pipelines.planned(scaled(0, order=[1, 2, 0], stage=[3, 0, 1])).script()
    without = pipelines.planned(scaled(0, order=[2, 0], stage=[0, 1])).script()
    assert with_name == without
    assert '"tvmtile.stage": [0, 1]' in without


@pytest.mark.parametrize(("order", "stage"), [([0, 1], [1, 0]), ([1, 0], [0, 0])])
def test_a_plan_by_hand_that_runs_a_consumer_first(pipelines, order, stage):
    a = floats(6, 32)
    reason = (
        r"the loop over k is not pipelined: the statement in line \d+ would run before .* by tile"
    )
    result = pipelines.check_unpipelined(
        scaled(0, order=order, stage=stage), reason, a, zeros(6, 32)
    )
    np.testing.assert_array_equal(result[1], a * np.arange(1, 7)[:, None])


def test_an_alternative_is_one_statement(pipelines):
    @T.prim_func
    def program(A: T.Tensor((6, 32), "float32"), C: T.Tensor((6, 32), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            for k in T.Pipelined(6, num_stages=2):
                if k % 2 == 0:
                    T.copy(A[k, :], tile)
                else:
                    T.fill(tile, 3)
                T.copy(tile, C[k, :])

    assert '"tvmtile.stage": [0, 1]' in pipelines.planned(program).script()
    a = floats(6, 32)
    result = pipelines.check(program, a, zeros(6, 32))
    np.testing.assert_array_equal(result[1], np.where(np.arange(6)[:, None] % 2 == 0, a, 3))


def test_copies_into_fragments_only(pipelines):
    @T.prim_func
    def program(A: T.Tensor((6, 32), "float32"), C: T.Tensor((6, 32), "float32")):
        with T.Kernel(1, threads=32):
            own = T.alloc_fragment((32,), "float32")
            for k in T.Pipelined(6, num_stages=2):
                T.copy(A[k, :], own)
                T.copy(own, C[k, :])

    reason = "nothing copies from global memory into a shared tile"
    a = floats(6, 32)
    np.testing.assert_array_equal(
        pipelines.check_unpipelined(program, reason, a, zeros(6, 32))[1], a
    )


def test_a_source_that_the_loop_writes(pipelines):
    @T.prim_func
    def program(A: T.Tensor((7, 32), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            for k in T.Pipelined(6, num_stages=2):
                T.copy(A[k, :], tile)
                for i in T.Parallel(32):
                    A[k + 1, i] += tile[i]

    a = floats(7, 32)
    reason = r"it depends on the statement in line \d+ by A"
    (result,) = pipelines.check_unpipelined(program, reason, a)
    np.testing.assert_array_equal(result, a.cumsum(0))


def test_a_row_that_depends_on_a_consumer(pipelines):
    @T.prim_func
    def program(A: T.Tensor((8, 8), "int32"), C: T.Tensor((6, 8), "int32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((8,), "int32")
            T.clear(tile)
            for k in T.Pipelined(6, num_stages=2):
                row = tile[0]
                T.copy(A[row, :], tile)
                T.copy(tile, C[k, :])

    a = RNG.integers(0, 8, (8, 8)).astype("int32")
    reason = "it depends on the binding of row by row"
    _, c = pipelines.check_unpipelined(program, reason, a, np.zeros((6, 8), "int32"))
    row = 0
    for k in range(6):
        np.testing.assert_array_equal(c[k], a[row])
        row = a[row, 0]


def test_a_tile_that_keeps_a_value_from_iteration_to_iteration(pipelines):
    @T.prim_func
    def program(A: T.Tensor((6, 32), "float32"), C: T.Tensor((6, 32), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            T.fill(tile, 9)
            for k in T.Pipelined(6, num_stages=2):
                if k % 3 == 1:
                    T.copy(A[k, :], tile)
                T.copy(tile, C[k, :])

    a = floats(6, 32)
    reason = "an iteration may read elements of tile that it has not written itself"
    _, c = pipelines.check_unpipelined(program, reason, a, zeros(6, 32))
    np.testing.assert_array_equal(c, np.stack([np.full(32, 9), a[1], a[1], a[1], a[4], a[4]]))


def test_a_tile_that_is_copied_in_part(pipelines):
    @T.prim_func
    def program(A: T.Tensor((6, 32), "float32"), C: T.Tensor((6, 32), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            T.fill(tile, 9)
            for k in T.Pipelined(6, num_stages=2):
                T.copy(A[k, 0:16], tile[0:16])
                T.copy(tile, C[k, :])
                T.fill(tile, k)

    a = floats(6, 32)
    reason = "elements of tile that it has not written"
    _, c = pipelines.check_unpipelined(program, reason, a, zeros(6, 32))
    np.testing.assert_array_equal(c[:, :16], a[:, :16])
    np.testing.assert_array_equal(c[:, 20], [9, 0, 1, 2, 3, 4])


def test_a_tile_read_after_a_loop_that_may_not_write_it(pipelines):
    @T.prim_func
    def program(A: T.Tensor((6, 32), "float32"), C: T.Tensor((2, 32), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            total = T.alloc_fragment((32,), "float32")
            T.clear(total)
            for k in T.Pipelined(6, num_stages=2):
                if k % 3 == 1:
                    T.copy(A[k, :], tile)
                    for i in T.Parallel(32):
                        total[i] += tile[i]
            T.copy(total, C[0, :])
            T.copy(tile, C[1, :])

    a = floats(6, 32)
    reason = "tile is read outside of the loop, and an iteration may not write all of it"
    _, c = pipelines.check_unpipelined(program, reason, a, zeros(2, 32))
    np.testing.assert_array_equal(c, [a[1] + a[4], a[4]])


@pytest.mark.parametrize("stages", [1, 2])
def test_a_tile_that_a_later_loop_fills_again(pipelines, stages):
    """Whether that one is pipelined or not, it reads nothing of the first one's."""

    @T.prim_func
    def program(
        A: T.Tensor((6, 32), "float32"),
        count: T.Tensor((1,), "int32"),
        C: T.Tensor((32,), "float32"),
    ):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            total = T.alloc_fragment((32,), "float32")
            T.clear(total)
            for k in T.Pipelined(count[0], num_stages=2):
                T.copy(A[k, :], tile)
                for i in T.Parallel(32):
                    total[i] += tile[i]
            for k in T.Pipelined(3, num_stages=stages):
                T.copy(A[k, :], tile)
                for i in T.Parallel(32):
                    total[i] += tile[i] * 2
            T.copy(total, C)

    a, count = floats(6, 32), np.array([5], np.int32)
    *_, c = pipelines.check(program, a, count, zeros(32))
    np.testing.assert_array_equal(c, a[:5].sum(0) + 2 * a[:3].sum(0))


def test_a_loop_that_is_left(pipelines):
    @T.prim_func
    def program(A: T.Tensor((6, 32), "float32"), C: T.Tensor((6, 32), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            for k in T.Pipelined(6, num_stages=2):
                T.copy(A[k, :], tile)
                if k == 4:
                    break
                T.copy(tile, C[k, :])

    a = floats(6, 32)
    _, c = pipelines.check_unpipelined(program, "an iteration may be left early", a, zeros(6, 32))
    np.testing.assert_array_equal(c, np.where(np.arange(6)[:, None] < 4, a, 0))


def test_one_of_two_copies_that_can_t_run_ahead(pipelines):
    @T.prim_func
    def program(
        A: T.Tensor((6, 32), "float32"),
        B: T.Tensor((7, 32), "float32"),
        C: T.Tensor((6, 32), "float32"),
    ):
        with T.Kernel(1, threads=32):
            A_s = T.alloc_shared((32,), "float32")
            B_s = T.alloc_shared((32,), "float32")
            for k in T.Pipelined(6, num_stages=2):
                T.copy(A[k, :], A_s)
                T.copy(B[k, :], B_s)
                for i in T.Parallel(32):
                    B[k + 1, i] += A_s[i] * B_s[i]

    with pytest.warns(TileWarning, match=r"line \d+ does not run ahead: .* by B"):
        script = pipelines.planned(program).script()
    assert '"tvmtile.stage": [0, 1, 1]' in script


def test_the_warning_points_at_the_loop(pipelines):
    with pytest.warns(TileWarning, match="the loop over k is not pipelined") as caught:
        pipelines.planned(scaled(0, order=[0, 1], stage=[1, 0]))
    assert caught[0].filename == __file__
    assert "T.copy(A[k, :], tile)" in linecache.getline(__file__, caught[0].lineno)


def test_a_name_used_in_another_stage_than_the_one_that_reads_it(pipelines):
    @T.prim_func
    def program(A: T.Tensor((6, 32), "float32"), C: T.Tensor((6, 32), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            for k in T.Pipelined(6, order=[0, 1, 2], stage=[0, 0, 1]):
                T.copy(A[k, :], tile)
                first = tile[0]
                for i in T.Parallel(32):
                    C[k, i] = tile[i] - first

    a = floats(6, 32)
    reason = "the binding of first reads what the loop writes, and another stage uses its value"
    _, c = pipelines.check_unpipelined(program, reason, a, zeros(6, 32))
    np.testing.assert_array_equal(c, a - a[:, :1])


def test_a_barrier_and_a_print_stay_where_they_are(pipelines, capfd):
    @T.prim_func
    def program(A: T.Tensor((3, 32), "float32"), C: T.Tensor((3, 32), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            for k in T.Pipelined(3, num_stages=2):
                T.copy(A[k, :], tile)
                T.sync_threads()
                T.print(k, msg="k")
                T.copy(tile, C[k, :])
                T.sync_threads()

    a = floats(3, 32)
    assert '"tvmtile.stage": [0, 1, 1, 1, 1]' in pipelines.planned(program).script()
    np.testing.assert_array_equal(pipelines.run(program, a, zeros(3, 32))[1], a)
    assert re.findall(r"k.*?(\d+)$", capfd.readouterr().out, re.MULTILINE) == ["0", "1", "2"]


def test_threads_copy_what_they_use(pipelines):
    @T.prim_func
    def program(A: T.Tensor((5, 32), "float32"), C: T.Tensor((5, 32), "float32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((32,), "float32")
            for k in T.Pipelined(5, num_stages=2):
                tile[tx] = A[k, tx]
                T.sync_threads()
                C[k, tx] = tile[31 - tx]
                T.sync_threads()

    a = floats(5, 32)
    assert '"tvmtile.stage": [0, 1, 1, 1]' in pipelines.planned(program).script()
    np.testing.assert_array_equal(pipelines.check(program, a, zeros(5, 32))[1], a[:, ::-1])


def test_a_loop_has_as_many_stages_as_a_block_has_memory_for():
    @T.prim_func
    def main(A: T.Tensor((8 * 4096,), "float32"), C: T.Tensor((8 * 4096,), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((4096,), "float32")  # 16 of 32 KB
            for k in T.Pipelined(8, num_stages=4):
                T.copy(A[k * 4096], tile)
                T.copy(tile, C[k * 4096])

    with pytest.warns(
        TileWarning, match="has 2 stages in place of 4: a block of Metal has no room"
    ):
        kernel = tvmtile.compile(main, target="metal", execution_backend="emulator")
    assert "threadgroup float4 tile[2048]" in kernel.get_kernel_source()
    A, C = torch.randn(8 * 4096), torch.empty(8 * 4096)
    kernel(A, C)
    assert torch.equal(A, C)


def test_a_loop_runs_as_it_is_where_a_block_has_memory_for_one_version_only():
    @T.prim_func
    def main(A: T.Tensor((8 * 8192,), "float32"), C: T.Tensor((8 * 8192,), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((8192,), "float32")
            for k in T.Pipelined(8, num_stages=2):
                T.copy(A[k * 8192], tile)
                T.copy(tile, C[k * 8192])

    with pytest.warns(TileWarning, match="has 1 stage in place of 2"):
        kernel = tvmtile.compile(main, target="metal", execution_backend="emulator")
    assert "threadgroup float4 tile[2048]" in kernel.get_kernel_source()


def test_a_nest_that_needs_what_is_copied_is_a_consumer(pipelines):
    """Weights are dequantised with scales from global memory: only their copy runs ahead."""

    @T.prim_func
    def program(
        A: T.Tensor((6, 32), "float32"),
        scales: T.Tensor((6,), "float32"),
        C: T.Tensor((6, 32), "float32"),
    ):
        with T.Kernel(1, threads=32):
            packed = T.alloc_shared((32,), "float32")
            weights = T.alloc_shared((32,), "float32")
            for k in T.Pipelined(6, num_stages=2):
                T.copy(A[k, :], packed)
                for i in T.Parallel(32):
                    weights[i] = packed[i] * scales[k]
                T.copy(weights, C[k, :])

    assert '"tvmtile.stage": [0, 1, 1]' in pipelines.planned(program).script()
    a, scales = floats(6, 32), floats(6)
    np.testing.assert_array_equal(
        pipelines.check(program, a, scales, zeros(6, 32))[-1], a * scales[:, None]
    )


@pytest.mark.parametrize("loop", [{"num_stages": 256}, {"stage": [0, 12], "order": [0, 1]}])
def test_more_stages_than_copies_can_be_waited_for(loop):
    @T.prim_func
    def main(A: T.Tensor((32 * 32,), "float32"), C: T.Tensor((32 * 32,), "float32")):
        with T.Kernel(1, threads=32):
            tile = T.alloc_shared((32,), "float32")
            for k in T.Pipelined(32, **loop):
                T.copy(A[k * 32], tile)
                T.copy(tile, C[k * 32])

    said = "has 9 stages in place of 256: a block of CUDA sm_80 can't wait for more copies"
    with pytest.warns(TileWarning, match=said) if "num_stages" in loop else nullcontext():
        kernel = tvmtile.compile(main, target=SM80, execution_backend="emulator")
    assert "wait_group_7();" in kernel.get_kernel_source()
    A, C = torch.randn(32 * 32), torch.empty(32 * 32)
    kernel(A, C)
    assert torch.equal(A, C)
