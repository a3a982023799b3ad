"""wgmma: its table, what it declines, how its tiles lie, what waits for it, what ptxas makes of it.

What it computes is tested by programs of the catalogue: `gemm_by_wgmma` and others.
"""

import itertools
import re

import pytest
import torch
from tvm import ir, tirx
from tvm.target import Target
from tvm_ffi import structural_walk

import tvmtile
import tvmtile.language as T
from tests.fuzz.run import loaded
from tests.programs import catalogue
from tests.programs.text import Name
from tests.running import assert_close, gemm, operands, traced
from tvmtile import pipeline
from tvmtile.errors import CudaEmulationError
from tvmtile.instructions.mma import lane_map
from tvmtile.instructions.wgmma import FAMILIES, ROWS, WARPGROUP, sum_map
from tvmtile.ir.scopes import is_shared
from tvmtile.layout.shared import panel_of
from tvmtile.passes import LayOutSharedTiles, SchedulePipelines
from tvmtile.passes.tile.schedule import one_role
from tvmtile.passes.tile.schedule.schedule import Action, Step

HOPPER = {"kind": "cuda", "arch": "sm_90a"}


# The table ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "family", list(FAMILIES.values()), ids=lambda family: "-".join(family.dtypes)
)
def test_every_element_is_held_once(family):
    for row in (family.largest(8), family.largest(256)):
        held = sorted(place for places in sum_map(row) for place in places)
        assert held == list(itertools.product(range(ROWS), range(row.n)))
    warps, *digits = row.a[0]
    assert warps.extent * WARPGROUP // 4 == WARPGROUP
    of_a_warp = sorted(p for places in lane_map((tuple(digits), row.a[1])) for p in places)
    assert of_a_warp == list(itertools.product(range(16), range(row.k)))


def test_an_instruction_has_as_many_columns_as_divide_what_there_is():
    floats, integers = FAMILIES["float16", "float16"], FAMILIES["int8", "int8"]
    assert [floats.largest(n).n for n in (8, 96, 200, 256, 264, 512)] == [8, 96, 200, 256, 88, 256]
    assert [integers.largest(n).n for n in (8, 40, 48, 72, 224, 256)] == [8, 8, 48, 24, 224, 128]


# Where it is chosen ------------------------------------------------------------------------------


def product(
    shape=(64, 64, 64),
    dtype="float16",
    sums="float32",
    threads=128,
    transpose_b=False,
    view=False,
):
    m, n, k = shape

    @T.prim_func
    def main(
        A: T.Tensor((m, k), dtype),
        B: T.Tensor((n, k) if transpose_b else (k, n), dtype),
        C: T.Tensor((m, n), sums),
    ):
        with T.Kernel(1, threads=threads):
            a, b = T.alloc_shared(A.shape, dtype), T.alloc_shared(B.shape, dtype)
            c = T.alloc_fragment((m, n), sums)
            T.copy(A, a)
            T.copy(B, b)
            if view:
                flat = T.reshape(a, (m * k,))
                flat[0] = flat[0]
            T.gemm(a, b, c, transpose_B=transpose_b, clear_accum=True)
            T.copy(c, C)

    return main


def choice(program, target=HOPPER):
    """The implementation of the product, and why nothing better is."""
    choices = tvmtile.compile(program, target=target).choices
    (found,) = (each for each in choices if each.operator == "gemm")
    return found.chosen, dict(found.declined)


@pytest.mark.full
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (product(threads=96), "96 threads are not whole warpgroups of 128"),
        (product((32, 64, 64)), "an accumulator of [32, 64] does not consist of 64x8"),
        (product(threads=384), "3 warpgroups (384 threads) can't share"),
        (product(sums="float16"), "wgmma has float32 sums, c[0:64, 0:64] float16 does not hold"),
        (product(dtype="float32"), "rows of b[0:64, 0:64] float32 do not run along K, as wgmma"),
        (product((64, 64, 48), "int8", "int32", 128, True), "K = 48 is not a multiple of 32"),
        (
            product((64, 24, 64)),
            "instructions would not begin at multiples of 32 bytes in rows of b",
        ),
        (product(view=True), "a is seen through a view, or its address is taken"),
    ],
)
def test_what_does_not_fit_is_declined_with_a_reason(program, reason):
    chosen, declined = choice(program)
    assert chosen == "mma"
    assert declined["wgmma"].startswith(reason)


def test_pieces_that_begin_anywhere_keep_rows_plain(tmp_path):
    """Of 16 bytes; no GPU could copy them, so nothing runs."""
    case = catalogue()["gemm_of_rows_that_threads_copy"].case(COUNT=8, SHIFT=4)
    chosen, declined = choice(loaded(case, tmp_path).main)
    assert chosen == "mma"
    assert declined["wgmma"] == "a is seen through a view, or its address is taken"


