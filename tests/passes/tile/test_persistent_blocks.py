"""Blocks that stay: a kernel in as many blocks as run at once computes what all of its blocks did."""

from __future__ import annotations

import math
import re

import pytest
import torch
from tvm import ir, tirx
from tvm.script import tirx as S
from tvm.sym import Analyzer

import tvmtile
import tvmtile.language as T
from tests.metal.programs import assert_close, random
from tvmtile._tvm import nodes_in
from tvmtile.ir.rewriting import substitute
from tvmtile.passes.tile.specialization import Unsuitable, persistent
from tvmtile.passes.tile.specialization.persistence import _place_and_turns
from tvmtile.pipeline import lowering_passes
from tvmtile.target import capabilities, parse

HOPPER = {"kind": "cuda", "arch": "sm_90a"}
SEEDS = range(2)


def nightly(value):
    return pytest.param(value, marks=pytest.mark.nightly)


@pytest.fixture
def few_multiprocessors(monkeypatch):
    """A GPU that runs three blocks at once, so that small grids take several turns."""
    monkeypatch.setitem(capabilities._MULTIPROCESSORS, 90, 3)


def matmul(
    M, N, K, *, block=(128, 64, 32), stages=3, threads=256, dtype="float16", out=None,
    order="row", panel=2, wish=True, hint=None,
):  # fmt: skip
    bM, bN, bK = block
    out = out or dtype

    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), out)):
        with T.Kernel(T.ceildiv(N, bN), T.ceildiv(M, bM), threads=threads) as (bx, by):
            if wish is not None:
                T.annotate_persistent(wish)
            if hint is not None:
                hint()
            a = T.alloc_shared((bM, bK), dtype)
            b = T.alloc_shared((bK, bN), dtype)
            c = T.alloc_fragment((bM, bN), "float32")
            if panel:
                T.use_swizzle(panel, order=order)
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, bK), num_stages=stages):
                T.copy(A[by * bM, k * bK], a)
                T.copy(B[k * bK, bx * bN], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * bM, bx * bN])

    return main


def compiled(program):
    """A kernel whose blocks take turns, for the emulator."""
    kernel = tvmtile.compile(program, target=HOPPER, execution_backend="emulator")
    assert re.search(r"for \(int turn = ", kernel.get_kernel_source())
    return kernel


def check(kernel, tensors, expected):
    """Run a kernel, with copies that arrive at several times, and compare."""
    for seed in SEEDS:
        kernel.adapter.seed = seed
        tensors[-1].fill_(float("nan"))
        kernel(*tensors)
        assert_close(tensors[-1], expected)


def check_product(M, N, K, **options):
    dtype = options.get("dtype", "float16")
    out = getattr(torch, options.get("out", dtype))
    a, b = random(M, K, dtype=dtype), random(K, N, dtype=dtype)
    expected = a.double() @ b.double()
    check(compiled(matmul(M, N, K, **options)), (a, b, torch.empty(M, N, dtype=out)), expected)


@pytest.mark.usefixtures("few_multiprocessors")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_more_blocks_than_run_at_once(dtype):
    check_product(384, 256, 96, dtype=dtype)


@pytest.mark.usefixtures("few_multiprocessors")
@pytest.mark.parametrize("tiles", [0, 1, 2, 3, 5, *map(nightly, (4, 6, 7, 8, 9))])
def test_trip_counts(tiles):
    """The rings of both roles go on from one block to the next, whatever stages divide."""
    check_product(256, 256, 32 * tiles, stages=3)


@pytest.mark.usefixtures("few_multiprocessors")
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_stages(stages):
    check_product(256, 192, 96, stages=stages)


@pytest.mark.usefixtures("few_multiprocessors")
@pytest.mark.parametrize("shape", [(200, 136, 72), (129, 264, 40), nightly((640, 8, 64))])
def test_ragged_edges(shape):
    check_product(*shape)


@pytest.mark.usefixtures("few_multiprocessors")
@pytest.mark.parametrize("order", ["row", "column", "strip"])
@pytest.mark.parametrize("panel", [2, nightly(0), nightly(3)])
def test_orders_of_blocks(order, panel):
    check_product(640, 192, 32, order=order, panel=panel)


