"""InsertBarriers: copies that arrive at a wait, and matrices that a warp loads row by row."""

from __future__ import annotations

import pytest
import torch
from tvm import ir, tirx
from tvm.script import tirx as T
from tvm.target import Target
from tvm_ffi import structural_mutate, structural_walk

from tests.metal.programs import flash_attention, gemm
from tests.passes.gpu.barriers.oracle import (
    NotArrived,
    Oracle,
    RaceFound,
    assert_each_is_needed,
    barriers_in,
    executed,
    with_pass,
)
from tvmtile.errors import DataRace, VerifyError
from tvmtile.ir.asynchronous import signalled, wait, waited
from tvmtile.ir.barriers import is_barrier
from tvmtile.ir.kernels import flattened
from tvmtile.ir.rewriting import seq
from tvmtile.language import GemmWarpPolicy
from tvmtile.pipeline import lowering_passes


def with_barriers(program, arch="sm_80"):
    """A tile program for an NVIDIA GPU after InsertBarriers."""
    mod = ir.IRModule({"main": program.with_attr("global_symbol", "main")})
    for step in lowering_passes(Target({"kind": "cuda", "arch": arch})):
        mod = step(mod)
        if step.info.name == "tvmtile.InsertBarriers":
            break
    return mod["main"]


def product(stages, steps=6, **options):
    return gemm(32, 32, steps * 16, block=(32, 32, 16), threads=64, stages=stages, **options)


def round_of(func):
    """The statements of the pipelined loop."""
    loops = []
    structural_walk(func.body, (tirx.For, loops.append))
    return next(list(flattened(loop.body)) for loop in loops if is_pipelined(loop))


def is_pipelined(loop):
    return waited(next(flattened(loop.body))) is not None


def with_round(func, change):
    """The function with the statements of its pipelined loop changed."""

    def rewrite(loop, mutator):
        if is_pipelined(loop):
            fields = (loop.loop_var, loop.min, loop.extent, loop.kind)
            return tirx.For(*fields, seq(change(list(flattened(loop.body)))))
        return mutator.default_mutate(loop)

    return func.with_body(structural_mutate(func.body, [(tirx.For, rewrite)]))


@pytest.mark.parametrize("stages", [2, 3, 4, 5])
def test_a_round_of_a_gemm_has_one_barrier_between_the_wait_and_the_next_copy(stages):
    func = with_barriers(product(stages))
    first, second, third, fourth, *rest = round_of(func)
    assert waited(first).behind == stages - 2
    assert is_barrier(second)
    assert isinstance(third, tirx.IfThenElse)  # the copy, where there is an iteration to copy for
    assert signalled(fourth)
    assert not any(map(is_barrier, rest))
    assert len(barriers_in(func)) == 1
    assert executed(func) == 6


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("steps", [1, 2])
def test_what_is_copied_before_a_loop_may_arrive_in_it(stages, steps):
    func = with_barriers(product(stages, steps))
    assert executed(func) == steps
    assert_each_is_needed(func)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_each_barrier_of_a_gemm_is_needed(stages):
    assert_each_is_needed(with_barriers(product(stages)))


def without_barrier(statements):
    return [stmt for stmt in statements if not is_barrier(stmt)]


def barrier_at_the_end(statements):
    wait, barrier, *others = statements
    return [wait, *others, barrier]


def barrier_before_the_wait(statements):
    wait, barrier, *others = statements
    return [barrier, wait, *others]


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("change", [without_barrier, barrier_at_the_end, barrier_before_the_wait])
def test_a_barrier_at_another_place_does_not_do(stages, change):
    func = with_barriers(product(stages))
    with pytest.raises(RaceFound):
        Oracle(with_round(func, change)).run()
    # The pass sees what is missing too: it adds the barrier again.
    bare = with_round(func, lambda statements: without_barrier(change(statements)))
    assert executed(with_pass(bare)) == 6


def wait_at_the_end(statements):
    wait, *others = statements
    return [*others, wait]


def one_more_in_flight(statements):
    first, *others = statements
    awaited = waited(first)
    return [wait(awaited.token, awaited.behind + 1), *others]