@pytest.mark.full(but=1)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100a"])
def test_other_architectures_say_nothing_of_wgmma(arch):
    """Nothing in the kernel could change that."""
    assert choice(product(), {"kind": "cuda", "arch": arch}) == ("mma", {})


@pytest.mark.full
def test_a_fragment_that_another_product_holds_otherwise_is_left_to_it():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.clear(c)
            T.gemm(a, a, c)
            T.gemm(a, a, c, impl="mma")
            T.copy(c, C)

    choices = [c for c in tvmtile.compile(main, target=HOPPER).choices if c.operator == "gemm"]
    assert [c.chosen for c in choices] == ["mma", "mma"]


# How its tiles lie -------------------------------------------------------------------------------


def found_in(program, last, types, note):
    """Visit the nodes of some types of a program, as a pass leaves it."""
    mod = ir.IRModule({"main": program.with_attr("global_symbol", "main")})
    for step in pipeline.lowering_passes(Target(HOPPER)):
        mod = step(mod)
        if step.info.name == last.info.name:
            structural_walk(mod["main"].body, (types, note))
            return
    raise AssertionError(f"{last.info.name} is no pass of the pipeline")


@pytest.mark.parametrize(
    ("shape", "transpose_b", "threads", "panels"),
    [
        ((64, 64, 64), False, 128, (128, 128)),
        ((64, 64, 32), False, 128, (64, 128)),
        ((64, 32, 16), False, 128, (32, 64)),
        ((64, 48, 48), False, 128, (32, 32)),
        ((64, 64, 32), True, 128, (64, 64)),
        ((64, 192, 64), False, 256, (128, 64)),  # 96 columns a warpgroup
    ],
)
def test_tiles_have_the_widest_panels_in_which_instructions_can_start(
    shape, transpose_b, threads, panels
):
    program = product(shape=shape, transpose_b=transpose_b, threads=threads)
    found = []
    found_in(program, LayOutSharedTiles, tirx.AllocBuffer, lambda node: found.append(node.buffer))
    tiles = sorted((each for each in found if is_shared(each)), key=lambda tile: tile.name)
    assert tuple(panel_of(tile.ty.layout, "float16") for tile in tiles) == panels
    assert [int(tile.ty.data_alignment) for tile in tiles] == [8 * panel for panel in panels]


# When it is waited for ---------------------------------------------------------------------------

WAIT = re.compile(r"tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_(\d)\(\);")


def waits(program):
    source = tvmtile.compile(program, target=HOPPER).get_kernel_source()
    body = source[source.index("main_kernel(") :]
    return [int(each[1]) for each in WAIT.finditer(body)]


@pytest.mark.parametrize(("stages", "ahead"), [(2, 1), (3, 1), (4, 2)])
def test_copies_run_less_far_ahead_of_a_product_in_flight(stages, ahead, monkeypatch):
    """A product in flight holds what it reads for an iteration more, of as many buffer copies."""
    program = gemm(256, 256, 512, block=(128, 128, 64), threads=256, stages=stages, roles=False)
    plans, copies = [], []
    monkeypatch.setattr(one_role, "verify", plans.append)
    found_in(program, SchedulePipelines, tirx.AllocBuffer, lambda node: copies.append(node.buffer))
    ((role,),) = (plan.roles for plan in plans)
    runs = [step for step in role.steps if step.action is Action.RUN]
    assert [(step.subject, step.offset) for step in runs] == [(0, ahead), (1, ahead), (2, 0)]
    flying = [
        step.offset for step in role.steps if step == Step(Action.AWAIT, role.batch_of(2), -1)
    ]
    assert flying == ([] if stages == 2 else [-1])
    assert [int(tile.ty.shape[0]) for tile in copies if is_shared(tile)] == [stages] * 2


@pytest.mark.full
@pytest.mark.parametrize(("stages", "expected"), [(0, [0]), (2, [0]), (3, [1, 0]), (4, [1, 0])])
def test_a_product_stays_in_flight_where_stages_are_left_for_it(stages, expected):
    program = gemm(256, 256, 512, block=(128, 128, 64), threads=256, stages=stages, roles=False)
    assert waits(program) == expected


