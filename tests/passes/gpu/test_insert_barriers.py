"""InsertBarriers: no race is left, and no barrier is there without a reason."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T
from tvm_ffi import structural_map, structural_walk

import tvmtile
import tvmtile.language as TL
from benchmarks.gpu_programs import PROGRAMS
from tests.metal.test_attention import flash_attention
from tests.passes.gpu.barriers.oracle import (
    Oracle,
    Programs,
    assert_each_is_needed,
    barriers_in,
    executed,
    with_pass,
    without,
)
from tvmtile.analysis.conflicts.footprint import Footprints
from tvmtile.emulator.metal import compile_msl
from tvmtile.errors import DataRace, MetalEmulationError, TileWarning
from tvmtile.ir import rewriting
from tvmtile.passes.gpu.barriers.checker import Checker
from tvmtile.passes.gpu.barriers.removal import _Component

# Typical programs ---------------------------------------------------------------------------------


def gemm(steps):
    """What a GEMM does to its tiles: two copies, then all threads read both."""

    @T.prim_func
    def main(A: T.Buffer((steps, 64), "float32"), C: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                A_s = T.alloc_buffer((8, 8), "float32", scope="shared")
                B_s = T.alloc_buffer((64,), "float32", scope="shared")
                for k in range(steps):
                    A_s[tx // 8, tx % 8] = A[k, tx]
                    B_s[tx] = A[k, tx]
                    for i in range(8):
                        C[tx] = C[tx] + A_s[tx % 8, i] * B_s[i * 8 + tx // 8]

    return main


def pipelined(steps, versions):
    """A GEMM whose copies are one step ahead."""

    @T.prim_func
    def main(A: T.Buffer((steps, 64), "float32"), C: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                A_s = T.alloc_buffer((versions, 64), "float32", scope="shared")
                A_s[0, tx] = A[0, tx]
                for k in range(steps):
                    if k + 1 < steps:
                        A_s[(k + 1) % versions, tx] = A[k + 1, tx]
                    for i in range(8):
                        C[tx] = C[tx] + A_s[k % versions, i * 8 + tx // 8]

    return main


def test_two_barriers_an_iteration_of_a_gemm():
    func = with_pass(gemm(6))
    assert executed(func) == 2 * 6
    assert_each_is_needed(func)


def exchanges(count, iterations=4, alone=0):
    """A loop whose threads exchange elements as often as is asked for, and do other things alone."""

    @T.prim_func
    def main(A: T.Buffer((4, 64), "float32"), C: T.Buffer((4, 64), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((64,), "float32", scope="shared")
                R = T.alloc_buffer((64,), "float32", scope="shared")
                for k in range(iterations):
                    S[tx] = A[k, tx] + R[63 - tx]
                    R[tx] = S[63 - tx]

    def repeated(loop):
        if loop.loop_var.name != "k":
            return loop
        first, second = loop.body.seq
        A = main.params[0]
        between = [tirx.BufferStore(A, tirx.const(0.0, "float32"), [0, second.indices[0]])] * alone
        return rewriting.replace_loop(
            loop, body=rewriting.seq([first, *between, second, *between] * count)
        )

    return main.with_body(structural_map(main.body, (tirx.For, repeated)))


@pytest.mark.parametrize(("short", "iterations", "alone"), [(32, 4, 0), (32, 1, 0), (16, 4, 2)])
def test_the_work_grows_with_the_length_of_a_loop(monkeypatch, short, iterations, alone):
    """Four times the statements are at most six times the work: there is no square of them."""
    work = Counter()

    def counted(owner, name, size=lambda *_: 1):
        method = getattr(owner, name)

        def count(self, *args):
            work[name] += size(*args)
            return method(self, *args)

        monkeypatch.setattr(owner, name, count)

    counted(Footprints, "conflict")
    counted(Checker, "_item")
    counted(Checker, "_past", lambda bit, state: len(state))
    counted(_Component, "_removed", len)

    def work_of(count):
        work.clear()
        barriers = barriers_in(with_pass(exchanges(count, iterations, alone)))
        assert len(barriers) == 2 * count - (iterations == 1)
        return Counter(work)

    few, many = work_of(short), work_of(4 * short)
    assert few["conflict"] > short
    for what, count in many.items():
        assert count <= 6 * few[what], what


def staged(copies, width):
    """A persistent block: `copies` tiles go through two stages, each written and read in slices."""

    @T.prim_func
    def main(
        A: T.Buffer((4, copies, width, 64), "float32"), C: T.Buffer((4, copies, 64), "float32")
    ):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((2, width, 64), "float32", scope="shared")
                for turn in range(4):
                    for copy in T.unroll(copies):
                        for slice in T.unroll(width):
                            S[(copy * 64 + tx) // 64 % 2, slice, (copy * 64 + tx) % 64] = A[
                                turn, copy, slice, tx
                            ]
                        C[turn, copy, tx] = S[copy % 2, 0, 63 - tx]

    return tvm.tirx.transform.UnrollLoop()(tvm.IRModule({"main": main}))["main"]


def compared_in(monkeypatch, name):
    """How often which accesses of a buffer are compared, from here on."""
    compared = Counter()
    method = Footprints._found

    def found(self, earlier, later, distances):
        if later.root.name == name:
            compared[earlier, later] += 1
        return method(self, earlier, later, distances)

    monkeypatch.setattr(Footprints, "_found", found)
    return compared


@pytest.mark.parametrize(("copies", "width"), [(4, 4), (16, 4), (4, 8)])
def test_copies_of_a_statement_are_compared_once(monkeypatch, copies, width):
    """Of `copies * width` stores `2 * width` touch other elements, whatever the iterations between."""
    compared = compared_in(monkeypatch, "S")
    assert len(barriers_in(with_pass(staged(copies, width)))) == copies
    assert set(compared.values()) == {1}
    stores, reads = 2 * width, 2
    assert len(compared) <= stores * (stores + 1) // 2 + stores * reads


def test_a_persistent_gemm_compares_few_accesses(monkeypatch):
    """Its 16 stores to the staged tile touch 8 sets of elements, and its 4 copies out of it 2."""
    compared = compared_in(monkeypatch, "C_staged")
    program = PROGRAMS["gemm"](8192, 8192, 8192, "float16", "nn", 256, 128, 64, 4, 256, 8)
    tvmtile.compile(program, target={"kind": "cuda", "arch": "sm_90a"})
    assert 0 < sum(compared.values()) <= 8 * 9 // 2 + 2 * 8


def test_what_is_in_flight_counts_the_iterations_of_loops_that_touch_it(monkeypatch):
    """Or else every pair of counts, of the turns and of the steps, would be a state of its own."""
    most = 0
    look = Checker._check

    def measured(self, state, later):
        nonlocal most
        of_one = Counter(opened.access for opened in state)
        most = max(most, *of_one.values(), 0)
        return look(self, state, later)

    monkeypatch.setattr(Checker, "_check", measured)

    @T.prim_func
    def main(A: T.Buffer((4096,), "float32"), C: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                copied = T.alloc_buffer((256,), "float32", scope="shared")
                tile = T.alloc_buffer((64,), "float32", scope="shared")
                for turn in range(16):
                    T.evaluate(
                        T.tile.async_issue(
                            "cp.async/1",
                            T.address_of(copied[tx * 4]),
                            T.address_of(A[turn * 256 + tx * 4]),
                            16,
                        )
                    )
                    T.evaluate(T.tile.async_signal("cp.async/1"))
                    for k in range(16):
                        tile[tx] = A[k * 64 + tx]
                        C[tx] = C[tx] + tile[63 - tx]
                    T.evaluate(T.tile.async_wait("cp.async/1", 0))
                    C[tx] = C[tx] + copied[tx * 4]

    with_pass(main)
    assert 0 < most <= 8


@pytest.mark.parametrize("versions", [2, 3])
@pytest.mark.parametrize("steps", [4, 70])  # the more are looked at by their remainders
def test_one_barrier_an_iteration_of_a_pipelined_gemm(versions, steps):
    func = with_pass(pipelined(steps, versions))
    assert executed(func) == steps
    assert_each_is_needed(func)


def test_the_number_of_steps_may_be_a_scalar():
    @T.prim_func
    def main(a: T.handle, c: T.handle, n: T.int32):
        A = T.match_buffer(a, (n, 64), "float32")
        C = T.match_buffer(c, (64,), "float32")
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                A_s = T.alloc_buffer((2, 64), "float32", scope="shared")
                A_s[0, tx] = A[0, tx]
                for k in range(n):
                    if k + 1 < n:
                        A_s[(k + 1) % 2, tx] = A[k + 1, tx]
                    C[tx] = C[tx] + A_s[k % 2, 63 - tx]

    assert len(barriers_in(with_pass(main))) == 1


@pytest.mark.parametrize("escapes", [False, True])
def test_an_even_number_of_steps_ends_in_the_last_of_two_versions(escapes):
    """So the first one is free after the loop, also where the number has a name."""

    @T.prim_func
    def written_out(A: T.Buffer((8, 64), "float32"), C: T.Buffer((9, 64), "float32")):
        for bx in T.thread_binding(4, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((2, 64), "float32", scope="shared")
                for k in range((bx + 1) * 64 // 32):
                    S[k % 2, tx] = A[k, tx]
                    C[k, tx] = S[k % 2, 63 - tx]
                S[0, tx] = A[0, tx]
                C[8, tx] = S[0, 63 - tx]

    @T.prim_func
    def named(A: T.Buffer((8, 64), "float32"), C: T.Buffer((9, 64), "float32")):
        for bx in T.thread_binding(4, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((2, 64), "float32", scope="shared")
                steps: T.let[T.int32] = (bx + 1) * 64 // 32
                for k in range(steps):
                    S[k % 2, tx] = A[k, tx]
                    C[k, tx] = S[k % 2, 63 - tx]
                S[0, tx] = A[0, tx]
                C[8, tx] = S[0, 63 - tx]

    func = with_pass(named if escapes else written_out)
    assert len(barriers_in(func)) == 2
    assert_each_is_needed(func)


def test_what_needs_no_barrier_gets_none():
    @T.prim_func
    def own_elements(A: T.Buffer((256,), "float32"), C: T.Buffer((256,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((256,), "float32", scope="shared")
                V = T.decl_buffer((16, 16), "float32", data=S.data, scope="shared")
                for i in range(4):
                    S[i * 64 + (tx ^ (i % 4))] = A[i * 64 + tx]
                for i in range(4):
                    for j in range(1):
                        C[i * 64 + tx] = V[i * 4 + (tx ^ (i % 4)) // 16 + j, (tx ^ (i % 4)) % 16]

    @T.prim_func
    def halves(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((512,), "float32", scope="shared")
                for k in range(3):
                    S[T.Ramp(tx * 4, 1, 4)] = T.Broadcast(T.float32(1), 4)
                    C[tx] = S[511 - tx]

    @T.prim_func
    def one_thread(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(1, "threadIdx.x"):
                S = T.alloc_buffer((64,), "float32", scope="shared")
                for k in range(64):
                    S[k] = A[k]
                for k in range(64):
                    C[k] = S[63 - k]

    for func in (own_elements, halves, one_thread):
        assert not barriers_in(with_pass(func))


def test_atomic_updates_need_none_among_themselves():
    @T.prim_func
    def main(A: T.Buffer((64,), "int32"), C: T.Buffer((64,), "int32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((8,), "int32", scope="shared")
                if tx < 8:
                    S[tx] = 0
                for k in range(4):
                    T.evaluate(T.Call("tvmtile.atomic", [S[A[tx] % 8], 1], ret_ty="int32"))
                C[tx] = S[tx % 8]

    func = with_pass(main)
    assert len(barriers_in(func)) == 2
    loops = []
    structural_walk(func.body, (tirx.For, loops.append))
    assert not barriers_in(func.with_body(next(x for x in loops if x.loop_var.name == "k")))


def test_an_operator_reads_the_places_of_its_operands():
    @T.prim_func
    def main(A: T.Buffer((64,), "int32"), C: T.Buffer((64,), "int32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                places = T.alloc_buffer((64,), "int32", scope="shared")
                places[tx] = A[tx]
                T.evaluate(T.Call("tvmtile.atomic", [C[places[63 - tx] % 64], 1], ret_ty="int32"))

    assert len(barriers_in(with_pass(main))) == 1


@pytest.mark.parametrize("target", [{"kind": "cuda", "arch": "sm_80"}, "metal"])
def test_places_that_other_threads_wrote(target):
    @TL.prim_func
    def main(I: TL.Tensor((64,), "int32"), C: TL.Tensor((64,), "int32")):
        with TL.Kernel(1, threads=64):
            places = TL.alloc_shared((64,), "int32")
            for i in TL.Parallel(64):
                places[i] = I[i]
            for i in TL.Parallel(64):
                TL.atomic_add(C[places[63 - i] % 64], i)

    order = np.random.default_rng(0).permutation(64).astype("int32")
    counts = np.zeros(64, "int32")
    tvmtile.compile(main, target=target, execution_backend="emulator")(order, counts)
    expected = np.zeros(64, "int32")
    expected[order[::-1]] = np.arange(64)
    np.testing.assert_array_equal(counts, expected)


@pytest.mark.parametrize(
    ("dtype", "place", "barriers"),
    [
        ("int32", lambda tx: 63 - tx, 1),
        ("int32", lambda tx: tx, 0),
        ("int32", lambda tx: tx + 64, 0),
        ("float16", lambda tx: 2 * tx + 1, 0),
        ("float16", lambda tx: tx + 128, 0),
        ("float16", lambda tx: tx + 127, 1),
        ("uint8", lambda tx: tx * 4 + 3, 0),
        ("uint8", lambda tx: tx * 4 + 4, 1),
    ],
)
def test_a_view_of_another_type_is_the_same_memory(dtype, place, barriers):
    @T.prim_func
    def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), dtype)):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((128,), "float32", scope="shared")
                V = T.decl_buffer((512,), dtype, data=S.data, scope="shared")
                S[tx] = A[tx]
                C[tx] = V[place(tx)]

    assert len(barriers_in(with_pass(main))) == barriers


def test_views_that_start_elsewhere_may_be_any_part_of_the_memory():
    @T.prim_func
    def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((128,), "float32", scope="shared")
                V = T.decl_buffer((64,), "float32", data=T.address_of(S[64]), scope="shared")
                S[tx] = A[tx]
                C[tx] = V[tx]

    assert len(barriers_in(with_pass(main))) == 1


@pytest.mark.parametrize(("place", "barriers"), [(lambda tx: tx, 0), (lambda tx: 63 - tx, 1)])
def test_accesses_of_one_view_that_starts_elsewhere_are_compared_by_their_indices(place, barriers):
    @T.prim_func
    def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((128,), "float32", scope="shared")
                V = T.decl_buffer((64,), "float32", data=T.address_of(S[64]), scope="shared")
                words = T.decl_buffer((64,), "uint32", data=V.data, scope="shared")
                if A[tx] < T.float32(0):
                    V[tx] = A[tx]
                else:
                    words[tx] = T.uint32(0)
                C[tx] = V[place(tx)]

    assert len(barriers_in(with_pass(main))) == barriers


@pytest.mark.parametrize(
    ("start", "place", "barriers"),
    [
        (256, lambda tx: tx, 0),
        (256, lambda tx: 63 - tx, 0),
        (128, lambda tx: tx, 1),
        (254, lambda tx: 63 - tx, 0),
        (252, lambda tx: 63 - tx, 1),
        (0, lambda tx: 2 * tx, 0),
        (0, lambda tx: 2 * tx + 2, 1),
        (4, lambda tx: (2 * tx + 126) % 128, 0),
        (4, lambda tx: 2 * tx, 1),
    ],
)
def test_a_view_that_starts_some_bytes_behind_is_compared_by_its_place(start, place, barriers):
    @T.prim_func
    def main(A: T.Buffer((64,), "uint32"), C: T.Buffer((64,), "float16")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                tiles = T.alloc_buffer((128,), "uint32", scope="shared")
                S = T.decl_buffer(
                    (64,), "uint32", data=T.ptr_byte_offset(tiles.data, 4, "uint32"), scope="shared"
                )
                H = T.decl_buffer(
                    (128,),
                    "float16",
                    data=T.ptr_byte_offset(S.data, start, "float16"),
                    scope="shared",
                )
                S[tx] = A[tx]
                C[tx] = H[place(tx)]

    assert len(barriers_in(with_pass(main))) == barriers


def test_threads_in_a_branch_may_fill_tiles_that_lie_side_by_side_in_shared_memory():
    @T.prim_func
    def main(A: T.Buffer((64,), "float16"), C: T.Buffer((64,), "float16")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(128, "threadIdx.x"):
                tiles = T.alloc_buffer((64,), "uint32", scope="shared")
                S = T.decl_buffer(
                    (64,),
                    "float16",
                    data=T.ptr_byte_offset(tiles.data, 0, "float16"),
                    scope="shared",
                )
                R = T.decl_buffer(
                    (64,),
                    "float16",
                    data=T.ptr_byte_offset(tiles.data, 128, "float16"),
                    scope="shared",
                )
                if tx < 64:
                    S[tx] = A[tx]
                    R[tx] = A[63 - tx]
                if tx < 64:
                    C[tx] = S[63 - tx] + R[63 - tx]

    assert len(barriers_in(with_pass(main))) == 1


@pytest.mark.parametrize("where", ["thread", "iteration", "element"])
def test_a_view_whose_start_varies_may_be_any_part_of_the_memory(where):
    @T.prim_func
    def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((256,), "float32", scope="shared")
                first = T.alloc_buffer((2,), "int32", scope="shared")
                first[tx % 2] = 1 - tx % 2
                for k in range(4):
                    start = {"thread": 63 - tx * 2, "iteration": 64 - k, "element": first[0]}[where]
                    V = T.decl_buffer(
                        (64,), "float32", data=T.address_of(S[64 + start]), scope="shared"
                    )
                    V[tx] = A[tx]
                    C[tx] = V[tx]

    assert any(of_loop for of_loop in barriers_in(with_pass(main)))


def test_versions_of_a_tile_through_a_flat_view_of_words():
    @T.prim_func
    def main(A: T.Buffer((70, 64), "float16"), C: T.Buffer((64,), "float16")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(32, "threadIdx.x"):
                S = T.alloc_buffer((2, 8, 8), "float16", scope="shared")
                words = T.decl_buffer((64,), "uint32", data=S.data, scope="shared")
                source = T.decl_buffer((70 * 32,), "uint32", data=A.data)
                words[tx] = source[tx]
                for k in range(69):
                    words[(k + 1) % 2 * 32 + tx] = source[(k + 1) * 32 + tx]
                    C[tx] = C[tx] + S[k % 2, tx % 8, tx // 8]

    assert len(barriers_in(with_pass(main))) == 1


def test_loops_that_end_by_a_condition():
    @T.prim_func
    def main(A: T.Buffer((64,), "float32"), n: T.int32, C: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((64,), "float32", scope="shared")
                left = T.alloc_buffer((1,), "int32", scope="local")
                left[0] = n
                while left[0] > 0:
                    S[tx] = A[tx]
                    C[tx] = S[63 - tx]
                    left[0] = left[0] - 1
                for k in range(n):
                    if k * k > n:
                        break
                    S[tx] = A[tx]
                    C[tx] = S[63 - tx]

    assert len(barriers_in(with_pass(main))) == 4


def test_no_barrier_in_loops_that_threads_leave_at_different_times():
    @T.prim_func
    def main(A: T.Buffer((64,), "int32"), C: T.Buffer((64,), "int32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((64,), "int32", scope="shared")
                for k in range(A[tx]):
                    S[tx] = k
                    C[tx] = S[63 - tx]

    with pytest.raises(DataRace, match="not all threads of the block come there"):
        with_pass(main)


def test_barriers_of_the_user_count():
    @T.prim_func
    def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((64,), "float32", scope="shared")
                for k in range(4):
                    S[tx] = A[tx]
                    T.evaluate(T.tvm_storage_sync("shared"))
                    C[tx] = S[63 - tx]

    func = with_pass(main)
    assert executed(func) == 8
    assert len(barriers_in(func)) == 2


def test_threads_of_a_simdgroup_wait_for_each_other_alone():
    @T.prim_func
    def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((64,), "float32", scope="shared")
                S[tx] = A[tx]
                C[tx] = S[tx // 32 * 32 + (31 - tx % 32)]

    func = with_pass(main)
    assert [str(barrier.value.args[0].value) for barrier in barriers_in(func)] == ["warp"]
    assert executed(func) == 1


def test_barriers_stand_before_what_not_all_threads_do():
    @T.prim_func
    def tree(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((64,), "float32", scope="shared")
                S[tx] = A[tx]
                if tx < 32:
                    S[tx] = S[tx] + S[tx + 32]
                if tx < 16:
                    S[tx] = S[tx] + S[tx + 16]
                C[tx] = S[0]

    func = with_pass(tree)
    assert executed(func) == 3
    assert_each_is_needed(func)


def test_both_sides_of_a_branch_run_at_the_same_time():
    @T.prim_func
    def main(A: T.Buffer((64,), "float32"), C: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((64,), "float32", scope="shared")
                if tx < 32:
                    S[tx] = A[tx]
                else:
                    C[tx] = S[tx - 32]

    with pytest.raises(DataRace, match=r"S\[64\] float32 are read .* no barrier can stand"):
        with_pass(main)


def test_a_statement_that_reads_what_it_writes():
    @T.prim_func
    def main(A: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((65,), "float32", scope="shared")
                S[tx] = S[tx + 1]

    with pytest.raises(DataRace, match="in the same statement"):
        with_pass(main)


# Random programs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_have_no_race_left(seed):
    for number in range(25):
        Oracle(with_pass(Programs(1000 * seed + number).program()), ignored="C").run()


# On the emulated GPU --------------------------------------------------------------------------------


def emulated(func, *arguments, threads):
    """Run a kernel as it is, without TVM's own search for barriers; how many a block executes."""
    # What has the mark of a kernel is lowered as a tile program.
    source = func.script().replace(', annotations={"tvmtile.kernel": True}', "")
    # StorageRewrite would let tiles share memory, which needs barriers that were not needed before.
    config = {"tirx.disable_storage_rewrite": True}
    with tvm.transform.PassContext(disabled_pass=["s_tir.ThreadSync"], config=config):
        built = tvm.tirx.build(tvm.script.from_source(source), target="metal")
    module = compile_msl(built.imports[0].inspect_source("metal"))
    (name,) = module.kernel_names
    statistics = module.kernel(name)(*arguments, grid=1, threads=threads)
    return statistics.threadgroup_barriers


