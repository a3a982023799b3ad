"""Code outside of a kernel."""

from __future__ import annotations

import pytest
from tvm import tirx

import tvmtile.language as T
from tvmtile._tvm import nodes_in
from tvmtile.errors import InvalidValue, NestingError

TENSOR = tirx.decl_buffer((4, 8), "float16")


@pytest.mark.parametrize("threads", [0, -1, [64, 0], (1, 2, 3, 4), [], "32"])
def test_numbers_of_threads(threads):
    with pytest.raises(InvalidValue, match="is no number of threads"):
        T.Kernel(1, threads=threads)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("alloc_global", [(4,), "float32"]),
        ("view", [TENSOR, (8, 4), "uint16"]),
        *[(name, [TENSOR]) for name in ("any_of", "all_of")],
        *[(name, [True]) for name in ("all_sync", "any_sync", "ballot", "ballot_sync")],
        *[(name, [True]) for name in ("syncthreads_and", "syncthreads_count", "syncthreads_or")],
        *[(name, [True]) for name in ("assume", "device_assert")],
        *[(name, [1]) for name in ("match_all_sync", "match_any_sync", "warp_reduce_sum")],
        *[(name, []) for name in ("activemask", "sync_warp")],
    ],
)
def test_what_is_part_of_a_kernel(name, arguments):
    with pytest.raises(NestingError, match=rf"^T\.{name} stands outside T\.Kernel") as caught:
        getattr(T, name)(*arguments)
    assert "move it into the body of `with T.Kernel" in caught.value.help


class Sums:
    def __init__(self):
        self.total, self._new = (T.alloc_fragment((4,), "float32") for _ in range(2))


def test_buffers_are_named_by_what_holds_them():
    @T.prim_func
    def kernel(A: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=32):
            sums, tiles = Sums(), [T.alloc_shared((4,), "float32") for _ in range(2)]
            again = sums  # has them already
            T.copy(A, tiles[1])
            T.copy(tiles[1], again.total)

    names = [node.buffer.name for node in nodes_in(kernel.body, tirx.AllocBuffer)]
    assert names == ["sums_total", "sums_new", "tiles_0", "tiles_1"]
