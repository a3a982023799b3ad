"""How many groups a wait leaves: those after the batch that it names, on every path."""

import pytest
import tvm
from tvm import ir, tirx
from tvm.ir import assert_structural_equal
from tvm.script import tirx as T
from tvm_ffi import structural_walk

from tvmtile.ir.asynchronous import waited
from tvmtile.passes import LowerAsyncWork


def left_by_waits(program):
    """The numbers of the `wait_group` instructions, in their order."""
    lowered = LowerAsyncWork(ir.IRModule({"main": program}))["main"]
    assert "async_" not in lowered.script().replace("cp_async", "")
    found = []
    structural_walk(lowered.body, (tirx.Evaluate, lambda s: found.append(waited(s))), order="pre")
    return [wait.behind for wait in found if wait is not None]


@T.prim_func
def two_tokens(A: T.Buffer((8,), "float32")):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        T.tile.async_signal("cp.async/1")
        T.tile.async_signal("cp.async/2")
        T.tile.async_signal("cp.async/2")
        T.tile.async_wait("cp.async/1", 0)
        A[0] = T.float32(0)
        T.tile.async_wait("cp.async/2", 1)
        A[1] = T.float32(0)
        T.tile.async_wait("cp.async", 2)


@T.prim_func
def neighbours(A: T.Buffer((8,), "float32")):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        T.tile.async_signal("cp.async/1")
        T.tile.async_signal("cp.async/2")
        T.tile.async_wait("cp.async/1", 0)
        T.tile.async_wait("cp.async/2", 0)
        A[0] = T.float32(0)


@T.prim_func
def a_branch(A: T.Buffer((8,), "float32"), n: T.int32):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        T.tile.async_signal("cp.async/1")
        if n > 0:
            T.tile.async_signal("cp.async/2")
        T.tile.async_wait("cp.async/1", 0)
        A[0] = T.float32(0)


@T.prim_func
def a_loop(A: T.Buffer((8,), "float32"), n: T.int32):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        T.tile.async_signal("cp.async/1")
        T.tile.async_signal("cp.async/1")
        for k in range(n):
            T.tile.async_wait("cp.async/1", 1)
            A[k] = T.float32(0)
            T.tile.async_signal("cp.async/1")
            T.tile.async_signal("cp.async/2")


@T.prim_func
def a_loop_that_skips(A: T.Buffer((8,), "float32"), n: T.int32):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        T.tile.async_signal("cp.async/1")
        T.tile.async_signal("cp.async/2")
        T.tile.async_signal("cp.async/2")
        for k in range(8):
            T.tile.async_wait("cp.async/1", 0)
            A[k] = T.float32(0)
            if A[k] > T.float32(n):
                T.tile.async_signal("cp.async/1")
                T.continue_loop()
            T.tile.async_signal("cp.async/2")


@T.prim_func
def nothing_signalled(A: T.Buffer((8,), "float32")):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        T.tile.async_wait("cp.async/1", 0)
        A[0] = T.float32(0)


@pytest.mark.parametrize(
    ("program", "left"),
    [
        (two_tokens, [2, 1, 2]),
        (neighbours, [0]),  # the strictest of both
        (a_branch, [0]),  # where the branch is not taken, nothing is committed after the batch
        (a_loop, [1]),  # at first; the next ones might leave two
        (a_loop_that_skips, [0]),  # after an iteration that ended early
        (nothing_signalled, [7]),  # the most that the instruction takes
    ],
)
def test_a_wait_leaves_what_was_committed_after_its_batch(program, left):
    assert left_by_waits(program) == left


# Products ----------------------------------------------------------------------------------------

PANELS = T.ComposeLayout(3, 2, 3, T.TileLayout(T.S[(2, 64, 1, 32) : (2048, 32, 2048, 1)]))
COLUMNS = T.ComposeLayout(3, 2, 3, T.TileLayout(T.S[(8, 1, 32) : (32, 256, 1)]))
SIGNS_AND_ORDERS = (1, 1, 0, 0)
MULTIPLY = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"


