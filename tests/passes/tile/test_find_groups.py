"""FindGroups: which branches are regions of groups, and which work may not stand in a branch."""

from __future__ import annotations

import linecache

import pytest
import tvm
from tvm import ir, tirx
from tvm.script import tirx as TS

import tvmtile.language as T
from tvmtile._tvm import mutated
from tvmtile.errors import NestingError
from tvmtile.ir.threads import Group, Regions
from tvmtile.passes import FindGroups, LowerExits


def found(program):
    """The program after the pass."""
    mod = ir.IRModule({"main": program.with_attr("global_symbol", "main")})
    return FindGroups(LowerExits(mod))["main"]


def groups_of(program):
    """The group that does each operator on tiles and each T.Parallel, in their order."""
    regions = Regions()
    groups = []

    def note(node, mutator):
        is_loop = isinstance(node, tirx.For)
        if (is_loop and node.kind == tirx.ForKind.PARALLEL) or (
            not is_loop and isinstance(node.value, ir.Call)
        ):
            groups.append(regions.group)
        return mutator.default_mutate(node)

    visits = (tirx.AttrStmt, regions.visit), ((tirx.For, tirx.Evaluate), note)
    mutated(found(program).body, *visits)
    return groups


def under(condition, threads=256):
    """A kernel that clears a tile where a condition on its thread index and a size holds."""

    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32"), n: T.int32):
        with T.Kernel(1, threads=threads):
            tx = T.get_thread_binding()
            if condition(tx, n):
                T.clear(A)

    return program


CONDITIONS = {
    "below": (lambda tx, n: tx < 128, Group(0, 128)),
    "from_on": (lambda tx, n: tx >= 32, Group(32, 224)),
    "a_warp": (lambda tx, n: tx // 32 == 3, Group(96, 32)),
    "between": (lambda tx, n: T.And(tx >= 64, tx < 96), Group(64, 32)),
    "not_below": (lambda tx, n: T.Not(tx < 192), Group(192, 64)),
    "by_bits": (lambda tx, n: tx & 128 == 0, Group(0, 128)),
    "by_warp": (lambda tx, n: T.get_warp_idx() == 2, Group(64, 32)),
    "a_size_too": (lambda tx, n: T.And(n > 3, tx < 128), Group(0, 128)),
    "all": (lambda tx, n: tx >= 0, None),
    "a_size": (lambda tx, n: n > 3, None),
}


@pytest.mark.parametrize("case", CONDITIONS)
def test_a_condition_names_whole_warps(case):
    condition, group = CONDITIONS[case]
    assert groups_of(under(condition)) == [group]


@pytest.mark.parametrize("numbers", [(0,), (1,), (1, 2), (2, 0, 1)])
def test_warpgroups_by_number(numbers):
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=512):
            with T.ws(*numbers):
                T.clear(A)

    assert groups_of(program) == [Group(128 * min(numbers), 128 * len(numbers))]


def test_the_cases_of_a_branch_are_groups_of_their_own():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=(64, 6)):
            warp = T.get_warp_idx()
            if warp < 4:
                T.clear(A)
            elif warp == 4:
                for i in T.Parallel(64):
                    A[i, 0] = 1
                if T.get_thread_binding(1) == 2:
                    T.fill(A, 2)
            else:
                with T.ws(1):
                    T.fill(A, 3)
                if warp > 5:
                    T.fill(A, 4)

    wanted = [Group(0, 128), Group(128, 32), Group(128, 32), Group(160, 96), Group(192, 192)]
    assert groups_of(program) == wanted


def test_a_region_in_a_region():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=384):
            with T.ws(0, 1):
                T.clear(A)
                for k in range(4):
                    with T.ws(1):
                        T.fill(A, k)
                        if T.get_thread_binding() < 192:
                            T.fill(A, 5)
            with T.ws(2):
                T.fill(A, 6)

    assert groups_of(program) == [
        Group(0, 256),
        Group(128, 128),
        Group(128, 64),
        Group(256, 128),
    ]


