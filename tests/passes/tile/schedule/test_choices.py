"""Loops that get a producer, of which kind, with how many registers; and why others do not."""

from __future__ import annotations

import re
from contextlib import nullcontext

import pytest

import tvmtile
import tvmtile.language as T
from tests.fuzz.run import loaded
from tests.programs import catalogue
from tvmtile.errors import TileWarning
from tvmtile.ir.annotations import MOST_STAGES

HOPPER = {"kind": "cuda", "arch": "sm_90a"}
N = 64


def product(block, threads, *, size=4096, stages=3, dtype="float16", copy="copy", hints=()):
    """A product in blocks, whose operand A is copied, converted or computed."""
    M, N, K = block

    @T.prim_func
    def main(
        A: T.Tensor((size, size), dtype),
        B: T.Tensor((size, size), "float16"),
        C: T.Tensor((size, size), "float32"),
    ):
        with T.Kernel(size // N, T.ceildiv(size, M), threads=threads) as (bx, by):
            for hint in hints:
                hint()
            a, b = T.alloc_shared((M, K), "float16"), T.alloc_shared((K, N), "float16")
            c = T.alloc_fragment((M, N), "float32")
            T.clear(c)
            for k in T.Pipelined(size // K, num_stages=stages):
                if copy == "loop":
                    for i, j in T.Parallel(M, K):
                        a[i, j] = A[by * M + i, k * K + j] * 2
                else:
                    T.copy(A[by * M, k * K], a, disable_tma=copy == "no tensor map")
                T.copy(B[k * K, bx * N], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * M, bx * N])

    return main


def wish(value=True):
    return lambda: T.annotate_warp_specialize(value)


def share(blocks):
    return lambda: T.annotate_min_blocks_per_sm(blocks)


def compiled(program, **options):
    return tvmtile.compile(program, target=HOPPER, **options)


def choice_of_loop(kernel):
    (choice,) = (each for each in kernel.choices if each.operator == "Pipelined")
    return choice


def registers_moved(kernel):
    """The numbers of `setmaxnreg`, in the order of the kernel's text."""
    body = kernel.get_kernel_source().rpartition("__global__")[2]
    return [int(count) for count in re.findall(r"setmaxnreg_\w+?_(\d+)\(", body)]


WIDE = {"dtype": "float32"}
ONE_ROLE = [
    ("64 threads are not whole warpgroups", (64, 64, 64), 64, {}),
    ("the kernel asks for one role", (64, 64, 64), 128, {"hints": [wish(False)]}),
    ("2 blocks fit on a multiprocessor, each under the", (128, 128, 64), 256, WIDE),
    ("a thread would load 32 registers in an iteration", (128, 256, 32), 256, WIDE),
    ("and computes would wait for each load", (128, 256, 64), 256, WIDE | {"copy": "loop"}),
    ("can go on by itself", (128, 256, 64), 256, WIDE | {"copy": "no tensor map"}),
    (
        "take 128 registers of a thread that multiplies, of 152 that threads which compute",
        *((192, 256, 64), 384, WIDE | {"stages": 2}),
    ),
    (
        "6 blocks with producers leave a thread 24 registers, and a product takes 34",
        *((128, 64, 64), 256, {"hints": [share(6)], "stages": 2}),
    ),
    (
        "4 blocks with producers leave a thread 32 registers, and a product takes 34",
        *((192, 64, 64), 384, {"hints": [share(4)], "stages": 1}),
    ),
]


@pytest.mark.full
@pytest.mark.parametrize(("reason", "block", "threads", "options"), ONE_ROLE)
def test_a_loop_with_one_role_says_why(reason, block, threads, options):
    kernel = compiled(product(block, threads, **options))
    loop = choice_of_loop(kernel)
    assert loop.chosen == "one role"
    assert reason in dict(loop.declined)["two roles"]
    assert loop.operand == "k"
    assert "A[by * M" in loop.location.text
    assert not registers_moved(kernel)


@pytest.mark.full
@pytest.mark.parametrize(
    ("block", "options", "chosen"),
    [
        ((128, 128, 64), {}, ", persistent blocks"),
        ((128, 128, 64), {"size": 512}, ""),
        ((128, 256, 64), WIDE, ", computing producer, persistent blocks"),
        ((128, 128, 64), WIDE | {"hints": [wish()]}, ", computing producer, persistent blocks"),
    ],
)
def test_a_loop_gets_a_producer_where_that_pays_or_is_asked_for(block, options, chosen):
    loop = choice_of_loop(compiled(product(block, 256, **options)))
    assert loop.chosen == f"two roles{chosen}"


@pytest.mark.parametrize("key", ["tl.disable_warp_specialized", "tl.disable_tma_lower"])
def test_options_of_tilelang_say_no(key):
    program = product((64, 64, 64), 128, size=192)
    for value in (True, False):
        kernel = compiled(program, pass_configs={key: value})
        assert ("mbarrier" in kernel.get_kernel_source()) != value


@pytest.mark.filterwarnings("ignore:.* registers of each thread")
def test_tiles_that_fit_one_after_the_other_only_have_one_role():
    """Roles may use all tiles at once: no two of them lie in one place."""

    @T.prim_func
    def main(A: T.Tensor((512, 64), "float16"), C: T.Tensor((128, 256), "float32")):
        with T.Kernel(1, threads=128):
            T.annotate_warp_specialize()
            a, b = T.alloc_shared((128, 64), "float16"), T.alloc_shared((256, 64), "float16")
            sums = T.alloc_shared((128, 256), "float32")
            again = T.alloc_shared((128, 256), "float32")
            acc = T.alloc_fragment((128, 256), "float32")
            T.clear(acc)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[k * 128, 0], a)
                T.copy(A[k * 256, 0], b)
                T.gemm(a, b, acc, transpose_B=True)
            T.copy(acc, sums)
            T.copy(sums, C)
            T.copy(C, again)
            T.copy(again, C)

    with pytest.warns(TileWarning, match="no warps are specialised.*no room for all its tiles"):
        compiled(main)


