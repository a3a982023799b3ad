"""InsertBarriers in regions of groups of threads: whose barriers stand where, and by which number."""

from __future__ import annotations

import pytest
import tvm
from tvm import ir, tirx
from tvm.script import tirx as T
from tvm.tirx.script import builder

from tests.passes.gpu.barriers.oracle import with_pass
from tvmtile._tvm import mapped, walk
from tvmtile.errors import DataRace, NestingError
from tvmtile.ir.annotations import APART, ARRIVE_COUNT, BARRIER_ID
from tvmtile.ir.barriers import is_barrier
from tvmtile.ir.rewriting import seq
from tvmtile.ir.threads import Group, group_region
from tvmtile.passes.gpu.barriers.groups import NamedBarriers

METAL = tvm.target.Target("metal")


def barriers_of(func):
    """The scope of each barrier, its number, and the threads that come; None where it says none."""
    found = []

    def note(node):
        if is_barrier(node):
            attrs = dict((node.value.attrs or {}).items())
            number, count = (attrs.get(key) for key in (BARRIER_ID, ARRIVE_COUNT))
            scope = str(node.value.args[0].value)
            found.append((scope, *(None if x is None else int(x) for x in (number, count))))

    walk(func.body, (tirx.Evaluate, note), order="pre")
    return found


def barrier(number, count):
    """A barrier of the user's."""
    sync = builder.tvm_storage_sync("shared")
    attrs = {BARRIER_ID: number, ARRIVE_COUNT: count}
    return ir.Call(sync.op, sync.args, attrs, ret_ty=sync.ty)


def regions_left(func):
    return "tvmtile.group" in func.script()


