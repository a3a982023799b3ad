"""wgmma: what it computes, where it is chosen, what it declines, and what ptxas makes of it."""

import itertools
import re

import pytest
import torch
from tvm import ir, tirx
from tvm.target import Target
from tvm_ffi import structural_walk

import tvmtile
import tvmtile.language as T
from tests.metal.programs import assert_close, flash_attention, gemm, operands, random
from tvmtile import layout as layouts
from tvmtile import pipeline
from tvmtile.errors import CudaEmulationError, NoLowering
from tvmtile.instructions.mma import lane_map
from tvmtile.instructions.wgmma import FAMILIES, ROWS, WARPGROUP, sum_map
from tvmtile.ir.scopes import is_shared
from tvmtile.layout.shared import panel_of
from tvmtile.passes import InjectPipeline, PlanPipeline, SwizzleShared

HOPPER = {"kind": "cuda", "arch": "sm_90a"}
BOTH = list(itertools.product((False, True), repeat=2))
Square, FullRow, FullCol = (
    T.GemmWarpPolicy.Square,
    T.GemmWarpPolicy.FullRow,
    T.GemmWarpPolicy.FullCol,
)


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
    assert [integers.largest(n).n for n in (8, 40, 48, 72, 256)] == [8, 8, 48, 24, 256]


# What it computes --------------------------------------------------------------------------------


def check(program, tensors, expected, precision=""):
    """Run a program with `wgmma` in the emulator, and compare."""
    kernel = tvmtile.compile(program, target=HOPPER, execution_backend="emulator")
    assert "wgmma.mma_async" in kernel.get_kernel_source()
    assert "mma.sync" not in kernel.get_kernel_source()
    kernel(*tensors)
    assert_close(tensors[-1], expected, precision)


# Where it is chosen ------------------------------------------------------------------------------


def product(
    *,
    shape=(64, 64, 64),
    threads=128,
    annotate=None,
    view=False,
    impl=None,
    sums="float32",
    **kinds,
):
    m, n, k = shape
    dtype = kinds.get("dtype", "float16")
    transpose_b = kinds.get("transpose_b", False)
    b_shape = (n, k) if transpose_b else (k, n)

    @T.prim_func
    def main(A: T.Tensor((m, k), dtype), B: T.Tensor(b_shape, dtype), C: T.Tensor((m, n), sums)):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((m, k), dtype)
            b = T.alloc_shared(b_shape, dtype)
            c = T.alloc_fragment((m, n), sums)
            if annotate is not None:
                T.annotate_layout({a: annotate(a)})
            T.copy(A, a)
            T.copy(B, b)
            if view:
                flat = T.reshape(a, (m * k,))
                flat[0] = flat[0]
            T.gemm(a, b, c, transpose_B=transpose_b, clear_accum=True, impl=impl)
            T.copy(c, C)

    return main


def choice(program, target=HOPPER):
    """What implements the product, and why nothing better does."""
    choices = tvmtile.compile(program, target=target).choices
    (found,) = (each for each in choices if each.operator == "gemm")
    return found.chosen, dict(found.declined)


@pytest.mark.full
def test_hopper_takes_wgmma():
    assert choice(product()) == ("wgmma", {})
    assert choice(product(annotate=layouts.make_swizzled_layout)) == ("wgmma", {})
    assert choice(product(impl="mma"))[0] == "mma"


