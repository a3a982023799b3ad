"""WarpSpecialize: kernels with a producer compute what they compute without one."""

from __future__ import annotations

import re
from contextlib import nullcontext

import pytest
import torch
from tvm import ir, tirx

import tvmtile
import tvmtile.language as T
from tests.metal.programs import assert_close, flash_attention, random
from tvmtile._tvm import walk
from tvmtile.errors import TileWarning
from tvmtile.ir.threads import group_of_region
from tvmtile.passes.tile.plan_pipeline import MOST_STAGES
from tvmtile.pipeline import lowering_passes
from tvmtile.target import parse

HOPPER = {"kind": "cuda", "arch": "sm_90a"}
SEEDS = range(2)
ONE_EACH = "1 blocks run at once"


def specialised(program):
    """The program behind WarpSpecialize."""
    mod = ir.IRModule({"main": program.with_attr("global_symbol", "main")})
    for step in lowering_passes(parse(HOPPER)):
        mod = step(mod)
        if step.info.name == "tvmtile.WarpSpecialize":
            return mod["main"]
    raise AssertionError("the pass is not there")


def groups_of(program):
    """The groups of threads of a specialised program, by their first threads."""
    found = []

    def note(node):
        group = group_of_region(node)
        if group is not None:
            found.append((group.first, group.count))

    walk(specialised(program).body, (tirx.AttrStmt, note))
    return sorted(found)


@pytest.mark.parametrize(("limit", "copies"), [(None, 3), (2, 2)])
def test_whoever_runs_the_passes_limits_the_stages(limit, copies):
    """Which is done where a block's memory turns out not to suffice for those planned."""
    program = gemm(64, 64, 256, wish=True).with_attr(MOST_STAGES, limit)
    fewer = pytest.warns(TileWarning, match=f"has {copies} stages in place of 3: a block of CUDA")
    with fewer if limit else nullcontext():
        assert f"a = T.alloc_buffer(({copies}, 64, 64)" in specialised(program).script()


def is_split(program):
    return bool(groups_of(program))


def threads_of(program):
    return int(re.search(r'thread_binding\((\d+), thread="threadIdx.x"', program.script())[1])


def check(program, tensors, expected, *, split=True):
    """Run a program, with copies that arrive at several times, and compare."""
    assert is_split(program) == split
    kernel = tvmtile.compile(program, target=HOPPER, execution_backend="emulator")
    for seed in SEEDS:
        kernel.adapter.seed = seed
        kernel(*tensors)
        assert_close(tensors[-1], expected)


def gemm(
    M, N, K, *, stages=3, threads=128, block=(64, 64, 64), dtype="float16", wish=None, hint=None
):  # fmt: skip
    bM, bN, bK = block

    @T.prim_func
    def main(
        A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), "float32")
    ):
        with T.Kernel(T.ceildiv(N, bN), T.ceildiv(M, bM), threads=threads) as (bx, by):
            if wish is not None:
                T.annotate_warp_specialize(wish)
            if hint is not None:
                hint()
            a = T.alloc_shared((bM, bK), dtype)
            b = T.alloc_shared((bK, bN), dtype)
            c = T.alloc_fragment((bM, bN), "float32")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, bK), num_stages=stages):
                T.copy(A[by * bM, k * bK], a)
                T.copy(B[k * bK, bx * bN], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * bM, bx * bN])

    return main


def operands(M, N, K, dtype="float16"):
    a, b = random(M, K, dtype=dtype), random(K, N, dtype=dtype)
    return (a, b, torch.zeros(M, N)), a.double() @ b.double()


# Loops -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("K", [64, 320])
def test_stages_and_trip_counts(stages, K):
    """A single iteration, fewer than stages, and a number that stages do not divide."""
    tensors, expected = operands(64, 64, K)
    check(gemm(64, 64, K, stages=stages), tensors, expected)


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
    program = specialised(gemm(256, 256, 320, stages=stages, block=block))
    assert re.findall(r'async_wait\("wgmma/\w+", (\d)\)', program.script()) == waits