@pytest.mark.parametrize(("make", "barriers"), [(gemm, 12), (lambda k: pipelined(k, 2), 6)])
def test_numbers_and_barriers_of_products(make, barriers):
    steps = 6
    a = np.random.default_rng(0).standard_normal((steps, 64)).astype("float32")
    tiles = a.reshape(steps, 8, 8).astype("float64")
    if make is gemm:
        expected = np.einsum("kci,kir->rc", tiles, tiles).reshape(-1)
    else:
        expected = tiles.sum((0, 1)).repeat(8)
    c = np.zeros(64, "float32")
    assert emulated(with_pass(make(steps)), a, c, threads=64) == barriers
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(MetalEmulationError, match="race|barrier"):
        emulated(make(steps), a, c, threads=64)


def test_matrices_of_simdgroups():
    """Tiles that threads copy and simdgroups multiply, and a result that threads read."""

    @T.prim_func
    def main(
        A: T.Buffer((4, 16, 8), "float32"),
        B: T.Buffer((4, 8, 8), "float32"),
        C: T.Buffer((16, 8), "float32"),
    ):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                A_s = T.alloc_buffer((2, 16, 8), "float32", scope="shared")
                B_s = T.alloc_buffer((2, 8, 8), "float32", scope="shared")
                C_s = T.alloc_buffer((16, 8), "float32", scope="shared")
                a = T.alloc_buffer((64,), "float32", scope="metal.simdgroup")
                b = T.alloc_buffer((64,), "float32", scope="metal.simdgroup")
                c = T.alloc_buffer((64,), "float32", scope="metal.simdgroup")
                T.evaluate(T.metal.make_filled_simdgroup_matrix(c.data, 0, T.float32(0), 8, 8))
                for k in range(4):
                    for i in range(2):
                        A_s[k % 2, i * 8 + tx // 8, tx % 8] = A[k, i * 8 + tx // 8, tx % 8]
                    B_s[k % 2, tx // 8, tx % 8] = B[k, tx // 8, tx % 8]
                    T.evaluate(
                        T.metal.simdgroup_load(
                            a.data, 0, T.address_of(A_s[k % 2, tx // 32 * 8, 0]), 8, 8, 8, False
                        )
                    )
                    T.evaluate(
                        T.metal.simdgroup_load(
                            b.data, 0, T.address_of(B_s[k % 2, 0, 0]), 8, 8, 8, False
                        )
                    )
                    T.evaluate(
                        T.metal.simdgroup_multiply_accumulate(
                            c.data, 0, a.data, 0, b.data, 0, c.data, 0
                        )
                    )
                T.evaluate(
                    T.metal.simdgroup_store(
                        c.data, 0, T.address_of(C_s[tx // 32 * 8, 0]), 8, 8, 8, False
                    )
                )
                for i in range(2):
                    C[tx // 32 * 8 + i * 4 + tx % 32 // 8, tx % 8] = C_s[
                        tx // 32 * 8 + i * 4 + tx % 32 // 8, tx % 8
                    ]

    func = with_pass(main)
    scopes = [str(barrier.value.args[0].value) for barrier in barriers_in(func)]
    assert scopes == ["shared", "warp"]  # one an iteration, since the tiles have two versions
    rng = np.random.default_rng(1)
    a = rng.standard_normal((4, 16, 8)).astype("float32")
    b = rng.standard_normal((4, 8, 8)).astype("float32")
    c = np.zeros((16, 8), "float32")
    assert emulated(func, a, b, c, threads=64) == 4
    expected = np.einsum("kmi,kin->mn", a.astype("float64"), b.astype("float64"))
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)
    for number in range(2):
        fewer = func.with_body(without(func.body, number)[0])
        with pytest.raises(MetalEmulationError):
            emulated(fewer, a, b, c, threads=64)


# Tile programs ---------------------------------------------------------------------------------------


def compiled(func):
    return tvmtile.compile(func, target="metal", execution_backend="emulator")


@pytest.mark.parametrize(
    ("dtype", "stages", "transpose_a", "transpose_b", "size"),
    [
        ("float16", 2, False, False, 128),
        ("float16", 3, True, False, 128),
        ("bfloat16", 2, False, True, 125),
        ("bfloat16", 3, True, True, 126),
        ("float32", 2, True, True, 128),
        ("float32", 3, False, True, 127),
        ("int8", 2, True, False, 124),
        ("int8", 3, False, False, 128),
    ],
)
def test_one_barrier_an_iteration_of_a_pipelined_product(
    dtype, stages, transpose_a, transpose_b, size
):
    out = "int32" if dtype == "int8" else "float32"

    @TL.prim_func
    def main(
        A: TL.Tensor((size, size), dtype),
        B: TL.Tensor((size, size), dtype),
        C: TL.Tensor((size, size), out),
    ):
        with TL.Kernel(TL.ceildiv(size, 32), TL.ceildiv(size, 32), threads=128) as (bx, by):
            A_shared = TL.alloc_shared((32, 32), dtype)
            B_shared = TL.alloc_shared((32, 32), dtype)
            C_local = TL.alloc_fragment((32, 32), out)
            TL.clear(C_local)
            for k in TL.Pipelined(TL.ceildiv(size, 32), num_stages=stages):
                if transpose_a:
                    TL.copy(A[k * 32, by * 32], A_shared)
                else:
                    TL.copy(A[by * 32, k * 32], A_shared)
                if transpose_b:
                    TL.copy(B[bx * 32, k * 32], B_shared)
                else:
                    TL.copy(B[k * 32, bx * 32], B_shared)
                TL.gemm(
                    A_shared, B_shared, C_local, transpose_A=transpose_a, transpose_B=transpose_b
                )
            TL.copy(C_local, C[by * 32, bx * 32])

    slow = pytest.warns(TileWarning, match="element by element")
    with slow if dtype == "int8" else nullcontext():
        kernel = compiled(main)
    assert kernel.get_kernel_source().count("threadgroup_barrier(") == 1


@pytest.mark.parametrize("causal", [False, True])
def test_one_barrier_an_iteration_of_pipelined_attention(causal):
    func = flash_attention(
        1,
        1,
        256,
        64,
        causal,
        block_M=32,
        block_N=32,
        threads=128,
        stages=2,
        policy=TL.GemmWarpPolicy.FullRow,
        dtype="float16",
    )
    assert compiled(func).get_kernel_source().count("threadgroup_barrier(") == 1