def by_function(width, *, line=None):
    """The swizzle of 16-bit elements as a function, which says nothing of where it comes from.

    The number of a line of 128 bytes is that of a piece of 16 bytes to be exchanged; another `line` is
    a swizzle that the hardware does not know.
    """
    pieces, panel = width // 16, width // 2

    def layout(tile):
        rows, columns = (int(extent) for extent in tile.ty.shape)

        def place(i, j):
            plain = j // panel * (rows * panel) + i * panel + j % panel
            return plain ^ ((plain // (line or 64)) % pieces * 8)

        return layouts.Layout((rows, columns), place)

    return layout


def by_numbers(make):
    return lambda tile: make(*(int(extent) for extent in tile.ty.shape), 16)


SWIZZLES = {
    "make full": layouts.make_full_bank_swizzled_layout,
    "make half": layouts.make_half_bank_swizzled_layout,
    "make quarter": layouts.make_quarter_bank_swizzled_layout,
    "numbers full": by_numbers(layouts.make_full_bank_swizzled_layout),
    "numbers quarter": by_numbers(layouts.make_quarter_bank_swizzled_layout),
    "function full": by_function(128),
    "function half": by_function(64),
}


@pytest.mark.full
@pytest.mark.parametrize("name", SWIZZLES)
def test_swizzles_by_hand_that_the_hardware_knows(name):
    """Whatever they were made by; tiles have copies, which tensor maps fill where they can."""
    a, b = SWIZZLES[name], SWIZZLES[name]
    for transposes, roles in zip(BOTH, (None, False, None, False), strict=True):
        program = annotated(a, b, transposes, roles=roles)
        assert choice(program)[0] == "wgmma"
        x, y, expected = operands(64, 128, 192, "float16", transposes)
        check(program, (x, y, torch.empty(64, 128)), expected)


@pytest.mark.full
def test_a_panel_is_no_wider_than_where_instructions_begin():
    """Each warpgroup has 96 columns: the second begins in the middle of a panel of 128 bytes."""

    def b_in(layout):
        return annotated(layout, layout, (False, False), n=192, threads=256, policy=FullCol)

    assert choice(b_in(layouts.make_half_bank_swizzled_layout))[0] == "wgmma"
    chosen, declined = choice(b_in(layouts.make_full_bank_swizzled_layout))
    assert (chosen, declined["wgmma"]) == ("mma", "the layout of b is fixed by hand")


def gathered(count, shift=0, *, groups=False):
    """A product of rows that threads copy by pieces of `count` elements, which begin at `shift`."""
    steps, pieces, first = 3, 64 // count, 128 if groups else 0

    @T.macro
    def copy_rows(A, Rows, a, k, tx):
        for p in T.serial(64 * pieces // 128):
            row, piece = (p * 128 + tx - first) // pieces, (tx - first) % pieces
            T.ptx_cp_async(
                T.access_ptr(a[k % 2, row, piece * count + shift], "w", count),
                T.access_ptr(A[Rows[row], k * 64 + piece * count], "r", count),
                count,
            )

    @T.prim_func
    def main(
        A: T.Tensor((256, 200), "float16"),
        Rows: T.Tensor((64,), "int32"),
        B: T.Tensor((192, 128), "float16"),
        C: T.Tensor((64, 128), "float32"),
    ):
        with T.Kernel(1, threads=first + 128):
            a = T.alloc_shared((2, 64, 128 if shift else 64), "float16")
            b = T.alloc_shared((64, 128), "float16")
            c = T.alloc_fragment((64, 128), "float32")
            full, empty = T.alloc_barrier([128] * 2), T.alloc_barrier([128] * 2)
            tx = T.get_thread_binding()
            if not groups:
                T.clear(c)
                for k in T.serial(steps):
                    copy_rows(A, Rows, a, k, tx)
                    T.ptx_commit_group()
                    T.copy(B[k * 64, 0], b)
                    T.ptx_wait_group(0)
                    T.sync_threads()
                    T.gemm(a[k % 2, 0:64, 0:64], b, c)
                T.copy(c, C)
            elif tx >= 128:
                for k in T.serial(steps):
                    T.barrier_wait(empty[k % 2], k // 2 % 2 ^ 1)
                    copy_rows(A, Rows, a, k, tx)
                    T.cp_async_barrier_noinc(full[k % 2])
            else:
                T.clear(c)
                for k in T.serial(steps):
                    T.copy(B[k * 64, 0], b)
                    T.barrier_wait(full[k % 2], k // 2 % 2)
                    T.gemm(a[k % 2, 0:64, 0:64], b, c)
                    T.barrier_arrive(empty[k % 2])
                T.copy(c, C)

    return main


@pytest.mark.full
@pytest.mark.parametrize(("count", "groups"), [(8, False), (8, True), (4, False), (2, True)])
def test_tiles_that_threads_copy_by_pieces_are_swizzled(count, groups):
    """A piece of 16 bytes, or a part of one, lies in one place: its address is no view of the tile."""
    program = gathered(count, groups=groups)
    assert choice(program)[0] == "wgmma"
    a, b = random(256, 200, dtype="float16"), random(192, 128, dtype="float16")
    rows = torch.randint(0, 256, (64,), dtype=torch.int32)
    expected = a.double()[rows.long(), :192] @ b.double()
    kernel = tvmtile.compile(program, target=HOPPER, execution_backend="emulator")
    for seed in range(4):
        kernel.adapter.seed = seed
        c = torch.empty(64, 128)
        kernel(a, rows, b, c)
        assert_close(c, expected)


@pytest.mark.full
def test_pieces_that_begin_anywhere_keep_rows_plain():
    chosen, declined = choice(gathered(8, 4))
    assert chosen == "mma"
    assert declined["wgmma"] == "a is seen through a view, or its address is taken"


def annotated(of_a, of_b, transposes, *, roles=None, n=128, threads=128, policy=Square):
    """A product whose tiles have layouts by hand."""
    transpose_a, transpose_b = transposes
    a_shape, b_shape = (64, 64), (n, 64) if transpose_b else (64, n)

    @T.prim_func
    def main(
        A: T.Tensor((192, 64) if transpose_a else (64, 192), "float16"),
        B: T.Tensor((n, 192) if transpose_b else (192, n), "float16"),
        C: T.Tensor((64, n), "float32"),
    ):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared(a_shape, "float16")
            b = T.alloc_shared(b_shape, "float16")
            c = T.alloc_fragment((64, n), "float32")
            T.annotate_layout({a: of_a(a), b: of_b(b)})
            if roles is not None:
                T.annotate_warp_specialize(roles)
            T.clear(c)
            for k in T.Pipelined(3, num_stages=2):
                T.copy(A[k * 64, 0] if transpose_a else A[0, k * 64], a)
                T.copy(B[0, k * 64] if transpose_b else B[k * 64, 0], b)
                T.gemm(a, b, c, transpose_A=transpose_a, transpose_B=transpose_b, policy=policy)
            T.copy(c, C)

    return main


@pytest.mark.full
@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (product(threads=96), "96 threads are not whole warpgroups of 128"),
        (product(shape=(32, 64, 64)), "an accumulator of [32, 64] does not consist of 64x8"),
        (product(shape=(64, 64, 64), threads=384), "3 warpgroups (384 threads) can't share"),
        (product(sums="float16"), "wgmma has float32 sums, c[0:64, 0:64] float16 does not hold"),
        (product(dtype="float32"), "rows of b[0:64, 0:64] float32 do not run along K, as wgmma"),
        (
            product(dtype="int8", sums="int32", shape=(64, 64, 48), transpose_b=True),
            "K = 48 is not a multiple of 32",
        ),
        (
            product(shape=(64, 24, 64)),
            "instructions would not begin at multiples of 32 bytes in rows of b",
        ),
        (product(view=True), "a is seen through a view, or its address is taken"),
        (product(annotate=layouts.make_linear_layout), "the layout of a is fixed by hand"),
        (product(annotate=by_function(128, line=128)), "the layout of a is fixed by hand"),
        (product(annotate=by_function(64, line=32)), "the layout of a is fixed by hand"),
    ],
)
def test_what_does_not_fit_is_declined_with_a_reason(program, reason):
    chosen, declined = choice(program)
    assert chosen == "mma"
    assert declined["wgmma"].startswith(reason)


@pytest.mark.full(but=1)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100a"])
def test_other_architectures_have_no_wgmma(arch):
    target = {"kind": "cuda", "arch": arch}
    assert choice(product(), target) == ("mma", {})  # nothing in the kernel could change that
    with pytest.raises(NoLowering, match=f"wgmma: CUDA {arch} has no wgmma"):
        tvmtile.compile(product(impl="wgmma"), target=target)


def test_who_asks_for_it_is_told_why_it_does_not_fit():
    with pytest.raises(NoLowering, match=r"wgmma: a is seen through a view"):
        tvmtile.compile(product(view=True, impl="wgmma"), target=HOPPER)


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


def tiles(program):
    """The shared tiles by name, as SwizzleShared leaves them."""
    found = {}

    def note(node):
        if is_shared(node.buffer):
            found[node.buffer.name] = node.buffer

    found_in(program, SwizzleShared, tirx.AllocBuffer, note)
    return found


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
    found = tiles(program)
    assert tuple(panel_of(found[name].ty.layout, "float16") for name in "ab") == panels
    assert tuple(int(found[name].ty.data_alignment) for name in "ab") == tuple(
        8 * panel for panel in panels
    )


# When it is waited for ---------------------------------------------------------------------------

WAIT = re.compile(r"tvm_builtin_ptx_wgmma_wait_group_wait_group_sync_aligned_(\d)\(\);")


def waits(program):
    source = tvmtile.compile(program, target=HOPPER).get_kernel_source()
    body = source[source.index("main_kernel(") :]
    return [int(each[1]) for each in WAIT.finditer(body)]


@pytest.mark.parametrize(("stages", "ahead"), [(2, 1), (3, 1), (4, 2)])
def test_copies_run_less_far_ahead_of_a_product_in_flight(stages, ahead):
    """It holds what it reads for an iteration more, of as many buffer copies."""
    program = gemm(256, 256, 512, block=(128, 128, 64), threads=256, stages=stages, roles=False)
    plans, copies = [], []
    found_in(program, PlanPipeline, tirx.For, lambda loop: plans.append(loop.annotations))
    (plan,) = (each for each in plans if "tvmtile.stage" in each)
    assert [int(stage) for stage in plan["tvmtile.stage"]] == [0, 0, ahead]
    flying = [int(count) for count in plan.get("tvmtile.in_flight", ())]
    assert flying == ([] if stages == 2 else [0, 0, 1])
    found_in(program, InjectPipeline, tirx.AllocBuffer, lambda node: copies.append(node.buffer))
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
"""What ptxas says where it waits for a product earlier than the kernel does."""


@pytest.mark.full
@pytest.mark.parametrize(
    "program",
    [
        gemm(1024, 1024, 1024, block=(128, 128, 64), threads=256, stages=3),
        gemm(
            1024, 1024, 1024, block=(128, 256, 64), threads=256, stages=4, transposes=(False, True)
        ),
        gemm(
            1000, 1000, 1000, block=(128, 128, 64), threads=256, stages=3, epilogue=lambda x: x * 2
        ),
        flash_attention(
            1,
            4,
            1024,
            128,
            True,
            block_M=128,
            block_N=64,
            threads=256,
            stages=2,
            policy=FullRow,
            dtype="float16",
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