def test_threads_that_return_do_not_do_what_follows():
    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=256):
            if T.get_thread_binding() >= 64:
                T.thread_return()
            T.clear(A)

    assert groups_of(program) == [Group(0, 64)]


def test_what_nobody_comes_to_is_left_out():
    assert groups_of(under(lambda tx, n: tx >= 256)) == []


def test_a_branch_of_few_threads_without_shared_work_stays():
    @TS.prim_func
    def program(A: TS.Buffer((256,), "float32"), n: TS.int32):
        for bx in TS.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in TS.thread_binding(256, thread="threadIdx.x"):
                own = TS.alloc_buffer((4,), "float32", scope="local")
                if tx < 3 and n > 0:
                    TS.tile.fill(own[0:4], TS.float32(0))
                    A[tx] = own[0]
                if A[tx] > TS.float32(0):
                    A[tx] = TS.float32(1)

    after = found(program)
    tvm.ir.assert_structural_equal(after, program.with_attr("global_symbol", "main"))


# Errors -------------------------------------------------------------------------------------------


def refused(program):
    with pytest.raises(NestingError) as error:
        found(program)
    location = error.value.location
    assert "# here" in linecache.getline(location.file, location.line)
    return str(error.value)


PARTIAL = {
    "some_of_a_warp": (lambda tx: tx < 3, "threads 0 to 2 of 256"),
    "one": (lambda tx: tx == 5, "threads 5 of 256"),
    "a_warp_and_a_half": (lambda tx: tx < 48, "threads 0 to 47 of 256"),
    "warps_apart": (
        lambda tx: tx // 32 % 2 == 0,
        "threads 0 to 31, 64 to 95, 128 to 159, ... of 256",
    ),
}


@pytest.mark.parametrize("case", PARTIAL)
def test_work_of_what_is_no_range_of_warps(case):
    condition, listed = PARTIAL[case]

    @T.prim_func
    def program(A: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=256):
            if condition(T.get_thread_binding()):
                T.clear(A)  # here

    message = refused(program)
    assert f"T.fill stands where {listed} come, which are no whole warps" in message
    assert "help: the work is shared out over warps of 32 threads" in message


def test_work_under_a_condition_on_what_a_thread_reads():
    @T.prim_func
    def program(A: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding()
            if A[tx] > 0:
                for i in T.Parallel(256):
                    A[i] = 1  # here

    message = refused(program)
    assert "T.Parallel stands where some threads of the block come and others don't" in message
    assert "make it a condition on T.get_thread_binding()" in message


def test_work_in_a_loop_that_some_threads_leave():
    @T.prim_func
    def program(A: T.Tensor((256,), "float32")):
        with T.Kernel(1, threads=256):
            for _ in T.serial(T.get_thread_binding()):
                T.clear(A)  # here

    assert "T.fill stands where some threads of the block come" in refused(program)


def test_the_other_case_of_a_condition_on_more_than_the_thread():
    @T.prim_func
    def program(A: T.Tensor((256,), "float32"), n: T.int32):
        with T.Kernel(1, threads=256):
            if T.And(T.get_thread_binding() < 128, n > 3):
                A[0] = 1
            else:
                T.clear(A)  # here

    assert "T.fill stands where some threads of the block come" in refused(program)


@pytest.mark.parametrize("name", ["sync_grid", "syncthreads_count"])
def test_what_all_threads_of_a_block_do(name):
    @T.prim_func
    def program(A: T.Tensor((256,), "int32")):
        with T.Kernel(1, threads=256):
            with T.ws(0):
                if name == "sync_grid":
                    T.sync_grid()  # here
                else:
                    A[0] = T.syncthreads_count(A[T.get_thread_binding()] > 0)  # here

    assert f"T.{name}" in (message := refused(program))
    assert "stands where some threads of the block come and others don't" in message
    assert "all threads of the block have to come" in message