def without_commits(statements):
    return [stmt for stmt in statements if not signalled(stmt)]


@pytest.mark.parametrize("stages", [2, 3, 4])
@pytest.mark.parametrize("change", [one_more_in_flight, wait_at_the_end, without_commits])
def test_what_has_not_arrived_is_not_read(stages, change):
    func = with_round(with_barriers(product(stages)), change)
    with pytest.raises((NotArrived, RaceFound)):
        Oracle(func).run()
    if change is wait_at_the_end:  # right for the analysis of barriers if it comes with one
        return
    with pytest.raises(VerifyError, match="before the asynchronous copy into them is waited for"):
        with_pass(with_round(func, without_barrier))


@pytest.mark.parametrize("extents", [(32, 32, 96), (30, 28, 88), (30, 30, 90)])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_ragged_products_have_no_race(extents, stages):
    program = gemm(*extents, block=(32, 32, 16), threads=64, stages=stages)
    func = with_barriers(program)
    assert executed(func) == 6
    assert len(barriers_in(func)) == 1


def test_a_round_of_attention_has_one_barrier():
    program = flash_attention(
        1,
        1,
        96,
        16,
        False,
        block_M=32,
        block_N=32,
        threads=64,
        stages=2,
        policy=GemmWarpPolicy.FullRow,
        dtype="float16",
    )
    func = with_barriers(program)
    statements = round_of(func)
    assert sum(map(is_barrier, statements)) == 1
    assert is_barrier(statements[1])