@T.prim_func
def a_product(A: T.Buffer((64, 32), "float16"), C: T.Buffer((128,), "float32")):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            a = T.alloc_buffer((2, 64, 32), "float16", scope="shared", layout=PANELS)
            b = T.alloc_buffer((8, 32), "float16", scope="shared", layout=COLUMNS)
            c = T.alloc_buffer((4,), "float32", scope="local")
            a[0, tx % 64, 0] = A[tx % 64, 0]
            for k in range(2):
                T.tile.async_multiply(
                    "wgmma/1",
                    c[0],
                    T.address_of(a[k, 0, 0]),
                    T.address_of(b[0, 0]),
                    m=64,
                    n=8,
                    k=32,
                    columns=8,
                    b_transposed=True,
                    clear=True,
                )
                T.tile.async_signal("wgmma/1")
                T.tile.async_wait("wgmma/1", 1)
            T.tile.async_wait("wgmma/1", 0)
            C[tx] = c[0]


@T.prim_func
def its_instructions(A: T.Buffer((64, 32), "float16"), C: T.Buffer((128,), "float32")):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            a = T.alloc_buffer((2, 64, 32), "float16", scope="shared", layout=PANELS)
            b = T.alloc_buffer((8, 32), "float16", scope="shared", layout=COLUMNS)
            c = T.alloc_buffer((4,), "float32", scope="local")
            a[0, tx % 64, 0] = A[tx % 64, 0]
            for k in range(2):
                a_at = T.alloc_buffer((1,), "uint64", scope="local")
                T.cuda.wgmma.encode_matrix_descriptor(
                    T.address_of(a_at[0]), T.address_of(a[0, 0, 0]), 1, 32, 2
                )
                b_at = T.alloc_buffer((1,), "uint64", scope="local")
                T.cuda.wgmma.encode_matrix_descriptor(
                    T.address_of(b_at[0]), T.address_of(b[0, 0]), 1, 32, 2
                )
                T.ptx["fence.proxy.async.shared::cta"]()  # a thread has written a
                T.ptx["wgmma.fence.sync.aligned"]()
                T.ptx[MULTIPLY](
                    c[0],
                    c[1],
                    c[2],
                    c[3],
                    a_at[0] + T.Cast("uint64", k * 256),
                    b_at[0] + T.Cast("uint64", 0),
                    T.ptx.pred(T.int32(0)),
                    *SIGNS_AND_ORDERS,
                )
                T.ptx[MULTIPLY](
                    c[0],
                    c[1],
                    c[2],
                    c[3],
                    a_at[0] + T.Cast("uint64", k * 256) + T.uint64(2),
                    b_at[0] + T.Cast("uint64", 2),
                    T.ptx.pred(T.int32(1)),
                    *SIGNS_AND_ORDERS,
                )
                T.ptx["wgmma.commit_group.sync.aligned"]()
                T.ptx["wgmma.wait_group.sync.aligned"](1)
            T.ptx["wgmma.wait_group.sync.aligned"](0)
            C[tx] = c[0]


def test_a_product_becomes_instructions_and_descriptors():
    lowered = LowerAsyncWork(ir.IRModule({"main": a_product}))
    assert_structural_equal(
        lowered["main"], its_instructions.with_attr("global_symbol", "a_product")
    )


SHARES = """
@T.prim_func
def main(C: T.Buffer((256,), "float32")):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={{"tvmtile.kernel": True}}):
        for tx in T.thread_binding({threads}, thread="threadIdx.x"):
            a = T.alloc_buffer((2, 64, 32), "float16", scope="shared", layout=PANELS)
            b = T.alloc_buffer((8, 32), "float16", scope="shared", layout=COLUMNS)
            c = T.alloc_buffer((4,), "float32", scope="local")
            if tx < 256:
                T.tile.async_multiply(
                    "wgmma/1",
                    c[0],
                    T.address_of(a[tx // 128, 0, 0]),
                    T.address_of(b[0, 0]),
                    m=64,
                    n=8,
                    k=32,
                    columns=8,
                    b_transposed=True,
                    clear=True,
                )
                T.tile.async_signal("wgmma/1")
                T.tile.async_wait("wgmma/1", 0)
                C[tx] = c[0]
"""