@pytest.mark.full
def test_a_product_whose_sums_the_loop_touches_is_waited_for():
    @T.prim_func
    def main(
        A: T.Tensor((64, 512), "float16"),
        B: T.Tensor((512, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(8, num_stages=4):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                for i, j in T.Parallel(64, 64):
                    c[i, j] *= 0.5
                T.gemm(a, b, c)
            T.copy(c, C)

    assert waits(main) == [0]


@pytest.mark.full
@pytest.mark.parametrize(
    ("block", "threads", "instruction"),
    [
        ((128, 256, 64), 256, "m64n256k16"),
        ((256, 128, 64), 256, "m64n128k16"),
        ((128, 128, 64), 256, "m64n128k16"),
        ((256, 256, 64), 512, "m64n128k16"),
        ((256, 512, 64), 1024, "m64n64k16"),
    ],
)
def test_warpgroups_share_so_that_they_read_least_from_shared_memory(block, threads, instruction):
    program = gemm(*block, block=block, threads=threads)
    source = tvmtile.compile(program, target=HOPPER).get_kernel_source()
    assert set(re.findall(r"m64n\d+k\d+", source)) == {instruction}


@pytest.mark.full
@pytest.mark.parametrize(
    ("block", "threads", "roles", "instruction"),
    [
        ((256, 256, 64), 512, False, "m64n128k16"),
        ((512, 128, 64), 1024, False, "m64n64k16"),
        ((192, 256, 64), 384, True, "m64n128k16"),  # and 128 that copy
    ],
)
def test_a_thread_has_the_registers_that_an_instruction_asks_for(
    block, threads, roles, instruction
):
    """A quarter of a multiprocessor's registers, less what a thread needs beside its sums."""
    program = gemm(*block[:2], 4 * block[2], block=block, threads=threads, stages=2, roles=roles)
    kernel = tvmtile.compile(program, target=HOPPER)
    assert set(re.findall(r"m64n\d+k\d+", kernel.get_kernel_source())) == {instruction}
    assert kernel.cubin


def test_other_buffer_copies_are_left_to_a_product_in_flight():
    """A copy that begins in an iteration replaces what the product before the last one has read."""
    program = gemm(256, 256, 512, block=(128, 128, 64), threads=256, stages=4, roles=False)
    source = tvmtile.compile(program, target=HOPPER).get_kernel_source()
    assert "((k + 2) & 3)" in source
    start = source.index("for (int k = ")
    loop = source[start : source.index("sync_aligned_0();", start)]
    assert loop.count("__syncthreads()") == 1


def broken(source):
    """The source with a wait, a barrier or a fence less, each with what the emulator says of it."""
    body = source.index("main_kernel(")
    for each in WAIT.finditer(source, body):
        loosened = (
            f'asm volatile("wgmma.wait_group.sync.aligned {int(each[1]) + 1};" ::: "memory");'
        )
        yield source[: each.start()] + loosened + source[each.end() :], ("race", "register")
    for call, kind in (
        ("__syncthreads();", "race"),
        ("tvm_builtin_ptx_fence_proxy_proxy_async_shared__cta();", "fence"),
        ("tvm_builtin_ptx_wgmma_fence_fence_sync_aligned();", "protocol"),
    ):
        at = source.index(call, body)
        yield source[:at] + source[at + len(call) :], (kind,)


@pytest.mark.full
@pytest.mark.parametrize("stages", [0, 4])
def test_every_wait_and_fence_is_missed(stages):
    program = gemm(
        64, 64, 320, block=(64, 64, 64), stages=stages, transposes=(False, True), roles=False
    )
    kernel = tvmtile.compile(program, target=HOPPER, execution_backend="emulator")
    a, b, expected = operands(64, 64, 320, "float16", (False, True))
    result = torch.empty(64, 64)
    kernel(a, b, result)
    assert_close(result, expected)
    ((symbol, source),) = kernel.adapter.sources.items()
    for text, kinds in broken(source):
        kernel.adapter.sources[symbol] = text
        with pytest.raises(CudaEmulationError) as caught:
            kernel(a, b, result)
        assert caught.value.kind in kinds, str(caught.value)


# What becomes of it ------------------------------------------------------------------------------

SERIALIZED = re.compile(r"C75\d\d")
"""The text of ptxas where it waits for a product earlier than the kernel does."""


@pytest.mark.full
@pytest.mark.parametrize(
    "program",
    [
        gemm(1024, 1024, 1024, block=(128, 128, 64), threads=256, stages=3),
        gemm(
            1024, 1024, 1024, block=(128, 256, 64), threads=256, stages=4, transposes=(False, True)
        ),
        gemm(
            1000,
            1000,
            1000,
            block=(128, 128, 64),
            threads=256,
            stages=3,
            epilogue=Name("sums[i, j] * 2"),
        ),
        traced(
            "attention_by_wgmma",
            heads=4,
            length=1024,
            dim=128,
            block_M=128,
            block_N=64,
            threads=256,
        ),
    ],
    ids=["nn", "nt", "ragged", "attention"],
)
def test_ptxas_overlaps_products_and_spills_nothing(program):
    kernel = tvmtile.compile(program, target=HOPPER)
    (used,) = kernel.resources()
    assert used.spills == 0
    assert not SERIALIZED.search(kernel.adapter.binary.log)
    assert "wgmma.mma_async" in kernel.get_kernel_source()