@pytest.mark.usefixtures("few_multiprocessors")
@pytest.mark.parametrize("block", [(64, 128, 32), (128, 128, 32)])
def test_blocks_of_one_warpgroup(block):
    check_product(512, 384, 96, block=block, threads=128)


@pytest.mark.usefixtures("few_multiprocessors")
def test_three_warpgroups():
    check_product(384, 192, 64, block=(192, 64, 32), threads=384)


@pytest.mark.usefixtures("few_multiprocessors")
@pytest.mark.parametrize("out", ["float32", "bfloat16"])
def test_other_dtypes_of_the_result(out):
    check_product(256, 192, 64, out=out)


@pytest.mark.usefixtures("few_multiprocessors")
@pytest.mark.parametrize("panel", [2, nightly(0)])
def test_rows_that_are_known_at_the_call(panel):
    """As many blocks as there are tiles, where these are fewer than run at once; none without rows."""
    rows = T.dynamic("rows")
    kernel = compiled(matmul(rows, 128, 96, panel=panel))
    b = random(96, 128, dtype="float16")
    kernel(torch.empty(0, 96).half(), b, torch.empty(0, 128).half())
    for M in (1, 128, 300, 1000):
        a = random(M, 96, dtype="float16")
        check(kernel, (a, b, torch.empty(M, 128).half()), a.double() @ b.double())


@pytest.mark.usefixtures("few_multiprocessors")
def test_blocks_that_the_call_decides_and_their_iterations():
    """How often a block's loop runs depends on its index."""
    rows, inner, columns = T.dynamic("rows"), 640, 64

    @T.prim_func
    def program(
        A: T.Tensor((rows, inner), "float16"),
        B: T.Tensor((inner, columns), "float16"),
        C: T.Tensor((rows, columns), "float16"),
    ):
        with T.Kernel(T.ceildiv(rows, 128), threads=256) as by:
            T.annotate_persistent()
            a, b = T.alloc_shared((128, 64), "float16"), T.alloc_shared((64, columns), "float16")
            c = T.alloc_fragment((128, columns), "float32")
            T.clear(c)
            for k in T.Pipelined(2 * (by + 1), num_stages=2):
                T.copy(A[by * 128, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * 128, 0])

    kernel = compiled(program)
    for M in (100, 384, 640):
        a, b = random(M, inner, dtype="float16"), random(inner, columns, dtype="float16")
        seen = torch.arange(inner)[None, :] // 128 <= torch.arange(M)[:, None] // 128
        check(kernel, (a, b, torch.empty(M, columns).half()), (a.double() * seen) @ b.double())


@pytest.mark.usefixtures("few_multiprocessors")
def test_code_behind_the_loop():
    @T.prim_func
    def program(
        A: T.Tensor((384, 128), "float16"),
        B: T.Tensor((128, 256), "float16"),
        bias: T.Tensor((256,), "float16"),
        C: T.Tensor((384, 256), "float16"),
    ):
        with T.Kernel(2, 3, threads=256) as (bx, by):
            T.annotate_persistent()
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 128), "float16")
            row = T.alloc_shared((128,), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            T.copy(bias[bx * 128], row)
            T.clear(c)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[by * 128, k * 64], a)
                T.copy(B[k * 64, bx * 128], b)
                T.gemm(a, b, c)
            for i, j in T.Parallel(128, 128):
                c[i, j] = T.max(c[i, j] + row[j], 0)
            T.copy(c, C[by * 128, bx * 128])

    a, b, bias = (random(*shape, dtype="float16") for shape in ((384, 128), (128, 256), (256,)))
    expected = torch.relu(a.double() @ b.double() + bias.double())
    check(compiled(program), (a, b, bias, torch.empty(384, 256, dtype=torch.float16)), expected)