def shares_of_warpgroups(threads):
    names = {"T": T, "PANELS": PANELS, "COLUMNS": COLUMNS}
    return tvm.script.from_source(SHARES.format(threads=threads), names)


def descriptors_of_a(program):
    """Those of the operand A, in the order of the instructions."""
    lowered = LowerAsyncWork(ir.IRModule({"main": program}))["main"]
    found = []
    structural_walk(lowered.body, (ir.Call, found.append), order="pre")
    return lowered, [str(call.args[4]) for call in found if "mma_async" in str(call.args)]


def test_where_the_share_of_a_warpgroup_begins_is_computed_from_the_first_thread_of_a_warp():
    """All threads get its index where the kernel begins, since all of a warp's have to come."""
    lowered, found = descriptors_of_a(shares_of_warpgroups(384))
    start = 'T.Cast("uint64", first_tx // 128 * 256)'
    assert [text.split(" + ", 1)[1] for text in found] == [start, f"{start} + T.uint64(2)"]
    body = lowered.script().split("threadIdx.x", 1)[1].splitlines()
    assert body[1].strip() == (
        "first_tx: T.let[T.int32] = T.tvm_warp_shuffle(T.uint32(4294967295), tx, 0, 32, 32)"
    )


def test_no_index_is_exchanged_where_a_warp_has_fewer_threads():
    lowered, found = descriptors_of_a(shares_of_warpgroups(272))
    assert "shuffle" not in lowered.script()
    assert all("tx // 128" in text for text in found)


def test_no_index_is_exchanged_for_a_tile_that_all_warpgroups_read():
    lowered, _ = descriptors_of_a(a_product)
    assert "shuffle" not in lowered.script()


@pytest.mark.parametrize(
    ("condition", "asked"),
    [
        ("tx < 256", "first_tx < 256"),
        ("tx >= 128 and tx < 256", "first_tx >= 128 and first_tx < 256"),
        ("tx // 32 % 2 == 0", "first_tx // 32 % 2 == 0"),
        ("tx % 32 < 16", "tx % 32 < 16"),
        ("tx < 250", "tx < 250"),
        ("tx < 256 and C[tx] > C[0]", "tx < 256 and C[tx] > C[0]"),
        ("C[0] > C[1]", "C[0] > C[1]"),
    ],
)
def test_a_branch_that_lets_whole_warps_to_a_product_asks_for_their_first_threads(condition, asked):
    """What differs within a warp, or depends on more than the thread, stays as it is."""
    text = SHARES.format(threads=384).replace("tx < 256", condition)
    program = tvm.script.from_source(text, {"T": T, "PANELS": PANELS, "COLUMNS": COLUMNS})
    script = LowerAsyncWork(ir.IRModule({"main": program}))["main"].script()
    assert f"if {asked}:" in script


def test_a_branch_without_a_product_asks_for_the_thread():
    text = (
        SHARES.format(threads=384)
        + "            if tx < 128:\n                C[tx] = T.float32(0)\n"
    )
    program = tvm.script.from_source(text, {"T": T, "PANELS": PANELS, "COLUMNS": COLUMNS})
    script = LowerAsyncWork(ir.IRModule({"main": program}))["main"].script()
    assert "if first_tx < 256:" in script
    assert "if tx < 128:" in script


COLUMN = T.ComposeLayout(3, 2, 3, T.TileLayout(T.S[(64, 2, 32) : (32, 2048, 1)]))


