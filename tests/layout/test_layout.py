"""User layouts: what they say, and that a CPU's results do not depend on them."""

from __future__ import annotations

import pytest
import torch
from tvm.ir import assert_structural_equal
from tvm.script import from_source

import tvmtile
import tvmtile.language as T
from tests.running import runnable
from tvmtile.layout import (
    Swizzle,
    make_full_bank_swizzled_layout,
    make_half_bank_swizzled_layout,
    make_linear_layout,
    make_quarter_bank_swizzled_layout,
    make_swizzled_layout,
)


def places(layout, *indices):
    return [int(i) for i in layout.index_map.map_indices(indices)]


def test_a_layout_maps_indices_to_places():
    assert places(T.Layout((4, 8), lambda i, j: (j, i)), 1, 5) == [5, 1]
    assert places(T.Layout((4, 8), lambda i, j: i * 8 + j), 1, 5) == [13]
    assert places(T.Layout((4, 8), lambda *indices: indices), 1, 5) == [1, 5]


def test_a_fragment_maps_indices_to_thread_and_register():
    both = T.Fragment((8, 8), forward_fn=lambda i, j: (i * 4 + j // 2, j % 2))
    parts = T.Fragment(
        (8, 8),
        forward_thread_fn=lambda i, j: i * 4 + j // 2,
        forward_index_fn=lambda i, j: j % 2,
    )
    assert places(both, 3, 5) == places(parts, 3, 5) == [14, 1]


def test_a_replicated_fragment_takes_the_number_of_the_copy():
    row = T.Fragment((8,), forward_fn=lambda i, copy: (i * 4 + copy, 0), replicate=4)
    assert places(row, 2, 3) == [11, 0]


@pytest.mark.full(but=2)
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (make_swizzled_layout, "auto"),
        (make_full_bank_swizzled_layout, "full"),
        (make_half_bank_swizzled_layout, "half"),
        (make_quarter_bank_swizzled_layout, "quarter"),
        (make_linear_layout, "linear"),
        (lambda tile: T.Layout(tile.shape, lambda i, j: (j, i)), None),
    ],
)
def test_layouts_travel_in_the_program_and_change_no_result(make, kind):
    @T.prim_func
    def main(A: T.Tensor((16, 16), "float32"), B: T.Tensor((16, 16), "float32")):
        with T.Kernel(1) as _:
            tile = T.alloc_shared((16, 16), "float32")
            T.annotate_layout({tile: make(tile)})
            T.copy(A, tile)
            T.copy(tile, B)

    if kind is not None:
        assert make(None) == Swizzle(kind)
        assert f'"{kind}"' in main.script()
    assert_structural_equal(from_source(main.script()), main)
    a, b = torch.randn(16, 16), torch.empty(16, 16)
    tvmtile.compile(main)(a, b)
    assert torch.equal(a, b)


def test_layouts_say_what_they_are():
    swizzled = T.Layout((8, 16), lambda i, j: (i, j ^ (i // 4 * 8)))
    assert repr(swizzled) == "Layout((8, 16), (i0, i1) -> (i0, i1 ^ i0 // 4 * 8))"
    fragment = T.Fragment((8, 8), lambda i, j: (i * 4 + j // 2, j % 2))
    assert repr(fragment) == "Fragment((8, 8), (i0, i1) -> (i0 * 4 + i1 // 2, i1 % 2))"
    assert repr(T.Layout((4,), lambda i: 3 - i)) == "Layout((4,), (i0) -> (3 - i0,))"


@pytest.mark.full(but=1)
@pytest.mark.parametrize("target", ["llvm", "metal", {"kind": "cuda", "arch": "sm_80"}])
def test_places_that_an_exclusive_or_permutes(target):
    @T.prim_func
    def main(A: T.Tensor((16, 32), "float32"), B: T.Tensor((32, 16), "float32")):
        with T.Kernel(1, threads=64):
            tile = T.alloc_shared((16, 32), "float32")
            T.annotate_layout({tile: T.Layout(tile.shape, lambda i, j: (i, j ^ (i % 8 * 4)))})
            T.copy(A, tile)
            for i, j in T.Parallel(32, 16):
                B[i, j] = tile[j, i]

    kernel = runnable(main, target, out_idx=-1)
    # A CPU and Metal have plain rows.
    assert ("^" in kernel.get_kernel_source()) == (kernel.target.kind.name == "cuda")
    a = torch.randn(16, 32)
    assert torch.equal(kernel(a), a.T)