@pytest.mark.usefixtures("few_multiprocessors")
def test_a_serial_loop_around_the_pipeline():
    @T.prim_func
    def program(
        A: T.Tensor((512, 128), "float16"),
        B: T.Tensor((2, 128, 128), "float16"),
        C: T.Tensor((2, 512, 128), "float32"),
    ):
        with T.Kernel(4, threads=256) as by:
            T.annotate_persistent()
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 128), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            for batch in T.serial(2):
                T.clear(c)
                for k in T.Pipelined(2, num_stages=2):
                    T.copy(A[by * 128, k * 64], a)
                    T.copy(B[batch, k * 64, 0], b)
                    T.gemm(a, b, c)
                T.copy(c, C[batch, by * 128, 0])

    a, b = random(512, 128, dtype="float16"), random(2, 128, 128, dtype="float16")
    check(compiled(program), (a, b, torch.empty(2, 512, 128)), torch.matmul(a.double(), b.double()))


@pytest.mark.usefixtures("few_multiprocessors")
@pytest.mark.parametrize("stages", [1, 3, 4])
def test_iterations_that_a_mask_leaves_out(stages):
    """Some of a block, none, or all; the count of what was done goes on from one turn to the next."""

    @T.prim_func
    def program(
        A: T.Tensor((640, 320), "float16"),
        B: T.Tensor((320, 256), "float16"),
        mask: T.Tensor((5, 2, 5), "bool"),
        C: T.Tensor((640, 256), "float32"),
    ):
        with T.Kernel(2, 5, threads=256) as (bx, by):
            T.annotate_persistent()
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 128), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            T.clear(c)
            for k in T.Pipelined(5, num_stages=stages):
                if mask[by, bx, k]:
                    T.copy(A[by * 128, k * 64], a)
                    T.copy(B[k * 64, bx * 128], b)
                    T.gemm(a, b, c)
            T.copy(c, C[by * 128, bx * 128])

    a, b = random(640, 320, dtype="float16"), random(320, 256, dtype="float16")
    mask = torch.rand(5, 2, 5, generator=torch.Generator().manual_seed(1)) < 0.5
    mask[1, 0], mask[2, 1] = False, True
    expected = torch.empty(640, 256, dtype=torch.float64)
    for y in range(5):
        for x in range(2):
            rows, columns = slice(y * 128, y * 128 + 128), slice(x * 128, x * 128 + 128)
            kept = a[rows].double() * mask[y, x].repeat_interleave(64)
            expected[rows, columns] = kept @ b[:, columns].double()
    check(compiled(program), (a, b, mask, torch.empty(640, 256)), expected)


def attention(length, heads, causal, block=(128, 128), dim=64, threads=256):
    """Attention whose blocks with `causal` differ in their work, the longest of which come first."""
    bM, bN = block
    shape = (heads, length, dim)

    @T.prim_func
    def main(
        Q: T.Tensor(shape, "float16"),
        K: T.Tensor(shape, "float16"),
        V: T.Tensor(shape, "float16"),
        O: T.Tensor(shape, "float16"),
    ):
        blocks = T.ceildiv(length, bM)
        with T.Kernel(blocks, heads, threads=threads) as (bx, by):
            x = blocks - 1 - bx
            q = T.alloc_shared((bM, dim), "float16")
            k = T.alloc_shared((bN, dim), "float16")
            v = T.alloc_shared((bN, dim), "float16")
            scores = T.alloc_fragment((bM, bN), "float32")
            weights = T.alloc_fragment((bM, bN), "float16")
            out = T.alloc_fragment((bM, dim), "float32")
            total = T.alloc_fragment((bM,), "float32")
            part = T.alloc_fragment((bM,), "float32")
            T.copy(Q[by, x * bM, 0], q)
            T.clear(out)
            T.clear(total)
            tiles = T.ceildiv((x + 1) * bM, bN) if causal else T.ceildiv(length, bN)
            for step in T.Pipelined(tiles, num_stages=2):
                T.copy(K[by, step * bN, 0], k)
                T.gemm(q, k, scores, transpose_B=True, policy=FULL, clear_accum=True)
                T.copy(V[by, step * bN, 0], v)
                for i, j in T.Parallel(bM, bN):
                    seen = x * bM + i >= step * bN + j if causal else step * bN + j < length
                    scores[i, j] = T.if_then_else(seen, T.exp2(scores[i, j]), 0)
                T.copy(scores, weights)
                T.reduce_sum(scores, part, dim=1)
                for i in T.Parallel(bM):
                    total[i] = total[i] + part[i]
                T.gemm(weights, v, out, policy=FULL)
            for i, j in T.Parallel(bM, dim):
                out[i, j] /= total[i]
            T.copy(out, O[by, x * bM, 0])

    return main