@T.prim_func
def columns_in_panels(C: T.Buffer((256,), "float32")):
    for bx in T.thread_binding(2, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            a = T.alloc_buffer((64, 64), "float16", scope="shared", layout=COLUMN)
            b = T.alloc_buffer((8, 32), "float16", scope="shared", layout=COLUMNS)
            c = T.alloc_buffer((4,), "float32", scope="local")
            T.tile.async_multiply(
                "wgmma/1",
                c[0],
                T.address_of(a[0, bx * 16]),
                T.address_of(b[0, 0]),
                m=64,
                n=8,
                k=32,
                columns=8,
                b_transposed=True,
                clear=True,
            )
            T.tile.async_signal("wgmma/1")
            T.tile.async_wait("wgmma/1", 0)
            C[bx * 128 + tx] = c[0]


def test_descriptors_that_differ_by_no_constant_are_computed_each():
    """From columns 16 to 47 of panels of 32: how far the second half is from the first depends."""
    _, (first, second) = descriptors_of_a(columns_in_panels)
    assert "T.uint64(" not in first + second
    assert first != second


@T.prim_func
def weights_in_registers(C: T.Buffer((128,), "float32")):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        for tx in T.thread_binding(128, thread="threadIdx.x"):
            a = T.alloc_buffer((16,), "float16", scope="local")
            b = T.alloc_buffer((8, 32), "float16", scope="shared", layout=COLUMNS)
            c = T.alloc_buffer((4,), "float32", scope="local")
            T.tile.async_multiply(
                "wgmma/1",
                c[0],
                a[0],
                T.address_of(b[0, 0]),
                m=64,
                n=8,
                k=32,
                columns=8,
                b_transposed=True,
            )
            T.tile.async_signal("wgmma/1")
            T.tile.async_wait("wgmma/1", 0)
            C[tx] = c[0]


def test_registers_are_put_together_before_the_fence():
    """The eight words of 16 elements; sums of 32 bits need it not."""
    lowered = LowerAsyncWork(ir.IRModule({"main": weights_in_registers}))["main"]
    before, behind = lowered.script().split('T.ptx.wgmma("fence"')
    assert before.count("T.ptx.mov(") == 8
    assert "T.ptx.mov(" not in behind


PRODUCT = """T.tile.async_multiply(
    "wgmma/1", c[0], T.address_of(a[0, 0, 0]), T.address_of(b[0, 0]), m=64, n=8, k=32, columns=8,
    b_transposed=True
)"""
PRODUCTS = """
@T.prim_func
def main(C: T.Buffer((128,), "float32")):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={{"tvmtile.kernel": True}}):
        for tx in T.thread_binding(256, thread="threadIdx.x"):
            a = T.alloc_buffer((2, 64, 32), "float16", scope="shared", layout=PANELS)
            b = T.alloc_buffer((8, 32), "float16", scope="shared", layout=COLUMNS)
            c = T.alloc_buffer((4,), "float32", scope="local")
            {before}
            if tx < 128:
                {product}
                for k in range(2):
                    {inside}
                    {product}
                {product}
                C[tx] = c[0]
"""


@pytest.mark.parametrize(
    ("before", "inside", "fenced"),
    [
        ("a", "C", [True, False, False]),
        ("C", "C", [False, False, False]),
        ("C", "a", [False, True, False]),
        ("a", "a", [True, True, False]),
        ("others", "C", [True, True, True]),
    ],
)
def test_a_fence_stands_behind_writes_of_an_operand(before, inside, fenced):
    """Products before a loop, in it, and behind it; a thread writes an operand, or something else."""
    written = {"a": "a[0, tx % 64, 0] = T.float16(0)", "C": "C[tx] = T.float32(0)"}
    written["others"] = f"if tx >= 128: {written['a']}"
    text = PRODUCTS.format(
        before=written[before],
        inside=written[inside],
        product=" ".join(PRODUCT.split()),
    )
    program = tvm.script.from_source(text, {"T": T, "PANELS": PANELS, "COLUMNS": COLUMNS})
    lines = LowerAsyncWork(ir.IRModule({"main": program}))["main"].script().splitlines()
    found = [line.strip() for line in lines if ".fence(" in line or '("fence"' in line]
    products = [i for i, line in enumerate(found) if "wgmma" in line]
    assert [i > 0 and "proxy" in found[i - 1] for i in products] == fenced
