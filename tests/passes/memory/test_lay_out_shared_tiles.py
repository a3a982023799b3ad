"""LayOutSharedTiles and FlattenShared: layouts of shared tiles, by choice and by hand."""

import pytest
import torch
from tvm import ir, tirx
from tvm.target import Target
from tvm.tirx.layout import ComposeLayout, S, TileLayout
from tvm_ffi import structural_walk

import tvmtile
import tvmtile.language as T
from tests.running import runnable
from tvmtile import layout as layouts
from tvmtile import pipeline
from tvmtile.ir.scopes import is_shared
from tvmtile.layout.shared import has_plain_rows
from tvmtile.passes import LayOutSharedTiles

CUDA = {"kind": "cuda", "arch": "sm_90a"}


def tiles(program):
    """The shared tiles by name, after the pass."""
    mod = ir.IRModule({"main": program.with_attr("global_symbol", "main")})
    steps = pipeline.lowering_passes(Target(CUDA))
    for step in steps[: [step.info.name for step in steps].index(LayOutSharedTiles.info.name) + 1]:
        mod = step(mod)
    found = {}

    def note(node):
        if is_shared(node.buffer):
            found[node.buffer.name] = node.buffer

    structural_walk(mod["main"].body, (tirx.AllocBuffer, note))
    return found


def product(annotate=None, stages=0, *, view=False, dtypes=("float16", "float32")):
    dtype, sums = dtypes

    @T.prim_func
    def main(
        A: T.Tensor((64, 128), dtype), B: T.Tensor((128, 64), dtype), C: T.Tensor((64, 64), sums)
    ):
        with T.Kernel(1, threads=128) as _:
            a = T.alloc_shared((64, 64), dtype)
            b = T.alloc_shared((64, 64), dtype)
            c = T.alloc_shared((64, 64), dtype)
            row = T.alloc_shared((2, 64), dtype)
            acc = T.alloc_fragment((64, 64), sums)
            if annotate is not None:
                T.annotate_layout({a: annotate(a)})
            if view:
                flat = T.reshape(a, (64 * 64,))
                flat[0] = 0
            T.clear(acc)
            T.copy(A[0:2, 0:64], row)
            for k in T.Pipelined(2, num_stages=stages):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, acc)
            T.copy(acc, c)
            T.copy(c, C)

    return main


def swizzle_of(tile):
    layout = tile.ty.layout
    return layout.per_element, layout.swizzle_len, layout.atom_len


def test_operands_and_what_accumulators_pass_through_are_swizzled():
    found = tiles(product())
    assert [swizzle_of(found[name]) for name in "abc"] == [(3, 3, 3)] * 3
    assert has_plain_rows(found["row"])


@pytest.mark.parametrize(
    "dtypes", [("int8", "int32"), ("uint8", "int32"), ("float8_e5m2", "float32")]
)
def test_operands_of_8_bits_are_swizzled(dtypes):
    """`ldmatrix` takes 16 bytes of eight rows at once, whatever they hold."""

    @T.prim_func
    def main(A: T.Tensor((64, 128), dtypes[0]), B: T.Tensor((64, 128), dtypes[0])):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 128), dtypes[0])
            b = T.alloc_shared((64, 128), dtypes[0])
            acc = T.alloc_fragment((64, 64), dtypes[1])
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, acc, transpose_B=True, clear_accum=True)

    found = tiles(main)
    assert [swizzle_of(found[name]) for name in "ab"] == [(4, 3, 3)] * 2