FULL = T.GemmWarpPolicy.FullRow


@pytest.mark.usefixtures("few_multiprocessors")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(384, 2), (768, 1), nightly((128, 6)), nightly((300, 3))])
def test_attention(causal, shape):
    """The queries of the next block are copied while those of this one are used."""
    length, heads = shape
    q, k, v = (random(heads, length, 64, dtype="float16") / 4 for _ in range(3))
    scores = q.double() @ k.double().mT * math.log(2)
    if causal:
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
    expected = torch.softmax(scores, dim=-1) @ v.double()
    kernel = compiled(attention(length, heads, causal))
    check(kernel, (q, k, v, torch.empty_like(q)), expected)
    source = kernel.get_kernel_source()
    assert "Q_map" in source
    assert ("? (2 - ((int)blockIdx.x))" in source) == causal


@pytest.mark.parametrize("total", [8, 9, 11, 12, 13, 40, 41, 47, 48])
@pytest.mark.parametrize("multiprocessors", [3, 4, 7])
@pytest.mark.parametrize("is_uneven", [False, True])
def test_each_tile_has_one_turn_of_one_block(total, multiprocessors, is_uneven):
    done = []
    for block in range(multiprocessors):
        at = tirx.const(block, "int32")
        turn = ir.Var("turn", "int32")
        place, turns = _place_and_turns(at, turn, total, multiprocessors, is_uneven=is_uneven)
        for number in range(int(Analyzer().simplify(turns))):
            now = substitute(place, {turn: tirx.const(number, "int32")})
            done.append(int(Analyzer().simplify(now + 0)) + number * multiprocessors)
    assert sorted(done) == list(range(total))


def choice_of_loop(kernel):
    (choice,) = (c for c in kernel.choices if "Pipelined" in str(c))
    return choice


def chosen(program):
    """What became of the loop of a program, why not more, and over how many blocks turns go."""
    kernel = tvmtile.compile(program, target=HOPPER)
    choice = choice_of_loop(kernel)
    turns = re.search(r"turn \* (\d+)", kernel.get_kernel_source())
    return choice.chosen, choice.declined, turns and int(turns[1])


@pytest.mark.parametrize("depth", [4096, 64 * T.dynamic("K")])
def test_a_grid_that_the_call_decides(depth):
    program = matmul(T.dynamic("M"), 4096, depth, block=(128, 128, 64), wish=None)
    assert chosen(program) == ("two roles, persistent blocks", (), 132)


@pytest.mark.parametrize(("block", "blocks"), [((64, 128, 64), 264), ((128, 128, 64), 132)])
def test_two_blocks_stay_on_a_multiprocessor_that_has_room(block, blocks):
    program = matmul(4096, 4096, 512, block=block, threads=128, wish=None)
    assert chosen(program) == ("two roles, persistent blocks", (), blocks)


def asks(blocks):
    return lambda: T.annotate_min_blocks_per_sm(blocks)


@pytest.mark.parametrize(
    ("least", "threads", "block", "wish", "blocks"),
    [
        (2, 128, (64, 128, 64), None, 264),
        (1, 128, (64, 128, 64), None, 132),
        (3, 128, (64, 64, 64), True, 396),
        (2, 256, (128, 64, 64), None, 264),
        (1, 256, (128, 64, 64), None, 132),
        (2, 256, (128, 256, 128), None, 132),  # of which shared memory has room for one
        (1, 512, (256, 128, 64), None, 132),
    ],
)
def test_as_many_blocks_stay_as_the_kernel_asks_for(least, threads, block, wish, blocks):
    program = matmul(
        4096, 4096, 512, block=block, threads=threads, wish=wish, stages=2, hint=asks(least)
    )
    assert chosen(program) == ("two roles, persistent blocks", (), blocks)


