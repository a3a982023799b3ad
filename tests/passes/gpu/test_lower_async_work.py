"""LowerAsyncWork: groups that a wait leaves, and what products begin with."""

from __future__ import annotations

import pytest
import tvm
from tvm import ir, tirx
from tvm.script import tirx as T
from tvm_ffi import structural_walk

from tvmtile.ir.asynchronous import waited
from tvmtile.passes import LowerAsyncWork

KERNEL = """
@T.prim_func
def main(A: T.Buffer((8,), "float32"), n: T.int32, C: T.Buffer((256,), "float32")):
    for bx in T.thread_binding(2, thread="blockIdx.x", annotations={{"tvmtile.kernel": True}}):
        for tx in T.thread_binding({threads}, thread="threadIdx.x"):
            a = T.alloc_buffer((2, 64, 32), "float16", scope="shared", layout=PANELS)
            wide = T.alloc_buffer((64, 64), "float16", scope="shared", layout=COLUMN)
            b = T.alloc_buffer((8, 32), "float16", scope="shared", layout=COLUMNS)
            c = T.alloc_buffer((4,), "float32", scope="local")
            own = T.alloc_buffer((16,), "float16", scope="local")
"""


def product(c, a, b):
    shape = {"m": 64, "n": 8, "k": 32, "columns": 8}
    return T.tvmtile.async_multiply("wgmma/1", c, a, T.address_of(b), **shape, b_transposed=True)


NAMES = {
    "T": T,
    "PANELS": T.ComposeLayout(3, 2, 3, T.TileLayout(T.S[(2, 64, 1, 32) : (2048, 32, 2048, 1)])),
    "COLUMNS": T.ComposeLayout(3, 2, 3, T.TileLayout(T.S[(8, 1, 32) : (32, 256, 1)])),
    "COLUMN": T.ComposeLayout(3, 2, 3, T.TileLayout(T.S[(64, 2, 32) : (32, 2048, 1)])),
    "product": product,
    "at": T.address_of,
    "signal": lambda token: T.tvmtile.async_signal(f"cp.async{token}"),
    "wait": lambda token, behind: T.tvmtile.async_wait(f"cp.async{token}", behind),
}


def lowered(body, threads=384):
    """The kernel with a body after the pass."""
    lines = "".join(f"{' ' * 12}{line}\n" for line in body.strip().splitlines())
    func = tvm.script.from_source(KERNEL.format(threads=threads) + lines, NAMES)
    return LowerAsyncWork(ir.IRModule({"main": func}))["main"]


WORK = """
T.tvmtile.async_issue("cp.async/1", at(wide[0, 0]), at(A[0]), 4)
T.tvmtile.async_issue("cp.async/2", at(wide[0, 0]), at(A[0]), 4)
"""
TOKENS = """
signal("/1")
signal("/2")
signal("/2")
wait("/1", 0)
A[0] = T.float32(0)
wait("/2", 1)
A[1] = T.float32(0)
wait("", 2)
"""
NEIGHBOURS = """
signal("/1")
signal("/2")
wait("/1", 0)
wait("/2", 0)
A[0] = T.float32(0)
"""
BRANCH = """
signal("/1")
if n > 0:
    signal("/2")
wait("/1", 0)
A[0] = T.float32(0)
"""
LOOP = """
signal("/1")
signal("/1")
for k in range(n):
    wait("/1", 1)
    A[k] = T.float32(0)
    signal("/1")
    signal("/2")
"""
SKIPPING_LOOP = """
signal("/1")
signal("/2")
signal("/2")
for k in range(8):
    wait("/1", 0)
    A[k] = T.float32(0)
    if A[k] > T.float32(n):
        signal("/1")
        T.continue_loop()
    signal("/2")
"""


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (TOKENS, [2, 1, 2]),
        (NEIGHBOURS, [0]),  # the strictest of both
        (BRANCH, [0]),  # where the branch is not taken, nothing is committed after the batch
        (LOOP, [1]),  # at first; the next ones might leave two
        (SKIPPING_LOOP, [0]),  # after an iteration that ended early
        ('wait("/1", 0)\nA[0] = T.float32(0)', [7]),  # the most that the instruction takes
    ],
)
def test_a_wait_leaves_what_was_committed_after_its_batch_on_every_path(body, left):
    func, found = lowered(body + WORK), []
    assert "async_" not in func.script().replace("cp_async", "")
    structural_walk(func.body, (tirx.Evaluate, lambda s: found.append(waited(s))), order="pre")
    assert [wait.behind for wait in found if wait is not None] == left