@pytest.mark.parametrize("barrier", [T.cluster_sync, T.sync_grid])
def test_barriers_of_blocks_need_all_threads(barrier):
    """The producer's would not come to them."""

    @T.prim_func
    def program(A: T.Tensor((128, 128), "float16"), C: T.Tensor((128, 64), "float16")):
        with T.Kernel(2, threads=128, cluster_dims=2) as by:
            a = T.alloc_shared((64, 32), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            barrier()
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[by * 64, k * 32], a)
                T.gemm(a, a, c, transpose_B=True)
            T.copy(c, C[by * 64, 0])

    assert dict(choice_of_loop(compiled(program)).declined)["two roles"] == (
        "blocks wait for each other, with all of their threads"
    )


@pytest.mark.full(but=1)
@pytest.mark.parametrize(("limit", "copies"), [(None, 3), (2, 2)])
def test_stages_are_limited_by_whoever_runs_the_passes(limit, copies):
    """Fewer stages are taken where a block's memory does not suffice for those planned."""
    program = product((64, 64, 64), 128, size=256, hints=[wish()]).with_attr(MOST_STAGES, limit)
    fewer = pytest.warns(TileWarning, match=f"has {copies} stages in place of 3: a block of CUDA")
    with fewer if limit else nullcontext():
        steps = dict(compiled(program).lowering)
    script = steps["tvmtile.SchedulePipelines"]["main"].script()
    assert f"a = T.alloc_buffer(({copies}, 64, 64)" in script


# Products in flight ----------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.* registers of each thread")
@pytest.mark.parametrize(
    ("stages", "block", "waits"),
    [
        (2, (128, 256, 64), []),
        (3, (128, 128, 32), []),
        (3, (128, 128, 64), ["1", "0"]),
        (4, (128, 128, 32), ["1", "0"]),
    ],
)
def test_a_product_is_in_flight_where_enough_comes_meanwhile(stages, block, waits):
    steps = dict(compiled(product(block, 128, size=256, stages=stages)).lowering)
    script = steps["tvmtile.SchedulePipelines"]["main"].script()
    assert re.findall(r'async_wait\("wgmma/\w+", (\d)\)', script) == waits


