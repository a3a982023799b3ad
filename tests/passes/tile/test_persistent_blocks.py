"""Blocks that stay: a kernel in as many blocks as run at once computes what all of its blocks did."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa
from tvm import ir, tirx
from tvm.sym import Analyzer

import tvmtile
import tvmtile.language as T
from tests.fuzz.run import compiled, run
from tests.programs import catalogue
from tvmtile._tvm import nodes_in
from tvmtile.ir.rewriting import substitute
from tvmtile.ops.programs import attention
from tvmtile.passes.tile.schedule.body import Obstacle
from tvmtile.passes.tile.schedule.persistence import _place_and_turns, persistent
from tvmtile.pipeline import lowering_passes
from tvmtile.target import capabilities, parse

HOPPER = {"kind": "cuda", "arch": "sm_90a"}
PROGRAMS = [name for name, entry in catalogue().items() if "blocks that stay" in entry.tags]


@pytest.fixture
def few_multiprocessors(monkeypatch):
    """A GPU that runs three blocks at once, so that small grids take several turns."""
    monkeypatch.setitem(capabilities._MULTIPROCESSORS, 90, 3)


@pytest.mark.full
@pytest.mark.usefixtures("few_multiprocessors")
@pytest.mark.parametrize("name", PROGRAMS)
def test_blocks_that_take_turns_compute_the_same(name, tier, tmp_path):
    """Copies arrive at several times."""
    for case in catalogue()[name].cases("sm_90a", tier):
        source = compiled(case, "sm_90a", tmp_path).get_kernel_source()
        if "steps=0" not in case.name:  # whose product has no step
            assert re.search(r"for \(int turn = ", source), case.name
        assert ("? (2 - ((int)blockIdx.x))" in source) == ("causal=True" in case.name)
        outcome = run(case, "sm_90a", tmp_path, limit=60)
        assert outcome.kind == "passed", f"{case.name}: {outcome.detail}\n\n{case.source}"


@pytest.mark.parametrize("total", [2, 8, 9, 11, 12, 13, 40, 41, 47, 48])
@pytest.mark.parametrize("multiprocessors", [3, 4, 7])
@pytest.mark.parametrize("is_uneven", [False, True])
@pytest.mark.parametrize("is_known", [False, True])
def test_each_tile_has_one_turn_of_one_block(total, multiprocessors, is_uneven, is_known):
    block, turn, count = (ir.Var(name, "int32") for name in ("block", "turn", "count"))
    grid = tirx.const(total, "int32") if is_known else count
    place, turns = _place_and_turns(block, turn, grid, multiprocessors, is_uneven)
    done = []
    for at in range(min(multiprocessors, total)):
        values = {block: tirx.const(at, "int32"), count: tirx.const(total, "int32")}
        for number in range(_value(turns, values)):
            now = _value(place, {**values, turn: tirx.const(number, "int32")})
            done.append(now + number * multiprocessors)
    assert sorted(done) == list(range(total))


def _value(expression, values):
    return int(Analyzer().simplify(substitute(expression, values)))


@pytest.mark.full(but=1)
@pytest.mark.usefixtures("few_multiprocessors")
@pytest.mark.parametrize("causal", [True, False])
def test_blocks_take_turns_in_batches_of_any_number(causal):
    cut = {"block_M": 64, "block_N": 64, "stages": 2, "threads": 128, "persistent": 1}
    program = attention(
        T.dynamic("batch"), 3, 256, 64, "float16", target=HOPPER, causal=causal, keys=256,
        configuration=cut,
    )  # fmt: skip
    kernel = tvmtile.compile(program, target=HOPPER, execution_backend="emulator")
    source = kernel.get_kernel_source()
    assert re.search(r"for \(int turn = ", source)
    assert ("turn & 1" in source or "turn % 2" in source) == causal
    for batch in (1, 2):
        q, k, v = (torch.randn(batch, 3, 256, 64, dtype=torch.float16) for _ in range(3))
        result = torch.empty_like(q)
        kernel(q, k, v, result)
        expected = sdpa(q.double(), k.double(), v.double(), is_causal=causal)
        torch.testing.assert_close(result.double(), expected, rtol=0, atol=2e-3)


# When blocks stay ------------------------------------------------------------------------------


def matmul(
    M, N, K, *, block=(128, 64, 32), stages=3, threads=256, dtype="float16", wish=True, hint=None
):
    bM, bN, bK = block

    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, bN), T.ceildiv(M, bM), threads=threads) as (bx, by):
            if wish is not None:
                T.annotate_persistent(wish)
            if hint is not None:
                hint()
            a = T.alloc_shared((bM, bK), dtype)
            b = T.alloc_shared((bK, bN), dtype)
            c = T.alloc_fragment((bM, bN), "float32")
            T.use_swizzle(2, order="row")
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, bK), num_stages=stages):
                T.copy(A[by * bM, k * bK], a)
                T.copy(B[k * bK, bx * bN], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * bM, bx * bN])

    return main


def asks(blocks):
    return lambda: T.annotate_min_blocks_per_sm(blocks)


def choice_of_loop(kernel):
    (choice,) = (c for c in kernel.choices if "Pipelined" in str(c))
    return choice


FIXED = ("registers for consumers", "the kernel asks that none move")


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("extents", "block", "threads", "options", "blocks"),
    [
        ((T.dynamic("M"), 4096, 4096), (128, 128, 64), 256, {"wish": None}, 132),
        ((T.dynamic("M"), 4096, 64 * T.dynamic("K")), (128, 128, 64), 256, {"wish": None}, 132),
        ((8192, 8192, 256), (128, 64, 32), 256, {}, 132),
        # As many as a multiprocessor has room for, or as the kernel asks for.
        ((4096, 4096, 512), (64, 128, 64), 128, {"wish": None}, 264),
        ((4096, 4096, 512), (128, 128, 64), 128, {"wish": None}, 132),
        ((4096, 4096, 512), (64, 128, 64), 128, {"wish": None, "hint": asks(2)}, 264),
        ((4096, 4096, 512), (64, 128, 64), 128, {"wish": None, "hint": asks(1)}, 132),
        ((4096, 4096, 512), (64, 64, 64), 128, {"hint": asks(3)}, 396),
        ((4096, 4096, 512), (128, 64, 64), 256, {"wish": None, "hint": asks(2)}, 264),
        ((4096, 4096, 512), (128, 64, 64), 256, {"wish": None, "hint": asks(1)}, 132),
        ((4096, 4096, 512), (128, 256, 128), 256, {"wish": None, "hint": asks(2)}, 132),
        ((4096, 4096, 512), (256, 128, 64), 512, {"wish": None, "hint": asks(1)}, 132),
        ((8192, 8192, 256), (128, 64, 64), 256, {"wish": None, "hint": T.no_set_max_nreg}, 264),
        ((8192, 8192, 256), (128, 256, 64), 256, {"wish": None, "hint": T.no_set_max_nreg}, 132),
    ],
)  # fmt: skip
def test_blocks_stay_as_many_as_run_at_once(extents, block, threads, options, blocks):
    kernel = tvmtile.compile(
        matmul(*extents, block=block, threads=threads, stages=2, **options), target=HOPPER
    )
    choice = choice_of_loop(kernel)
    declined = (FIXED,) if options.get("hint") is T.no_set_max_nreg else ()
    assert (choice.chosen, choice.declined) == ("two roles, persistent blocks", declined)
    assert re.search(r"turn \* (\d+)", kernel.get_kernel_source())[1] == str(blocks)


@pytest.mark.full
@pytest.mark.parametrize(("threads", "columns"), [(128, 128), (256, 64)])
def test_instructions_fit_the_registers_that_blocks_begin_with(threads, columns):
    """By those ptxas takes or refuses an instruction (C7602), whatever `setmaxnreg` adds."""
    block = (threads // 2, 128, 64)
    program = matmul(4096, 4096, 512, block=block, threads=threads, stages=2, hint=asks(2))
    kernel = tvmtile.compile(program, target=HOPPER)
    assert f"m64n{columns}k16" in kernel.get_kernel_source()
    assert kernel.resources()[0].spill_stores == 0


MANY = "3 blocks may run at once on a multiprocessor; T.annotate_persistent() asks"
SMALL = {"threads": 128, "block": (64, 64, 64), "wish": None}


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (matmul(256, 256, 256), "8 blocks run at once"),
        (matmul(8192, 8192, 256, wish=False), "the kernel asks for a block each"),
        (matmul(8192, 8192, 256, **SMALL), MANY),
        (matmul(8192, 8192, 256, **SMALL, hint=asks(3)), MANY),
    ],
)
def test_blocks_do_not_stay_for_a_reason(program, reason):
    choice = choice_of_loop(tvmtile.compile(program, target=HOPPER))
    assert (choice.chosen, choice.declined) == ("two roles", (("persistent blocks", reason),))


def test_blocks_of_two_products_do_not_stay_unless_asked():
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


# The kernel itself -------------------------------------------------------------------------------


def test_indices_of_extents_of_the_call_are_divided_by_constants():
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
    """The kernel of a program as SchedulePipelines is given it."""
    mod = ir.IRModule({"main": program.with_attr("global_symbol", "main")})
    for step in lowering_passes(parse(HOPPER)):
        if step.info.name == "tvmtile.SchedulePipelines":
            break
        mod = step(mod)
    return mod["main"].body


@T.prim_func
def waits(A: T.Tensor((64,), "float32")):
    with T.Kernel(64, threads=128) as bx:
        T.sync_grid()
        A[bx] = 1.0


@T.prim_func
def in_clusters(A: T.Tensor((64,), "float32")):
    with T.Kernel(64, threads=128, cluster_dims=(2, 1, 1)) as bx:
        A[bx] = 1.0


@T.prim_func
def calls(A: T.Tensor((64,), "float32")):
    with T.Kernel(64, threads=128) as bx:
        A[bx] = T.call_extern("float32", "of_block", bx)


@T.prim_func
def differs(A: T.Tensor((64, 64), "float32"), C: T.Tensor((64, 64), "float32")):
    with T.Kernel(64, threads=128) as bx:
        a = T.alloc_shared((64,), "float32")
        for k in T.Pipelined(bx + 1, num_stages=2):
            T.copy(A[k, 0], a)
            T.copy(a, C[k, 0])


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (waits, "blocks wait for each other"),
        (in_clusters, "blocks run in clusters"),
        (calls, "functions of other sources may ask"),
        (differs, "blocks may differ in what they do"),
    ],
)
def test_blocks_do_not_stay_where_it_matters_who_they_are(program, reason):
    with pytest.raises(Obstacle, match=reason):
        persistent(kernel_of(program), 2)