def descriptors_of_a(func):
    """The offsets added to the begin of the operand A, in the order of the instructions."""
    calls = []
    structural_walk(func.body, (ir.Call, calls.append), order="pre")
    products = [str(call.args[4]) for call in calls if "mma_async" in str(call.args)]
    return [text.partition(" + ")[2] for text in products]


SHARES = """
if CONDITION:
    product(c[0], at(a[tx // 128, 0, 0]), b[0, 0])
    C[tx] = c[0]
if tx < 128:
    C[tx] = T.float32(0)
"""
WHOLE_WARPS = 'T.Cast("uint64", first_tx // 128 * 256)'
ANY_THREADS = 'T.Cast("uint64", tx // 128 * 256)'
SHUFFLE = "first_tx: T.let[T.int32] = T.tvm_warp_shuffle(T.uint32(4294967295), tx, 0, 32, 32)"


@pytest.mark.parametrize(
    ("body", "threads", "start"),
    [
        (SHARES.replace("CONDITION", "tx < 256"), 384, WHOLE_WARPS),
        (SHARES.replace("CONDITION", "tx < 256"), 272, ANY_THREADS),  # a warp has fewer threads
        ("product(c[0], at(a[n, 0, 0]), b[0, 0])", 128, 'T.Cast("uint64", n * 256)'),
    ],
)
def test_where_a_share_begins_is_computed_from_the_first_thread_of_a_warp(body, threads, start):
    """All threads get its index where the kernel begins, since all of a warp's have to come."""
    func = lowered(body, threads)
    assert descriptors_of_a(func) == [start, f"{start} + T.uint64(2)"]
    lines = [line.strip() for line in func.script().split("threadIdx.x", 1)[1].splitlines()]
    assert (lines[1] == SHUFFLE) == (start == WHOLE_WARPS)
    assert ("shuffle" in func.script()) == (start == WHOLE_WARPS)


def test_descriptors_that_differ_by_no_constant_are_computed_each():
    """From columns 16 to 47 of panels of 32: how far the second half is from the first depends."""
    first, second = descriptors_of_a(lowered("product(c[0], at(wide[0, bx * 16]), b[0, 0])", 128))
    assert "T.uint64(" not in first + second
    assert first != second


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
    """A branch stays that differs within a warp, depends on more than the thread, or has no product."""
    script = lowered(SHARES.replace("CONDITION", condition)).script()
    assert f"if {asked}:" in script
    assert "if tx < 128:" in script


def test_registers_are_put_together_before_the_fence():
    """The eight words of 16 elements; sums of 32 bits need it not."""
    script = lowered("product(c[0], own[0], b[0, 0])\nC[tx] = c[0]", 128).script()
    before, behind = script.split('T.ptx.wgmma("fence"')
    assert before.count("T.ptx.mov(") == 8
    assert "T.ptx.mov(" not in behind


PRODUCTS = """
BEFORE
if tx < 128:
    product(c[0], at(a[0, 0, 0]), b[0, 0])
    for k in range(2):
        INSIDE
        product(c[0], at(a[0, 0, 0]), b[0, 0])
    product(c[0], at(a[0, 0, 0]), b[0, 0])
    C[tx] = c[0]
"""
OPERAND, OTHER = "a[0, tx % 64, 0] = T.float16(0)", "C[tx] = T.float32(0)"


@pytest.mark.parametrize(
    ("before", "inside", "fenced"),
    [
        (OPERAND, OTHER, [True, False, False]),
        (OTHER, OTHER, [False, False, False]),
        (OTHER, OPERAND, [False, True, False]),
        (OPERAND, OPERAND, [True, True, False]),
        (f"if tx >= 128: {OPERAND}", OTHER, [True, True, True]),
    ],
)
def test_a_fence_stands_behind_writes_of_an_operand(before, inside, fenced):
    """Products before a loop, in it, and behind it; a thread writes an operand, or something else."""
    body = PRODUCTS.replace("BEFORE", before).replace("INSIDE", inside)
    lines = lowered(body, 256).script().splitlines()
    found = [line.strip() for line in lines if ".fence(" in line or '("fence"' in line]
    products = [i for i, line in enumerate(found) if "wgmma" in line]
    assert [i > 0 and "proxy" in found[i - 1] for i in products] == fenced