@pytest.mark.parametrize(("rows", "plain"), [(1, True), (2, False)])
def test_a_tile_is_swizzled_where_several_rows_of_it_move_at_once(rows, plain):
    """The elements of one lie in different banks; so buffer copies of a tile of one axis are plain."""

    @T.prim_func
    def main(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            moved = T.alloc_shared((4, 64), "float32")
            acc = T.alloc_fragment((64, 64), "float32")
            own = T.alloc_fragment((rows, 64), "float32")
            T.copy(A, a)
            T.gemm(a, a, acc, clear_accum=True)
            T.copy(C[0:4, 0:64], moved)
            T.copy(moved[2 : 2 + rows, :], own)
            for i, j in T.Parallel(64, 64):
                acc[i, j] += own[i % rows, j]
            T.copy(acc, C)

    assert has_plain_rows(tiles(main)["moved"]) == plain


BY_HAND = {
    "auto": (layouts.make_swizzled_layout, (3, 3, 3)),
    "full": (layouts.make_full_bank_swizzled_layout, (3, 3, 3)),
    "half": (layouts.make_half_bank_swizzled_layout, (3, 2, 3)),
    "quarter": (layouts.make_quarter_bank_swizzled_layout, (3, 1, 3)),
    "function": (lambda _: lambda i, j: (i, (j // 8 ^ i % 4) * 8 + j % 8), (3, 2, 3)),
    "none": (None, (3, 3, 3)),
}


@pytest.mark.parametrize("stages", [0, 3])
@pytest.mark.parametrize("name", BY_HAND)
def test_a_user_swizzle_is_kept_for_each_buffer_copy(name, stages):
    make, expected = BY_HAND[name]
    tile = tiles(product(make, stages))["a"]
    assert swizzle_of(tile) == expected
    assert len(tile.ty.shape) == (3 if stages else 2)
    assert isinstance(tile.ty.layout, ComposeLayout)


@pytest.mark.parametrize("stages", [0, 3])
@pytest.mark.parametrize(
    "padded",
    [
        lambda tile: TileLayout(S[(64, 64) : (72, 1)]),
        lambda tile: T.Layout(tile.shape, lambda i, j: i * 72 + j),
    ],
)
def test_other_user_layouts_are_kept_for_each_buffer_copy(stages, padded):
    """Rows of 72 elements: 16 bytes more than they need."""
    strides = [int(part.stride) for part in tiles(product(padded, stages))["a"].ty.layout.shard]
    assert strides[-2:] == [72, 1]
    assert not stages or strides[0] >= 63 * 72 + 64


@pytest.mark.parametrize(
    ("make", "view"),
    [(layouts.make_linear_layout, False), (None, True), (layouts.make_swizzled_layout, True)],
)
def test_rows_are_plain_where_a_layout_is_linear_or_a_view_sees_them(make, view):
    assert has_plain_rows(tiles(product(make, view=view))["a"])


@pytest.mark.full(but=1)
@pytest.mark.parametrize(
    ("target", "annotated"), [("llvm", "the tile"), ({"kind": "cuda", "arch": "sm_80"}, "the view")]
)
def test_a_viewed_tile_may_be_said_to_have_plain_rows(target, annotated):
    @T.prim_func
    def main(A: T.Tensor((16, 32), "float16"), C: T.Tensor((16, 64), "uint8")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((2, 16, 32), "float16")
            halves = T.view(tile, (2, 16, 64), "uint8")
            plain = tvmtile.layout.Layout((2, 16, 64), lambda s, i, j: (s, i, j))
            whole = tvmtile.layout.Layout((2, 16, 32), lambda s, i, j: s * 512 + i * 32 + j)
            T.annotate_layout({tile: whole} if annotated == "the tile" else {halves: plain})
            T.copy(A, tile[1, :, :])
            T.copy(halves[1, :, :], C)

    kernel = runnable(main, target, out_idx=[1])
    a = torch.randn(16, 32).half()
    assert torch.equal(kernel(a), a.view(torch.uint8))


@pytest.mark.parametrize(
    "place",
    [
        lambda i, j: (i ^ 1, j),
        lambda i, j: i * 64 + j + 10,
        lambda i, j: (15 - i, j),
        lambda i, j: (j, (15 - i) ^ 2),
        lambda i, j: (i, (j // 8 ^ i % 8) * 8 + j % 8 + 64),
    ],
    ids=[
        "pairs of rows trade places",
        "from 10 on",
        "last row first",
        "columns",
        "swizzled, from 64",
    ],
)
def test_the_place_of_the_first_element_is_any(place):
    @T.prim_func
    def main(A: T.Tensor((16, 64), "float16"), C: T.Tensor((16, 64), "float16")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((16, 64), "float16")
            T.annotate_layout({tile: tvmtile.layout.Layout((16, 64), place)})
            T.copy(A, tile)
            for i, j in T.Parallel(16, 64):
                C[i, j] = tile[15 - i, j]

    a = torch.randn(16, 64).half()
    assert torch.equal(runnable(main, CUDA, out_idx=[1])(a), a.flip(0))


def test_a_layout_across_rows_is_read_element_by_element():
    program = product(lambda tile: lambda i, j: (j, i))
    source = tvmtile.compile(program, target=CUDA).get_kernel_source()
    assert "ldmatrix.sync.aligned.m8n8.x4.trans.shared" in source  # b
    assert "ldmatrix.sync.aligned.m8n8.x4.shared" not in source