def matrices(shift):
    """Each warp loads a matrix of its own, or that of the other one."""

    @T.prim_func
    def main(C: T.Buffer((64,), "uint32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((64, 8), "float16", scope="shared")
                r = T.alloc_buffer((4,), "uint32", scope="local")
                for i in range(8):
                    S[tx, i] = T.float16(0)
                T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"](
                    r[0], r[1], r[2], r[3], T.address_of(S[(tx + shift) % 64, 0])
                )
                C[tx] = r[0]

    return main


@pytest.mark.parametrize(("shift", "scope"), [(0, "warp"), (32, "shared"), (8, "shared")])
def test_a_warp_reads_all_rows_that_its_lanes_name(shift, scope):
    (barrier,) = barriers_in(with_pass(matrices(shift)))
    assert barrier.value.args[0].value == scope


def test_a_row_is_sixteen_bytes():
    @T.prim_func
    def main(A: T.Buffer((64, 8), "float16"), C: T.Buffer((64,), "float16")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((64, 16), "float16", scope="shared")
                T.ptx["cp.async.cg.shared.global"](
                    T.address_of(S[tx, 0]), T.address_of(A[tx, 0]), 16
                )
                T.ptx["cp.async.commit_group"]()
                S[63 - tx, 8] = T.float16(1)  # behind what is copied
                T.ptx["cp.async.wait_group"](0)
                C[tx] = S[tx, 0]

    assert not barriers_in(with_pass(main))


@pytest.mark.parametrize(
    ("columns", "first", "barriers"), [(8, 0, 0), (4, 0, 1), (12, 0, 0), (12, 8, 1)]
)
def test_a_row_of_sixteen_bytes_may_go_on_in_the_next_one_of_a_tile(columns, first, barriers):
    @T.prim_func
    def main(A: T.Buffer((64, 8), "float16"), C: T.Buffer((64,), "float16")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((64, columns), "float16", scope="shared")
                S[tx, 0] = T.float16(1)
                if tx == 0:
                    T.ptx["cp.async.cg.shared.global"](
                        T.address_of(S[0, first]), T.address_of(A[0, 0]), 16
                    )
                    T.ptx["cp.async.commit_group"]()
                    T.ptx["cp.async.wait_group"](0)
                C[tx] = T.float16(0)

    assert len(barriers_in(with_pass(main))) == barriers


def test_a_tensor_that_is_copied_from_is_not_written():
    @T.prim_func
    def main(A: T.Buffer((64, 8), "float16"), C: T.Buffer((64,), "float16")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((64, 8), "float16", scope="shared")
                if A[0, 0] > T.float16(0):  # the same for all threads, since nobody writes it
                    T.ptx["cp.async.cg.shared.global"](
                        T.address_of(S[tx, 0]), T.address_of(A[tx, 0]), 16
                    )
                    T.ptx["cp.async.commit_group"]()
                    T.ptx["cp.async.wait_group"](0)
                    C[tx] = S[63 - tx, 0]

    assert len(barriers_in(with_pass(main))) == 1


def test_an_issue_waits_for_those_who_still_read():
    @T.prim_func
    def main(A: T.Buffer((64, 8), "float16"), C: T.Buffer((64,), "float16")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((64, 8), "float16", scope="shared")
                for k in range(4):
                    T.ptx["cp.async.cg.shared.global"](
                        T.address_of(S[tx, 0]), T.address_of(A[tx, 0]), 16
                    )
                    T.ptx["cp.async.commit_group"]()
                    T.ptx["cp.async.wait_group"](0)
                    C[tx] = S[63 - tx, 0]

    func = with_pass(main)
    assert executed(func) == 8
    assert_each_is_needed(func)


def test_a_read_before_the_wait_is_an_error():
    @T.prim_func
    def main(A: T.Buffer((64, 8), "float16"), C: T.Buffer((64,), "float16")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((64, 8), "float16", scope="shared")
                T.ptx["cp.async.cg.shared.global"](
                    T.address_of(S[tx, 0]), T.address_of(A[tx, 0]), 16
                )
                T.ptx["cp.async.commit_group"]()
                C[tx] = S[tx, 0]

    with pytest.raises(DataRace, match="S\\[64, 8\\] float16 are read before"):
        with_pass(main)


# Where it is not known which elements are in flight --------------------------------------------------


def waits_in(func):
    return [stmt for stmt in statements_in(func) if waited(stmt) is not None]


def statements_in(func):
    found = []
    structural_walk(func.body, (tirx.Evaluate, found.append))
    return found


@T.prim_func
def read_by_an_index_of_data(
    A: T.Buffer((64, 8), "float16"), B: T.Buffer((64,), "int32"), C: T.Buffer((64,), "float16")
):
    for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
        for tx in T.thread_binding(64, "threadIdx.x"):
            S = T.alloc_buffer((64, 8), "float16", scope="shared")
            T.ptx["cp.async.cg.shared.global"](T.address_of(S[tx, 0]), T.address_of(A[tx, 0]), 16)
            T.ptx["cp.async.commit_group"]()
            C[tx] = S[B[tx], 0]


@T.prim_func
def read_through_a_shifted_view(A: T.Buffer((64, 8), "float16"), C: T.Buffer((64,), "float16")):
    for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
        for tx in T.thread_binding(64, "threadIdx.x"):
            S = T.alloc_buffer((128, 8), "float16", scope="shared")
            V = T.decl_buffer(
                (64, 8), "float16", scope="shared", data=T.address_of(S[64, 0]), elem_offset=0
            )
            T.ptx["cp.async.cg.shared.global"](T.address_of(S[tx, 0]), T.address_of(A[tx, 0]), 16)
            T.ptx["cp.async.commit_group"]()
            C[tx] = V[tx, 0]


@T.prim_func
def read_where_data_says_so(
    A: T.Buffer((64, 8), "float16"), B: T.Buffer((1,), "int32"), C: T.Buffer((64,), "float16")
):
    for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
        for tx in T.thread_binding(64, "threadIdx.x"):
            S = T.alloc_buffer((64, 8), "float16", scope="shared")
            T.ptx["cp.async.cg.shared.global"](T.address_of(S[tx, 0]), T.address_of(A[tx, 0]), 16)
            T.ptx["cp.async.commit_group"]()
            if B[0] > 0:
                C[tx] = S[tx, 0]


@pytest.mark.parametrize(
    "program", [read_by_an_index_of_data, read_through_a_shifted_view, read_where_data_says_so]
)
def test_what_may_be_in_flight_is_waited_for(program):
    """In front of the barrier, which other threads' copies need too."""
    func = with_pass(program)
    assert len(waits_in(func)) == len(barriers_in(func)) == 1
    statements = statements_in(func)
    position = statements.index(waits_in(func)[0])
    assert waited(statements[position]).behind == 0
    assert signalled(statements[position - 1])
    assert is_barrier(statements[position + 1])


def test_the_oracle_sees_what_arrives_at_an_inserted_wait():
    places = torch.arange(64, dtype=torch.int32).flip(0)
    arguments = (torch.zeros(64, 8), places, torch.zeros(64))
    with pytest.raises(NotArrived):
        Oracle(read_by_an_index_of_data, arguments=arguments).run()
    Oracle(with_pass(read_by_an_index_of_data), arguments=arguments).run()


def test_a_wait_is_inserted_only_where_elements_are_not_known():
    @T.prim_func
    def main(
        A: T.Buffer((64, 8), "float16"), B: T.Buffer((64,), "int32"), C: T.Buffer((64,), "float16")
    ):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((2, 64, 8), "float16", scope="shared")
                for k in range(8):
                    T.ptx["cp.async.cg.shared.global"](
                        T.address_of(S[k % 2, tx, 0]), T.address_of(A[tx, 0]), 16
                    )
                    T.ptx["cp.async.commit_group"]()
                    T.ptx["cp.async.wait_group"](1)
                    C[tx] = S[(k + 1) % 2, B[tx], 0]
                T.ptx["cp.async.wait_group"](0)

    func = with_pass(main)
    assert [waited(stmt).behind for stmt in waits_in(func)] == [1, 0]


def in_pieces(count):
    """Some threads copy two pieces each, in a loop; of more than two some are copied twice."""

    @T.prim_func
    def main(A: T.Buffer((64, 4), "float32"), C: T.Buffer((64,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((64, 4), "float32", scope="shared")
                for i in range(2):
                    if i * 32 + tx // 2 < 40:
                        for piece in range(count):
                            T.ptx["cp.async.ca.shared.global"](
                                T.address_of(S[i * 32 + tx // 2, tx % 2 * 2 + piece % 2]),
                                T.address_of(A[i * 32 + tx // 2, tx % 2 * 2 + piece % 2]),
                                4,
                            )
                T.ptx["cp.async.commit_group"]()
                T.ptx["cp.async.wait_group"](0)
                C[tx] = S[63 - tx, 0]

    return main


def test_a_thread_takes_the_iterations_of_a_divergent_loop_in_their_order():
    """So what it copies in one iteration is not copied again in the next one."""
    func = with_pass(in_pieces(2))
    assert executed(func) == 1
    assert_each_is_needed(func)
    with pytest.raises(DataRace, match="written before the asynchronous copy into them"):
        with_pass(in_pieces(3))


def test_a_tensor_is_not_written_while_copies_still_read_it():
    @T.prim_func
    def main(A: T.Buffer((64, 8), "float16"), C: T.Buffer((64,), "float16")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((64, 8), "float16", scope="shared")
                T.ptx["cp.async.cg.shared.global"](
                    T.address_of(S[tx, 0]), T.address_of(A[tx, 0]), 16
                )
                T.ptx["cp.async.commit_group"]()
                A[tx, 0] = C[tx]
                T.ptx["cp.async.wait_group"](0)
                C[tx] = S[tx, 0]

    with pytest.raises(DataRace, match="A\\[64, 8\\] float16 are written before"):
        with_pass(main)


def test_a_block_of_one_thread_waits_for_its_copies_too():
    @T.prim_func
    def main(
        A: T.Buffer((8,), "float16"), B: T.Buffer((1,), "int32"), C: T.Buffer((1,), "float16")
    ):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(1, "threadIdx.x"):
                S = T.alloc_buffer((8,), "float16", scope="shared")
                T.ptx["cp.async.cg.shared.global"](T.address_of(S[0]), T.address_of(A[0]), 16)
                T.ptx["cp.async.commit_group"]()
                C[0] = S[B[0]]

    assert len(waits_in(with_pass(main))) == 1