@pytest.mark.parametrize("shape", [(100, 72, 80), (64, 200, 96)])
def test_ragged_edges(shape):
    tensors, expected = operands(*shape)
    check(gemm(*shape), tensors, expected)


@pytest.mark.parametrize(("threads", "block"), [(256, (128, 128, 64)), (128, (64, 256, 32))])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_consumers_of_one_warpgroup_and_of_two(threads, block, dtype):
    tensors, expected = operands(256, 256, 160, dtype)
    program = gemm(256, 256, 160, threads=threads, block=block, dtype=dtype)
    check(program, tensors, expected)
    assert threads_of(specialised(program)) == threads + 128


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
    kernel = sharing_registers(threads, blocks)
    assert registers_moved(kernel) == moved
    (choice,) = (each for each in kernel.choices if each.operator == "Pipelined")
    assert "registers for consumers" not in dict(choice.declined)
    assert kernel.resources()  # ptxas has enough for each instruction


def sharing_registers(threads, blocks):
    """A product whose blocks share a multiprocessor with so many."""
    hint = None if blocks is None else lambda: T.annotate_min_blocks_per_sm(blocks)
    program = gemm(384, 256, 256, threads=threads, block=(threads // 2, 64, 64), hint=hint)
    return tvmtile.compile(program, target=HOPPER)


@pytest.mark.parametrize(("threads", "blocks", "left"), [(256, 6, 24), (384, 4, 32)])
def test_a_producer_that_leaves_no_registers_for_a_product(threads, blocks, left):
    kernel = sharing_registers(threads, blocks)
    assert f"__launch_bounds__({threads}, {blocks})" in kernel.get_kernel_source()
    (choice,) = (each for each in kernel.choices if each.operator == "Pipelined")
    assert dict(choice.declined)["two roles"] == (
        f"{blocks} blocks with producers leave a thread {left} registers, and a product takes 34"
    )
    assert kernel.resources()


def test_blocks_that_leave_no_registers_for_a_product_of_warpgroups():
    kernel = sharing_registers(384, 5)
    (choice,) = (each for each in kernel.choices if each.operator == "gemm")
    reason = "5 blocks of 384 threads leave one 32 registers; an instruction takes 34"
    assert (choice.chosen, dict(choice.declined)["wgmma"]) == ("mma", reason)
    assert kernel.resources()


def registers_moved(kernel):
    """The numbers of `setmaxnreg`, in the order of the kernel's text."""
    body = kernel.get_kernel_source().rpartition("__global__")[2]
    return [int(count) for count in re.findall(r"setmaxnreg_\w+?_(\d+)\(", body)]


@pytest.mark.parametrize("hint", [T.no_set_max_nreg, T.disable_warp_group_reg_alloc])
def test_registers_stay_where_the_kernel_asks_for_that(hint):
    tensors, expected = operands(256, 256, 160)
    options = {"threads": 256, "block": (128, 128, 64)}
    program = gemm(256, 256, 160, **options, hint=hint)
    check(program, tensors, expected)
    kernel = tvmtile.compile(program, target=HOPPER)
    assert "setmaxnreg" not in kernel.get_kernel_source()
    (choice,) = (each for each in kernel.choices if each.operator == "Pipelined")
    reason = dict(choice.declined)["registers for consumers"]
    assert reason == "the kernel asks that none move"
    without = tvmtile.compile(gemm(256, 256, 160, **options), target=HOPPER)
    assert "registers for consumers" not in str(without.choices)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_dynamic_trip_counts_and_starts(count):
    n = T.dynamic("n")

    @T.prim_func
    def program(
        A: T.Tensor((64, 512), "float16"),
        B: T.Tensor((512, 64), "float16"),
        N: T.Tensor((n,), "int32"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(2, 2 + n, num_stages=2):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C)

    a, b, c = (
        random(64, 512, dtype="float16"),
        random(512, 64, dtype="float16"),
        torch.zeros(64, 64),
    )
    used = slice(128, 128 + 64 * count)
    expected = a[:, used].double() @ b[used].double()
    check(program, (a, b, torch.zeros(count, dtype=torch.int32), c), expected)


def test_a_loop_in_serial_and_persistent_loops():
    M, N, K = 128, 192, 192

    @T.prim_func
    def program(
        A: T.Tensor((2, M, K), "float16"),
        B: T.Tensor((2, K, N), "float16"),
        C: T.Tensor((2, M, N), "float32"),
    ):
        with T.Kernel(4, threads=128) as bx:
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            for batch in T.serial(2):
                for i, j in T.Persistent([M // 64, N // 64], 4, bx):
                    T.clear(c)
                    for k in T.Pipelined(K // 64, num_stages=2):
                        T.copy(A[batch, i * 64, k * 64], a)
                        T.copy(B[batch, k * 64, j * 64], b)
                        T.gemm(a, b, c)
                    T.copy(c, C[batch, i * 64, j * 64])

    a, b = random(2, M, K, dtype="float16"), random(2, K, N, dtype="float16")
    check(program, (a, b, torch.zeros(2, M, N)), a.double() @ b.double())


def test_two_loops_and_two_products_into_one_accumulator():
    @T.prim_func
    def program(
        A: T.Tensor((64, 192), "float16"),
        B: T.Tensor((192, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a, d = T.alloc_shared((64, 64), "float16"), T.alloc_shared((64, 32), "float16")
            b, e = T.alloc_shared((64, 64), "float16"), T.alloc_shared((32, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(3, num_stages=3):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
            for k in T.Pipelined(3, num_stages=2):
                T.copy(A[0, k * 64], d)
                T.copy(B[k * 64, 0], e)
                T.gemm(d, e, c)
                T.gemm(d, e, c)
            T.copy(c, C)

    a, b = random(64, 192, dtype="float16"), random(192, 64, dtype="float16")
    first = torch.arange(192) % 64 < 32
    expected = a.double() @ b.double() + 2 * a[:, first].double() @ b[first].double()
    check(program, (a, b, torch.zeros(64, 64)), expected)


@pytest.mark.parametrize("counts", [(3, 2), (1, 4), (2, 1)])
def test_two_loops_that_use_the_same_tiles(counts):
    first, second = counts

    @T.prim_func
    def program(
        A: T.Tensor((64, 320), "float16"),
        B: T.Tensor((320, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(first, num_stages=2):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
            for i, j in T.Parallel(64, 64):
                c[i, j] *= 2
            for k in T.Pipelined(first, first + second, num_stages=2):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C)

    a, b = random(64, 320, dtype="float16"), random(320, 64, dtype="float16")
    used, more = slice(0, 64 * first), slice(64 * first, 64 * (first + second))
    expected = 2 * a[:, used].double() @ b[used].double() + a[:, more].double() @ b[more].double()
    check(program, (a, b, torch.zeros(64, 64)), expected)


def test_a_loop_that_ends_before_it_begins_counts_no_iterations():
    @T.prim_func
    def program(
        A: T.Tensor((64, 192), "float16"),
        B: T.Tensor((192, 64), "float16"),
        end: T.int32,
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(end, num_stages=2):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
            for k in T.Pipelined(3, num_stages=2):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C)

    a, b = random(64, 192, dtype="float16"), random(192, 64, dtype="float16")
    check(program, (a, b, -1, torch.zeros(64, 64)), a.double() @ b.double())


# Conditions and names ----------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [[0, 1, 1, 0, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0]])
def test_skipped_iterations(kept):
    @T.prim_func
    def program(
        A: T.Tensor((64, 320), "float16"),
        B: T.Tensor((320, 64), "float16"),
        mask: T.Tensor((5,), "int32"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(5, num_stages=2):
                if mask[k] > 0:
                    T.copy(A[0, k * 64], a)
                    T.copy(B[k * 64, 0], b)
                    T.gemm(a, b, c)
            T.copy(c, C)

    a, b = random(64, 320, dtype="float16"), random(320, 64, dtype="float16")
    mask = torch.tensor(kept, dtype=torch.int32)
    expected = (a * mask.repeat_interleave(64)).double() @ b.double()
    check(program, (a, b, mask, torch.zeros(64, 64)), expected)


def test_names_that_both_roles_use():
    @T.prim_func
    def program(
        A: T.Tensor((64, 256), "float16"),
        B: T.Tensor((256, 64), "float16"),
        order: T.Tensor((4,), "int32"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            first = order[0]
            for k in T.Pipelined(4, num_stages=3):
                at = order[k] * 64
                if at < 192:
                    other = at + first * 0
                    T.copy(A[0, other], a)
                    T.copy(B[other, 0], b)
                    T.gemm(a, b, c)
            for i, j in T.Parallel(64, 64):
                c[i, j] += first
            T.copy(c, C)

    a, b = random(64, 256, dtype="float16"), random(256, 64, dtype="float16")
    order = torch.tensor([2, 0, 3, 1], dtype=torch.int32)
    expected = a[:, :192].double() @ b[:192].double() + 2
    check(program, (a, b, order, torch.zeros(64, 64)), expected)


# Copies that need what the kernel computes -------------------------------------------------------


def gathered(count, *, stages=2, threads=128, rows=64, columns=64, wish=None):
    """Rows of A, named by indices that differ from tile to tile, times B."""

    @T.prim_func
    def main(
        A: T.Tensor((100, 200), "float16"),
        B: T.Tensor((columns, 200), "float16"),
        tokens: T.Tensor((count * rows,), "int32"),
        kept: T.Tensor((4,), "int32"),
        C: T.Tensor((count * rows, columns), "float32"),
    ):
        with T.Kernel(1, threads=threads):
            if wish is not None:
                T.annotate_warp_specialize(wish)
            named = T.alloc_shared((rows,), "int32")
            a = T.alloc_shared((rows, 64), "float16")
            b = T.alloc_shared((columns, 64), "float16")
            c = T.alloc_fragment((rows, columns), "float32")
            for tile in T.serial(count):
                T.copy(tokens[tile * rows], named)
                T.clear(c)
                for k in T.Pipelined(4, num_stages=stages):
                    if kept[k] > 0:
                        T.gather_rows(A, a, named, k * 64)
                        T.copy(B[0, k * 64], b)
                        T.gemm(a, b, c, transpose_B=True)
                T.copy(c, C[tile * rows, 0])

    return main


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (1, {}),
        (3, {"stages": 3}),
        (2, {"stages": 1, "rows": 128, "threads": 256}),
        (1, {"columns": 72}),
    ],
)
@pytest.mark.parametrize("kept", [[1, 1, 1, 1], [0, 1, 0, 1]])
def test_gathered_rows_beside_tiles(count, options, kept):
    rows, columns = options.get("rows", 64), options.get("columns", 64)
    a, b = random(100, 200, dtype="float16"), random(columns, 200, dtype="float16")
    tokens = torch.randint(-1, 100, (count * rows,), dtype=torch.int32)
    mask = torch.tensor(kept, dtype=torch.int32)
    read = torch.where((tokens >= 0)[:, None], a.double()[tokens.clamp(0).long()], 0.0)
    read *= mask.repeat_interleave(64)[:200]
    result = torch.zeros(count * rows, columns)
    check(gathered(count, **options), (a, b, tokens, mask, result), read @ b.double().T)


def test_threads_that_gather_are_a_warpgroup():
    assert groups_of(gathered(1)) == [(0, 128), (128, 128)]
    source = tvmtile.compile(gathered(1), target=HOPPER).get_kernel_source()
    assert "cp_async_mbarrier_arrive_async_mbarrier_arrive_noinc" in source
    assert "cp_async_bulk_tensor" in source


def indexed(*, used_by_both):
    """Tiles of A at places from a tensor, by way of shared memory."""

    @T.prim_func
    def main(
        A: T.Tensor((256, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        places: T.Tensor((8,), "int32"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            place = T.alloc_shared((8,), "int32")
            count = T.alloc_var("int32")
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.copy(places, place)
            count = places[0] + 3
            T.clear(c)
            for k in T.Pipelined(count, num_stages=2):
                T.copy(A[place[k] * 64, 0], a)
                T.copy(B, b)
                T.gemm(a, b, c)
            if used_by_both:
                for i, j in T.Parallel(64, 64):
                    c[i, j] += place[i % 8]
            T.copy(c, C)

    return main


@pytest.mark.parametrize("used_by_both", [False, True])
def test_what_copies_need_is_computed_by_the_producer_too(used_by_both):
    a, b = random(256, 64, dtype="float16"), random(64, 64, dtype="float16")
    places = torch.tensor([2, 0, 3, 1, 1, 3, 2, 0], dtype=torch.int32)
    expected = sum(a[64 * i : 64 * i + 64].double() @ b.double() for i in places[:5].tolist())
    if used_by_both:
        expected = expected + places.repeat(8)[:, None]
    program = indexed(used_by_both=used_by_both)
    check(program, (a, b, places, torch.zeros(64, 64)), expected)
    tiles = specialised(program).script().count('alloc_buffer((8,), "int32", scope="shared')
    assert tiles == 1 + used_by_both  # of its own only where both need it


def test_copies_that_depend_on_what_an_iteration_computes():
    @T.prim_func
    def program(
        A: T.Tensor((256, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            T.annotate_warp_specialize()
            place = T.alloc_shared((1,), "int32")
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            place[0] = 1
            for _ in T.serial(3):
                for _k in T.Pipelined(2, num_stages=2):
                    T.copy(A[place[0] * 64, 0], a)
                    T.copy(B, b)
                    T.gemm(a, b, c)
                place[0] = place[0] ^ 3
            T.copy(c, C)

    reason = reason_of(program)
    assert "the copies depend on place, which only consumers know" in reason


# Attention ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("stages", [1, 2])
def test_attention(causal, stages):
    shape = (1, 128, 2, 64)
    batch, length, heads, dim = shape
    program = flash_attention(
        batch,
        heads,
        length,
        dim,
        causal,
        block_M=64,
        block_N=64,
        threads=128,
        stages=stages,
        policy=T.GemmWarpPolicy.FullRow,
        dtype="float16",
    )
    q, k, v = (random(*shape, dtype="float16") for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(each.double().transpose(1, 2) for each in (q, k, v)), is_causal=causal
    ).transpose(1, 2)
    check(program, (q, k, v, torch.zeros(shape, dtype=torch.float16)), expected)


# Tiles that are copied before a loop -------------------------------------------------------------


def product_with(before=None, behind=None, *, extra=None, rows=64):
    """Products of one tile of A with several of B; `before` and `behind` are done around the loop."""

    @T.prim_func
    def main(
        A: T.Tensor((rows, 64), "float16"),
        B: T.Tensor((3, 64, 64), "float16"),
        C: T.Tensor((rows, 64), "float32"),
        D: T.Tensor((64, 64), "float16"),
        place: T.Tensor((1,), "int32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            if extra == "place":
                T.copy(A[place[0], 0], a)
            else:
                T.copy(A[0, 0], a)
            if before is not None:
                before(A, a, D)
            T.clear(c)
            for k in T.Pipelined(3, num_stages=2):
                T.copy(B[k, 0, 0], b)
                T.gemm(a, b, c)
            if behind is not None:
                behind(A, a, D)
            T.copy(c, C[0, 0])

    return main


def is_preloaded(program):
    kernel = tvmtile.compile(program, target=HOPPER, execution_backend="emulator")
    return "tma_copy of a: tma" in "\n".join(str(choice) for choice in kernel.choices)


def check_product(program, preloaded, rows=64):
    assert is_preloaded(program) == preloaded
    a, b = random(rows, 64, dtype="float16"), random(3, 64, 64, dtype="float16")
    tensors = (a, b, torch.zeros(rows, 64), torch.zeros(64, 64, dtype=torch.float16))
    kernel = tvmtile.compile(program, target=HOPPER, execution_backend="emulator")
    for seed in range(2):
        kernel.adapter.seed = seed
        kernel(*tensors, torch.zeros(1, dtype=torch.int32))
        assert_close(tensors[2], a.double() @ b.double().sum(0))


@pytest.mark.parametrize("rows", [64, 8])
def test_the_producer_copies_what_a_loop_only_reads(rows):
    """Of a tensor of fewer rows than the tile, too: what is outside reads as zero."""
    check_product(product_with(rows=rows), preloaded=True, rows=rows)


@T.macro
def clears_a_row(_, a, __):
    a[0, 0] = a[0, 0] * 1


@T.macro
def reads_the_tile(_, a, out):
    T.copy(a, out)


@T.macro
def writes_the_tensor(tensor, _, __):
    for i in T.Parallel(64):
        tensor[i, 0] = tensor[i, 0] * 1


@pytest.mark.parametrize(
    "options",
    [
        {"before": clears_a_row},
        {"before": reads_the_tile},
        {"behind": reads_the_tile},
        {"behind": writes_the_tensor},
        {"extra": "place"},
    ],
    ids=["written", "read before", "read behind", "tensor written", "place from memory"],
)
def test_consumers_copy_what_they_use_otherwise(options):
    check_product(product_with(**options), preloaded=False)


# What is not split -------------------------------------------------------------------------------


def test_a_wish_that_is_false():
    tensors, expected = operands(64, 64, 192)
    check(gemm(64, 64, 192, wish=False), tensors, expected, split=False)


@pytest.mark.parametrize("key", ["tl.disable_warp_specialized", "tl.disable_tma_lower"])
def test_options_of_tilelang_that_say_no(key):
    program = gemm(64, 64, 192)
    for value in (True, False):
        kernel = tvmtile.compile(program, target=HOPPER, pass_configs={key: value})
        assert ("mbarrier" in kernel.get_kernel_source()) != value


@pytest.mark.parametrize(
    ("options", "target", "expected"),
    [
        ({}, HOPPER, [("k", "two roles", (("persistent blocks", ONE_EACH),))]),
        (
            {"threads": 64},
            HOPPER,
            [("k", "one role", (("two roles", "64 threads are not whole warpgroups"),))],
        ),
        (
            {"wish": False},
            HOPPER,
            [("k", "one role", (("two roles", "the kernel asks for one role"),))],
        ),
        ({}, {"kind": "cuda", "arch": "sm_80"}, []),
    ],
    ids=["split", "threads", "wish", "no tensor maps"],
)
def test_the_choices_of_a_kernel_say_whether_a_loop_is_split_and_why_not(options, target, expected):
    kernel = tvmtile.compile(
        gemm(64, 64, 192, **options), target=target, execution_backend="emulator"
    )
    loops = [choice for choice in kernel.choices if choice.operator == "Pipelined"]
    assert [(loop.operand, loop.chosen, loop.declined) for loop in loops] == expected
    assert all(loop.location.text == "T.copy(A[by * bM, k * bK], a)" for loop in loops)


def reason_of(program):
    with pytest.warns(UserWarning, match="no warps are specialised") as caught:
        assert not is_split(program)
    return str(caught[0].message)


def test_threads_that_are_no_warpgroups():
    reason = reason_of(gemm(64, 64, 64, threads=64, wish=True))
    assert "64 threads are not whole warpgroups" in reason


def test_rows_that_begin_anywhere():
    reason = reason_of(gemm(64, 60, 64, wish=True))
    assert "rows of B[64, 60] float16 may not begin at multiples of 16 bytes" in reason


@pytest.mark.parametrize(("first", "split"), [(8, True), (-16, True), (1, False), (-3, False)])
def test_columns_that_begin_between_multiples_of_16_bytes(first, split):
    """A tensor map can't: it is an illegal instruction on an H200."""

    @T.prim_func
    def program(A: T.Tensor((64, 256), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            T.annotate_warp_specialize()
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[0, k * 64 + first], a)
                for i, j in T.Parallel(64, 64):
                    c[i, j] += a[i, j]
            T.copy(c, C)

    if not split:
        assert "may not begin at a multiple of 16 bytes" in reason_of(program)
        return
    a = random(64, 256, dtype="float16")
    padded = torch.nn.functional.pad(a.double(), (16, 16))
    read = padded[:, 16 + first : 272 + first]
    check(program, (a, torch.zeros(64, 64)), read.reshape(64, 4, 64).sum(1))


def test_loops_that_fill_a_tile_by_different_threads():
    """One by a tensor map and one by threads that gather arrive differently on one mbarrier."""

    @T.prim_func
    def program(
        A: T.Tensor((64, 64), "float16"),
        rows: T.Tensor((64,), "int32"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            T.annotate_warp_specialize()
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for _ in T.Pipelined(2, num_stages=2):
                T.copy(A, a)
                for i, j in T.Parallel(64, 64):
                    c[i, j] += a[i, j]
            for _ in T.Pipelined(2, num_stages=2):
                T.gather_rows(A, a, rows, 0)
                for i, j in T.Parallel(64, 64):
                    c[i, j] += a[i, j]
            T.copy(c, C)

    assert "loops fill a by different threads" in reason_of(program)


@pytest.mark.parametrize(
    ("columns", "stages", "split"), [(16, 1, True), (16, 2, False), (64, 2, True)]
)
def test_rows_of_few_bytes_have_one_buffer_copy(columns, stages, split):
    """A second one would begin where no tensor map can write."""

    @T.prim_func
    def program(A: T.Tensor((4 * columns,), "float16"), C: T.Tensor((columns,), "float32")):
        with T.Kernel(1, threads=128):
            T.annotate_warp_specialize()
            a = T.alloc_shared((columns,), "float16")
            c = T.alloc_fragment((columns,), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=stages):
                T.copy(A[k * columns], a)
                for i in T.Parallel(columns):
                    c[i] += a[i]
            T.copy(c, C)

    if not split:
        assert "a[0:16] float16 may not begin where its swizzle does" in reason_of(program)
        return
    a = random(4 * columns, dtype="float16")
    check(program, (a, torch.zeros(columns)), a.reshape(4, columns).double().sum(0))


def test_copies_that_convert_and_ask_for_one_role():
    @T.prim_func
    def program(A: T.Tensor((64, 256), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            T.annotate_warp_specialize()
            a = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[0, k * 64], a, disable_tma=True)
                T.gemm(a, a, c)
            T.copy(c, C)

    assert "is no copy that can go on by itself" in reason_of(program)


@pytest.mark.parametrize("when", ["before", "behind"])
def test_tiles_that_are_used_outside_of_the_loop(when):
    """Copies of the producer would not wait for what consumers do there."""

    @T.prim_func
    def program(
        A: T.Tensor((64, 256), "float16"),
        B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            T.annotate_warp_specialize()
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            if when == "before":
                T.clear(a)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[0, k * 64], a)
                T.copy(B, b)
                T.gemm(a, b, c)
            if when == "behind":
                T.copy(c, a)
                T.copy(a, c)
            T.copy(c, C)

    assert "a is used outside of the loop too" in reason_of(program)


def test_targets_without_tensor_maps_have_one_role():
    program = gemm(64, 64, 192, wish=True)
    for arch in ("sm_80", "sm_89"):
        kernel = tvmtile.compile(program, target={"kind": "cuda", "arch": arch})
        assert "mbarrier" not in kernel.get_kernel_source()


def test_the_groups_of_the_roles():
    assert groups_of(gemm(64, 64, 192)) == [(0, 128), (128, 32), (128, 128)]


def test_a_loop_that_has_memory_for_one_buffer_copy_only():
    """Its product is waited for before the tiles are filled again."""
    tensors, expected = operands(64, 256, 512)
    program = gemm(64, 256, 512, stages=3, block=(64, 256, 256))
    check(program, tensors, expected)


def test_tiles_that_fit_one_after_the_other_only_have_one_role():
    """Roles may use all tiles at once: no two of them lie in one place."""

    @T.prim_func
    def main(A: T.Tensor((512, 64), "float16"), C: T.Tensor((128, 256), "float32")):
        with T.Kernel(1, threads=128):
            T.annotate_warp_specialize()
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((256, 64), "float16")
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

    assert "no room for all its tiles at once" in reason_of(main)
    with pytest.warns(TileWarning, match="no warps are specialised"):
        tvmtile.compile(main, target=HOPPER, execution_backend="emulator")


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

    kernel = tvmtile.compile(program, target=HOPPER)
    (loop,) = (choice for choice in kernel.choices if choice.operator == "Pipelined")
    assert loop.declined == (
        ("two roles", "blocks wait for each other, with all of their threads"),
    )
