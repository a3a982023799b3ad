"""Places of shared tiles: an alignment that a tile asks for is kept, whatever lies beside it."""

import pytest
from tvm import tirx
from tvm.script import tirx as T

from tvmtile.passes.memory.shared_memory import (
    LiveTile,
    alignment_of,
    allocated_bytes,
    lifetimes_in,
    most_at_once,
    one_after_the_other,
    packed,
)
from tvmtile.target import gpu, parse

CUDA = gpu(parse({"kind": "cuda", "arch": "sm_90a"}))


def tile(size, alignment=-1):
    return tirx.decl_buffer((size,), "uint8", scope="shared", data_alignment=alignment)


@pytest.mark.parametrize(("asked", "given"), [(-1, 128), (64, 128), (256, 256), (1024, 1024)])
def test_a_tile_has_the_alignment_of_the_target_or_a_larger_one_of_its_own(asked, given):
    assert alignment_of(tile(100, asked), CUDA) == given
    assert allocated_bytes(tile(100, asked), CUDA) == given


def test_tiles_lie_in_the_order_of_the_program_where_none_asks_for_more():
    tiles = [tile(size) for size in (100, 1000, 10)]
    offsets = one_after_the_other(tiles, CUDA)
    assert [offsets[each] for each in tiles] == [0, 128, 1152]


def test_tiles_of_larger_alignment_begin_at_multiples_of_it_without_gaps():
    tiles = [tile(size, asked) for size, asked in [(10, -1), (3000, 1024), (10, -1), (10, 256)]]
    offsets = one_after_the_other(tiles, CUDA)
    assert [offsets[each] for each in tiles] == [3328, 0, 3456, 3072]
    assert sum(allocated_bytes(each, CUDA) for each in tiles) == 3584


def test_a_tile_that_shares_memory_begins_where_it_may():
    large = LiveTile(tile(8192), 8192, 128, 0, first=0, last=1)
    small = LiveTile(tile(128), 128, 128, 0, first=2, last=3)
    swizzled = LiveTile(tile(2048, 1024), 2048, 1024, 0, first=2, last=3)
    (slot,) = packed([large, small, swizzled])
    assert slot.alignment == 1024
    assert slot.offsets == {large: 0, swizzled: 0, small: 2048}
    beside = LiveTile(tile(1024, 1024), 1024, 1024, 0, first=3, last=4)
    assert slot.place_of(beside) == 3072


@T.prim_func(private=True)
def copied_in_a_loop(A: T.Buffer((4, 1024), "uint8"), C: T.Buffer((4, 1024), "uint8")):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            x = T.alloc_buffer((1024,), "uint8", scope="shared.dyn")
            y = T.alloc_buffer((1024,), "uint8", scope="shared.dyn")
            z = T.alloc_buffer((1024,), "uint8", scope="shared.dyn")
            for k in range(4):
                T.tvmtile.copy(A[k, 0:1024], x[0:1024])
                T.tvmtile.copy(x[0:1024], y[0:1024])
                T.tvmtile.copy(y[0:1024], z[0:1024])
                T.tvmtile.copy(z[0:1024], C[k, 0:1024])


@pytest.mark.parametrize(("through_loops", "names"), [(True, "xyz"), (False, "xy")])
def test_a_statement_needs_what_it_reads_and_writes_at_once(through_loops, names):
    tiles = lifetimes_in(copied_in_a_loop.body, CUDA, through_loops=through_loops)
    assert "".join(tile.buffer.name for tile in most_at_once(tiles)) == names


@T.prim_func(private=True)
def with_a_hint(A: T.Buffer((1024,), "uint8"), C: T.Buffer((1024,), "uint8")):
    for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            x = T.alloc_buffer((1024,), "uint8", scope="shared.dyn")
            y = T.alloc_buffer((1024,), "uint8", scope="shared.dyn")
            T.tvmtile.annotate_layout(y)
            T.tvmtile.copy(A[0:1024], x[0:1024])
            T.tvmtile.copy(x[0:1024], C[0:1024])
            T.tvmtile.copy(A[0:1024], y[0:1024])
            T.tvmtile.copy(y[0:1024], C[0:1024])


def test_a_tile_is_not_in_use_where_a_hint_names_it():
    tiles = lifetimes_in(with_a_hint.body, CUDA, through_loops=False)
    assert [tile.buffer.name for tile in most_at_once(tiles)] == ["x"]