@pytest.mark.full
@pytest.mark.parametrize(
    ("shape", "registers"),
    [((128, 256, 64), 240), ((192, 256, 64), 160), ((192, 128, 64), None)],
)
def test_products_overlap_where_registers_hold_their_sums(shape, registers, tmp_path):
    case = catalogue()["roles_two_products_with_a_sum_between_them"].case(shape=shape)
    loop = choice_of_loop(compiled(loaded(case, tmp_path).main))
    why_not = dict(loop.declined).get("skewed")
    if registers is None:
        assert why_not is None
        assert "skewed" in loop.chosen
    else:
        held = f"the fragments take 225 registers of a thread, of which it has {registers}"
        assert why_not == f"{held}; 24 are for all else"


# Registers -------------------------------------------------------------------------------------


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("threads", "blocks", "moved"),
    [
        (128, None, []),
        (256, None, [240, 24]),
        (256, 1, [240, 24]),
        (256, 2, [104, 24]),
        (256, 4, [48, 24]),
        (384, None, [160, 32]),
        (384, 2, [72, 32]),
        (384, 3, [40, 32]),
    ],
)
def test_registers_move_to_the_consumers(threads, blocks, moved):
    """Of those that a block has, where as many blocks share them as the kernel asks for."""
    hints = [share(blocks)] if blocks else []
    kernel = compiled(product((threads // 2, 64, 64), threads, size=384, hints=hints))
    assert registers_moved(kernel) == moved
    assert "registers for consumers" not in dict(choice_of_loop(kernel).declined)
    assert kernel.resources()  # ptxas has enough for each instruction


def test_blocks_leave_no_registers_for_a_product_of_warpgroups():
    kernel = compiled(product((192, 64, 64), 384, size=384, hints=[share(5)]))
    (choice,) = (each for each in kernel.choices if each.operator == "gemm")
    reason = "5 blocks of 384 threads leave one 32 registers; an instruction takes 34"
    assert (choice.chosen, dict(choice.declined)["wgmma"]) == ("mma", reason)
    assert kernel.resources()


@pytest.mark.full(but=1)
@pytest.mark.parametrize("hint", [T.no_set_max_nreg, T.disable_warp_group_reg_alloc])
def test_registers_stay_where_the_kernel_asks_for_that(hint):
    kernel = compiled(product((128, 128, 64), 256, size=256, hints=[hint]))
    assert not registers_moved(kernel)
    reason = dict(choice_of_loop(kernel).declined)["registers for consumers"]
    assert reason == "the kernel asks that none move"


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("block", "registers"),
    [
        ((128, 256, 64), [200, 104]),  # 64 elements that a thread loads
        ((128, 256, 32), [216, 72]),
        ((64, 256, 64), [216, 72]),
        ((64, 64, 32), None),
        ((64, 64, 128), None),
        ((128, 128, 128), None),
    ],
)
def test_threads_that_compute_have_registers_for_what_they_load(block, registers):
    """And roles no more than the block began with, else an increase would wait for ever."""
    options = {"dtype": "float32", "stages": 2, "hints": [wish()]}
    many, few = registers_moved(compiled(product(block, 256, **options)))
    at_first = 65536 // 384 // 8 * 8
    assert few <= at_first <= many
    assert 256 * many + 128 * few <= 384 * at_first
    assert registers in (None, [many, few])


@pytest.mark.parametrize("scale", [1, 2])
def test_a_tile_that_depends_on_the_thread_is_no_producers(scale):
    """Threads of the producer have other numbers."""

    @T.prim_func
    def main(A: T.Tensor((2 * N, 4 * N), "float16"), C: T.Tensor((N, N), "float32")):
        with T.Kernel(1, threads=128):
            T.annotate_warp_specialize()
            tx = T.get_thread_binding()
            a, b = T.alloc_shared((N, N), "float16"), T.alloc_shared((N, N), "float16")
            c = T.alloc_fragment((N, N), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[0, k * N], a)
                for i, j in T.Parallel(N, N):
                    b[i, j] = A[i * (tx // 128 + 1), k * N + j] * scale
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C)

    with pytest.warns(TileWarning, match="asks which thread does it"):
        loop = choice_of_loop(compiled(main))
    assert loop.chosen == "one role"