def exchange(first, count, threads):
    """Some threads of a block write a tile, and read what others of them have written."""

    @T.prim_func
    def main(A: T.Buffer((256,), "float32"), C: T.Buffer((256,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(threads, "threadIdx.x"):
                S = T.alloc_buffer((256,), "float32", scope="shared")
                if tx >= first and tx < first + count:
                    with T.attr(first, "tvmtile.group", count):
                        S[tx] = A[tx]
                        C[tx] = S[2 * first + count - 1 - tx]

    return main


def test_a_group_has_a_barrier_of_its_own():
    func = with_pass(exchange(64, 128, 256))
    assert barriers_of(func) == [("shared", 1, 128)]
    assert not regions_left(func)


@pytest.mark.parametrize("target", [None, METAL])
def test_a_warp_waits_as_one(target):
    program = exchange(32, 32, 128)
    if target is not None:
        program = program.with_attr("target", target)
    assert barriers_of(with_pass(program)) == [("warp", None, None)]


def test_two_warps_of_a_target_without_named_barriers():
    program = exchange(0, 64, 128).with_attr("target", METAL)
    with pytest.raises(NestingError, match="threads 0 to 63 of the block have to wait") as error:
        with_pass(program)
    assert "no barrier for some of a block's threads" in str(error.value)


def test_each_group_has_a_number_that_the_user_has_not_taken():
    taken = barrier(1, 128)

    @T.prim_func
    def main(A: T.Buffer((256,), "float32"), C: T.Buffer((256,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(256, "threadIdx.x"):
                S = T.alloc_buffer((256,), "float32", scope="shared")
                if tx < 128:
                    with T.attr(0, "tvmtile.group", 128):
                        S[tx] = A[tx]
                        C[tx] = S[127 - tx]
                        T.evaluate(taken)
                        S[tx] = A[tx] + T.float32(1)
                if tx >= 128:
                    with T.attr(128, "tvmtile.group", 128):
                        S[tx] = A[tx]
                        C[tx] = S[383 - tx]

    assert barriers_of(with_pass(main)) == [
        ("shared", 2, 128),
        ("shared", 1, 128),
        ("shared", 3, 128),
    ]


def test_a_number_that_depends_on_the_iteration():
    """Of `1 + k % 3` it is known which barriers it may be; of a size, that it may be any."""
    k, size = tirx.Var("k", "int32"), tirx.Var("n", "int32")
    for number, own in [(1 + k % 3, 4), (k % 3 + 3, 1), (size, None)]:
        named = NamedBarriers(tirx.Evaluate(barrier(number, 128)), 16)
        if own is None:
            with pytest.raises(NestingError, match="all 16 barriers of a block are taken"):
                named.wait(Group(0, 64))
        else:
            attrs = named.wait(Group(0, 64)).value.attrs
            assert (int(attrs[BARRIER_ID]), int(attrs[ARRIVE_COUNT])) == (own, 64)


def test_regions_exchange_over_a_barrier_of_the_block():
    @T.prim_func
    def main(A: T.Buffer((4, 128), "float32"), C: T.Buffer((4, 128), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(256, "threadIdx.x"):
                S = T.alloc_buffer((128,), "float32", scope="shared")
                for k in range(4):
                    if tx < 128:
                        with T.attr(0, "tvmtile.group", 128):
                            S[tx] = A[k, tx]
                    if tx >= 128:
                        with T.attr(128, "tvmtile.group", 128):
                            C[k, tx - 128] = S[tx - 128]

    @T.prim_func
    def expected(A: T.Buffer((4, 128), "float32"), C: T.Buffer((4, 128), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(256, "threadIdx.x"):
                S = T.alloc_buffer((128,), "float32", scope="shared")
                for k in range(4):
                    T.tvm_storage_sync("shared")
                    if tx < 128:
                        S[tx] = A[k, tx]
                    T.tvm_storage_sync("shared")
                    if tx >= 128:
                        C[k, tx - 128] = S[tx - 128]

    func = with_pass(main)
    tvm.ir.assert_structural_equal(func, expected.with_attr(dict(func.attrs)))


def test_a_barrier_of_the_block_serves_a_group():
    """What a group exchanges between two regions needs none of its own where the block waits anyway."""

    @T.prim_func
    def main(A: T.Buffer((256,), "float32"), C: T.Buffer((256,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(256, "threadIdx.x"):
                S = T.alloc_buffer((256,), "float32", scope="shared")
                if tx < 128:
                    with T.attr(0, "tvmtile.group", 128):
                        S[tx] = A[tx]
                if tx >= 128:
                    with T.attr(128, "tvmtile.group", 128):
                        S[tx] = S[tx - 128]
                if tx < 128:
                    with T.attr(0, "tvmtile.group", 128):
                        C[tx] = S[127 - tx]

    assert barriers_of(with_pass(main)) == [("shared", None, None)]


def test_a_group_waits_between_its_regions_in_a_loop():
    @T.prim_func
    def main(A: T.Buffer((4, 128), "float32"), C: T.Buffer((4, 128), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(256, "threadIdx.x"):
                S = T.alloc_buffer((128,), "float32", scope="shared")
                for k in range(4):
                    if tx < 128:
                        with T.attr(0, "tvmtile.group", 128):
                            S[tx] = A[k, tx]
                    if tx < 128:
                        with T.attr(0, "tvmtile.group", 128):
                            C[k, tx] = S[127 - tx]

    assert barriers_of(with_pass(main)) == [("shared", 1, 128)] * 2


def test_a_region_in_a_region_and_what_is_around_it():
    @T.prim_func
    def main(A: T.Buffer((256,), "float32"), C: T.Buffer((256,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(384, "threadIdx.x"):
                S = T.alloc_buffer((256,), "float32", scope="shared")
                if tx < 256:
                    with T.attr(0, "tvmtile.group", 256):
                        S[tx] = A[tx]
                        if tx >= 128:
                            with T.attr(128, "tvmtile.group", 128):
                                S[tx] = S[tx - 128]
                                C[tx] = S[383 - tx]
                        C[255 - tx] = C[255 - tx] + S[tx]

    # the whole waits before the half reads what it wrote, the half before it reads what it wrote
    assert barriers_of(with_pass(main)) == [
        ("shared", 1, 256),
        ("shared", 2, 128),
        ("shared", 1, 256),
    ]


def test_a_loop_is_uniform_for_the_group_that_counts_it():
    """A variable that one group alone changes has one value for its threads."""

    @T.prim_func
    def main(A: T.Buffer((64,), "int32"), C: T.Buffer((64,), "int32"), n: T.int32):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(128, "threadIdx.x"):
                S = T.alloc_buffer((64,), "int32", scope="shared")
                left = T.alloc_buffer((1,), "int32", scope="local")
                left[0] = 0
                if tx < 64:
                    with T.attr(0, "tvmtile.group", 64):
                        left[0] = n
                        while left[0] > 0:
                            S[tx] = A[tx]
                            C[tx] = S[63 - tx]
                            left[0] = left[0] - 1

    assert barriers_of(with_pass(main)) == [("shared", 1, 64)] * 2


def producing(arrive, wait):
    """A group writes what another one reads at the same time, in two cases of a branch."""
    arriving, waiting = barrier(1, arrive), barrier(1, wait)

    @T.prim_func
    def main(A: T.Buffer((32,), "float32"), C: T.Buffer((32,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(64, "threadIdx.x"):
                S = T.alloc_buffer((32,), "float32", scope="shared")
                if tx < 32:
                    with T.attr(0, "tvmtile.group", 32):
                        S[tx] = A[tx]
                        T.evaluate(arriving)
                else:
                    with T.attr(32, "tvmtile.group", 32):
                        T.evaluate(waiting)
                        C[tx - 32] = S[tx - 32]

    return main


def test_barriers_of_the_user_order_groups_that_run_at_the_same_time():
    func = with_pass(producing(64, 64))
    assert barriers_of(func) == [("shared", 1, 64)] * 2


@pytest.mark.parametrize(("arrive", "wait"), [(32, 64), (64, 32), (32, 32)])
def test_nothing_orders_groups_that_do_not_both_come_to_a_barrier(arrive, wait):
    with pytest.raises(DataRace, match="which run at the same time: no barrier can stand between"):
        with_pass(producing(arrive, wait))


def groups_of_two_warps(count):
    """As many groups as one likes, each of which exchanges elements."""

    @T.prim_func
    def main(S: T.Buffer((1024,), "float32"), C: T.Buffer((1024,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(1024, "threadIdx.x"):
                T.evaluate(tx)

    tile = tirx.decl_buffer((1024,), "float32", name="tile", scope="shared")

    def regions(node):
        tx, (A, C) = node.value, main.params
        found = []
        for first in range(0, 64 * count, 64):
            write = tirx.BufferStore(tile, tirx.BufferLoad(A, [tx]), [tx])
            read = tirx.BufferStore(C, tirx.BufferLoad(tile, [2 * first + 63 - tx]), [tx])
            region = group_region(Group(first, 64), tirx.SeqStmt([write, read]))
            found.append(tirx.IfThenElse(tirx.all(tx >= first, tx < first + 64), region, None))
        return tirx.SeqStmt([tirx.AllocBuffer(tile), *found])

    return main.with_body(mapped(main.body, (tirx.Evaluate, regions)))


def test_more_groups_than_barriers():
    """One of the sixteen is that of the block."""
    assert len(set(barriers_of(with_pass(groups_of_two_warps(15))))) == 15
    with pytest.raises(NestingError, match="all 16 barriers of a block are taken"):
        with_pass(groups_of_two_warps(16))


# Warpgroups that wait apart ----------------------------------------------------------------------


def apart():
    """A barrier at which each warpgroup waits for itself."""
    sync = builder.tvm_storage_sync("shared")
    return ir.Call(sync.op, sync.args, {ARRIVE_COUNT: 128, APART: True}, ret_ty=sync.ty)


def reversed_in(count, *, taken=()):
    """Threads exchange elements with others of their run of `count`, by barriers of warpgroups."""
    wait = apart()

    @T.prim_func
    def main(A: T.Buffer((384,), "float32"), C: T.Buffer((384,), "float32")):
        for bx in T.thread_binding(1, "blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(384, "threadIdx.x"):
                S = T.alloc_buffer((384,), "float32", scope="shared")
                if tx < 256:
                    with T.attr(0, "tvmtile.group", 256):
                        S[tx] = A[tx]
                        T.evaluate(wait)
                        C[tx] = S[tx // count * count + count - 1 - tx % count]

    def with_others(region):
        others = [tirx.Evaluate(barrier(number, 64)) for number in taken]
        return tirx.AttrStmt(
            region.node, region.attr_key, region.value, seq([*others, region.body])
        )

    return main.with_body(mapped(main.body, (tirx.AttrStmt, with_others)))


def numbers_of(func):
    found = []

    def note(node):
        if is_barrier(node):
            attrs = dict((node.value.attrs or {}).items())
            found.append((str(attrs.get(BARRIER_ID)), int(attrs.get(ARRIVE_COUNT, 0))))

    walk(func.body, (tirx.Evaluate, note), order="pre")
    return found


def test_each_warpgroup_has_a_number():
    assert numbers_of(with_pass(reversed_in(128))) == [("1 + tx // 128 % 2", 128)]


def test_a_barrier_of_warpgroups_does_not_order_what_they_exchange():
    assert numbers_of(with_pass(reversed_in(256))) == [("1 + tx // 128 % 2", 128), ("3", 256)]


def test_warpgroups_wait_together_where_numbers_are_taken():
    """One is left, which both take."""
    taken = range(1, 15)
    assert (numbers_of(with_pass(reversed_in(128, taken=taken)))[-1]) == ("15", 256)
