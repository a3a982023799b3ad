"""InsertBarriers: how much it compares and searches."""

from __future__ import annotations

from collections import Counter

import pytest
import tvm
from tvm import tirx
from tvm_ffi import structural_map

import tvmtile
from benchmarks.gpu_programs import PROGRAMS
from tests.passes.gpu.barriers.programs import Kernel, barriers_in, with_pass
from tvmtile.analysis.conflicts.footprint import Footprints
from tvmtile.ir import rewriting
from tvmtile.passes.gpu.barriers.dataflow import Walk
from tvmtile.passes.gpu.barriers.state import State


def traced(text):
    """The function of a kernel with a body."""
    return Kernel("", tuple(text.splitlines()), "", {}).before()


def exchanges(count, iterations, alone):
    """A loop whose threads exchange elements as often as is asked for, and do other things alone."""
    func = traced(f"""S, R = shared((64,)), shared((64,))
for k in range({iterations}):
    S[tx] = A[k, tx] + R[63 - tx]
    A[0, tx] = 0.0
    R[tx] = S[63 - tx]""")

    def repeated(loop):
        if loop.loop_var.name != "k":
            return loop
        first, between, second = loop.body.seq
        round_of = [first, *[between] * alone, second, *[between] * alone]
        return rewriting.replace_loop(loop, body=rewriting.seq(round_of * count))

    return func.with_body(structural_map(func.body, (tirx.For, repeated)))


def rows(count, iterations):
    """A loop whose threads write all rows of a tile, then read those of others."""
    lines = (
        text.format(i)
        for text in ("    S[{0}, tx] = A[k, tx]", "    C[{0} % 8, tx] = S[{0}, 63 - tx]")
        for i in range(count)
    )
    return traced(
        "\n".join([f"S = shared(({count}, 64))", f"for k in range({iterations}):", *lines])
    )


LOOPS = {
    "exchanges": (32, 32, lambda n: exchanges(n, 4, 0), lambda n: 2 * n),
    "exchanges, once": (32, 32, lambda n: exchanges(n, 1, 0), lambda n: 2 * n - 1),
    "exchanges, and other work": (16, 16, lambda n: exchanges(n, 4, 2), lambda n: 2 * n),
    "rows, written and read": (32, 8, lambda n: rows(n, 4), lambda _: 2),
}


@pytest.mark.parametrize(("short", "compared", "made", "barriers"), LOOPS.values(), ids=LOOPS)
def test_work_grows_with_the_length_of_a_loop(monkeypatch, short, compared, made, barriers):
    """Four times the statements are at most six times the work: there is no square of them."""
    work = Counter()

    def counted(owner, name, size=lambda *_: 1):
        method = getattr(owner, name)

        def count(self, *args):
            work[name] += size(self, *args)
            return method(self, *args)

        monkeypatch.setattr(owner, name, count)

    counted(Footprints, "conflict")
    counted(Walk, "_item")
    counted(State, "moved", lambda state, _: len(list(state)))
    counted(State, "close", lambda state, _: len(list(state)))
    found = []
    for count in (short, 4 * short):
        work.clear()
        assert len(barriers_in(with_pass(made(count)))) == barriers(count)
        found.append(Counter(work))
    few, many = found
    assert few["conflict"] > compared
    assert {what: count for what, count in many.items() if count > 6 * few[what]} == {}


@pytest.fixture
def compared(monkeypatch):
    """How often which accesses of buffers `S` and `C_staged` are compared."""
    compared = Counter()
    method = Footprints._found

    def found(self, earlier, later, distances):
        if later.root.name in ("S", "C_staged"):
            compared[earlier, later] += 1
        return method(self, earlier, later, distances)

    monkeypatch.setattr(Footprints, "_found", found)
    return compared


@pytest.mark.parametrize(("copies", "width"), [(4, 4), (16, 4), (4, 8)])
def test_copies_of_a_statement_are_compared_once(compared, copies, width):
    """Tiles go through two stages, each written in slices: `2 * width` stores touch other elements."""
    func = traced(f"""S = shared((2, {width}, 64))
for turn in range(4):
    for copy in T.unroll({copies}):
        for slice in T.unroll({width}):
            S[(copy * 64 + tx) // 64 % 2, slice, (copy * 64 + tx) % 64] = A[turn, tx]
        C[turn, tx] = S[copy % 2, 0, 63 - tx]""")
    unrolled = tvm.tirx.transform.UnrollLoop()(tvm.IRModule({"main": func}))["main"]
    assert len(barriers_in(with_pass(unrolled))) == copies
    assert set(compared.values()) == {1}
    stores, reads = 2 * width, 2
    assert len(compared) <= stores * (stores + 1) // 2 + stores * reads


LINES = {
    "elements of their own": ("S[tx, {i}] = A[0, tx]\n", "", 0),
    "one row after the other": ("S[{i}, tx] = A[0, tx]\n", "C[0, tx] = S[{i}, 63 - tx]\n", 1),
}


@pytest.mark.parametrize(("write", "read", "barriers"), LINES.values(), ids=LINES)
def test_statements_that_touch_other_elements_are_not_compared(compared, write, read, barriers):
    count = 64
    lines = [text.format(i=i) for text in (write, read) for i in range(count)]
    func = traced(f"S = shared((64, 64))\n{''.join(lines)}")
    assert len(barriers_in(with_pass(func))) == barriers
    assert sum(compared.values()) <= count * barriers


@pytest.mark.full
def test_a_persistent_gemm_compares_few_accesses(compared):
    """Its 16 stores to the staged tile touch 8 sets of elements, and its 4 copies out of it 2."""
    program = PROGRAMS["gemm"](8192, 8192, 8192, "float16", "nn", 256, 128, 64, 4, 256, 8)
    tvmtile.compile(program, target={"kind": "cuda", "arch": "sm_90a"})
    assert 0 < sum(compared.values()) <= 8 * 9 // 2 + 2 * 8


def test_what_is_in_flight_counts_the_iterations_of_loops_that_touch_it(monkeypatch):
    """Or else every pair of counts, of the turns and of the steps, would be a state of its own."""
    most = 0
    look = Walk._check

    def measured(self, state, later):
        nonlocal most
        of_one = Counter(opened.access for opened, _ in state)
        most = max(most, *of_one.values(), 0)
        return look(self, state, later)

    monkeypatch.setattr(Walk, "_check", measured)
    func = traced("""S, R = shared((256,)), shared((64,))
for turn in range(16):
    issue(S[tx * 4], L[turn * 4, tx])
    commit()
    for k in range(16):
        R[tx] = A[k % 8, tx]
        C[0, tx] = C[0, tx] + R[63 - tx]
    wait(0)
    C[0, tx] = C[0, tx] + S[tx * 4]""")
    with_pass(func)
    assert 0 < most <= 8