@pytest.mark.usefixtures("few_multiprocessors")
@pytest.mark.parametrize("threads", [128, 256, 384])
def test_blocks_that_share_the_registers_of_a_multiprocessor(threads):
    """Those that a block has move to the threads that multiply, and no more."""
    check_product(threads * 2, 512, 96, block=(threads // 2, 64, 32), threads=threads, hint=asks(2))


@pytest.mark.parametrize(("threads", "columns"), [(128, 128), (256, 64)])
def test_instructions_fit_the_registers_that_blocks_begin_with(threads, columns):
    """By those ptxas takes or refuses an instruction (C7602), whatever `setmaxnreg` adds."""
    block = (threads // 2, 128, 64)
    program = matmul(4096, 4096, 512, block=block, threads=threads, stages=2, hint=asks(2))
    kernel = tvmtile.compile(program, target=HOPPER)
    assert f"m64n{columns}k16" in kernel.get_kernel_source()
    assert kernel.resources()[0].spill_stores == 0


@pytest.mark.parametrize(("block", "blocks"), [((128, 64, 64), 264), ((128, 256, 64), 132)])
def test_blocks_whose_registers_stay(block, blocks):
    program = matmul(
        8192, 8192, 256, block=block, threads=256, stages=2, wish=None, hint=T.no_set_max_nreg
    )
    fixed = ("registers for consumers", "the kernel asks that none move")
    assert chosen(program) == ("two roles, persistent blocks", (fixed,), blocks)


def test_a_persistent_kernel_says_so():
    assert chosen(matmul(8192, 8192, 256))[:2] == ("two roles, persistent blocks", ())


# What stays as it is -----------------------------------------------------------------------------


def why_not(program):
    """Why the blocks of a program do not stay."""
    choice = choice_of_loop(tvmtile.compile(program, target=HOPPER))
    assert choice.chosen == "two roles"
    ((name, reason),) = choice.declined
    assert name == "persistent blocks"
    return reason


def test_a_grid_that_runs_at_once():
    assert why_not(matmul(256, 256, 256)) == "8 blocks run at once"


def test_two_products_of_a_grid_that_is_not_known():
    rows = T.dynamic("rows")

    @T.prim_func
    def main(
        Q: T.Tensor((rows, 64), "float16"),
        K: T.Tensor((256, 64), "float16"),
        C: T.Tensor((rows, 64), "float32"),
    ):
        with T.Kernel(T.ceildiv(rows, 128), threads=256) as bx:
            T.annotate_warp_specialize()
            q, k = T.alloc_shared((128, 64), "float16"), T.alloc_shared((64, 64), "float16")
            s = T.alloc_fragment((128, 64), "float32")
            p = T.alloc_fragment((128, 64), "float16")
            c = T.alloc_fragment((128, 64), "float32")
            T.copy(Q[bx * 128, 0], q)
            T.clear(c)
            for i in T.Pipelined(4, num_stages=2):
                T.copy(K[i * 64, 0], k)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                T.copy(s, p)
                T.gemm(p, k, c)
            T.copy(c, C[bx * 128, 0])

    choice = choice_of_loop(tvmtile.compile(main, target=HOPPER))
    reason = dict(choice.declined)["persistent blocks"]
    assert reason == "its loop does more than one product; T.annotate_persistent() asks"


def test_a_kernel_that_does_not_want_to():
    assert why_not(matmul(8192, 8192, 256, wish=False)) == "the kernel asks for a block each"


def test_blocks_that_may_share_a_multiprocessor():
    program = matmul(8192, 8192, 256, threads=128, block=(64, 64, 64), wish=None)
    reason = "3 blocks may run at once on a multiprocessor; T.annotate_persistent() asks"
    assert why_not(program) == reason


def test_more_blocks_than_were_measured_stay_where_that_is_asked_for():
    program = matmul(8192, 8192, 256, threads=128, block=(64, 64, 64), wish=None, hint=asks(3))
    reason = "3 blocks may run at once on a multiprocessor; T.annotate_persistent() asks"
    assert why_not(program) == reason


def test_targets_without_roles_ignore_it():
    a, b = random(128, 64), random(64, 128)
    c = torch.empty(128, 128)
    program = matmul(128, 128, 64, dtype="float32", block=(64, 64, 32), threads=128)
    tvmtile.compile(program, target="llvm")(a, b, c)
    assert_close(c, a.double() @ b.double())


# The kernel itself -------------------------------------------------------------------------------


def test_the_structure():
    @S.prim_func(s_tir=True, private=True)
    def before(A: S.Buffer((5, 8), "float32")):
        for bx in S.thread_binding(8, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for by in S.thread_binding(5, thread="blockIdx.y"):
                for tx in S.thread_binding(256, thread="threadIdx.x"):
                    if tx == 0:
                        A[by, bx] = S.float32(1)

    @S.prim_func(s_tir=True, private=True)
    def after(A: S.Buffer((5, 8), "float32")):
        for block in S.thread_binding(7, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in S.thread_binding(256, thread="threadIdx.x"):
                for turn in S.serial(
                    (39 - block) // 7 + 1, annotations={"disable_unroll": 1, "tvmtile.blocks": True}
                ):
                    tile: S.let = (block + turn * 7) % 40
                    bx: S.let = tile % 8 % 8
                    by: S.let = tile // 8 % 5
                    if tx == 0:
                        A[by, bx] = S.float32(1)

    ir.assert_structural_equal(persistent(before.body, 7), after.body, map_free_vars=True)


def test_the_structure_where_the_call_decides_the_extents():
    """Indices are divisions by constants, and no remainders by extents."""
    rows = T.dynamic("rows")

    @T.prim_func
    def program(A: T.Tensor((rows, 8), "float32")):
        with T.Kernel(8, rows, threads=32) as (bx, by):
            A[by, bx] = 1.0

    kernel = persistent(kernel_of(program), 7)
    values = [bind.value for bind in nodes_in(kernel, tirx.Bind)]
    assert [str(value) for value in values] == [
        "block + turn * 7",
        "tile % 8",
        "T.max(T.min(tile // 8, rows - 1), 0)",
    ]


def kernel_of(program):
    """The kernel of a program as WarpSpecialize is given it."""
    mod = ir.IRModule({"main": program.with_attr("global_symbol", "main")})
    for step in lowering_passes(parse(HOPPER)):
        if step.info.name == "tvmtile.WarpSpecialize":
            break
        mod = step(mod)
    return mod["main"].body


def test_blocks_that_wait_for_each_other():
    @T.prim_func
    def program(A: T.Tensor((64,), "float32")):
        with T.Kernel(64, threads=128) as bx:
            T.sync_grid()
            A[bx] = 1.0

    with pytest.raises(Unsuitable, match="blocks wait for each other"):
        persistent(kernel_of(program), 2)


def test_blocks_in_clusters():
    @T.prim_func
    def program(A: T.Tensor((64,), "float32")):
        with T.Kernel(64, threads=128, cluster_dims=(2, 1, 1)) as bx:
            A[bx] = 1.0

    with pytest.raises(Unsuitable, match="blocks run in clusters"):
        persistent(kernel_of(program), 2)


def test_functions_of_other_sources():
    @T.prim_func
    def program(A: T.Tensor((64,), "float32")):
        with T.Kernel(64, threads=128) as bx:
            A[bx] = T.call_extern("float32", "of_block", bx)

    with pytest.raises(Unsuitable, match="functions of other sources may ask"):
        persistent(kernel_of(program), 2)


def test_blocks_that_may_differ_in_their_work():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(64, threads=128) as bx:
            a = T.alloc_shared((64,), "float32")
            for k in T.Pipelined(bx + 1, num_stages=2):
                T.copy(A[k, 0], a)
                T.copy(a, C[k, 0])

    with pytest.raises(Unsuitable, match="blocks may differ in what they do"):
        persistent(kernel_of(program), 2)
