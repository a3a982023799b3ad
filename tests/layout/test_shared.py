"""Swizzles of shared memory: what lies where, and that simultaneous accesses use all banks."""

import itertools

import numpy as np
import pytest
from tvm import DataType, tirx
from tvm.sym import Analyzer
from tvm.tirx.layout import ComposeLayout, S, TileLayout

from tvmtile.layout.shared import contiguous_run, has_plain_rows, layout_of_places, span, swizzled

BANKS, BANK_BYTES = 32, 4
SHAPES = [(64, 32), (128, 64), (32, 96), (16, 128), (64, 192), (2, 64, 64), (3, 24, 256)]


def places(shape, layout):
    """The place of every element, by TVM's own arithmetic."""
    variables = [tirx.Var(f"i{axis}", "int32") for axis in range(len(shape))]
    place = Analyzer().simplify(layout.apply(*variables, shape=list(shape))["m"])
    compute = eval(  # the printed expression is one of Python's
        f"lambda {', '.join(v.name for v in variables)}: {place!s}".replace("T.", ""),
        {
            "bitwise_xor": np.bitwise_xor,
            "bitwise_and": np.bitwise_and,
            "shift_left": np.left_shift,
            "shift_right": np.right_shift,
        },
    )
    return compute(*np.indices(shape))


def wavefronts(addresses, width):
    """How often the banks are used for accesses of `width` bytes at once, one a lane.

    Lanes whose accesses together are more than the banks give at once take turns: 8 lanes of 16
    bytes, 16 of 8, 32 of 4 (CUDA C++ Programming Guide, "Shared Memory", compute capability 5.x on).
    Lanes that access the same word share it.
    """
    together = BANKS * BANK_BYTES // width
    total = 0
    for start in range(0, len(addresses), together):
        turn = addresses[start : start + together]
        words = {a // BANK_BYTES + w for a in turn for w in range(width // BANK_BYTES)}
        in_bank = np.bincount([word % BANKS for word in words], minlength=BANKS)
        total += int(in_bank.max())
    return total


def test_the_banks_are_simulated():
    assert wavefronts([16 * lane for lane in range(32)], 16) == 4
    assert wavefronts([128 * lane for lane in range(8)], 16) == 8
    assert wavefronts([128 * lane for lane in range(32)], 4) == 32
    assert wavefronts([0] * 32, 4) == 1


@pytest.mark.parametrize("dtype", ["float16", "int8", "float32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_elements_have_places_of_their_own(shape, dtype):
    layout = swizzled(shape, dtype)
    found = places(shape, layout)
    assert sorted(found.ravel()) == list(range(found.size))
    tile = tirx.decl_buffer(shape, dtype, scope="shared.dyn", layout=layout)
    assert not has_plain_rows(tile)
    assert span(tile) == found.size


@pytest.mark.parametrize("dtype", ["float16", "int8", "float32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pieces_of_16_bytes_stay_together(shape, dtype):
    piece = 128 // DataType(dtype).bits
    layout = swizzled(shape, dtype)
    found = places(shape, layout).reshape(-1, piece)
    assert np.array_equal(found - found[:, :1], np.broadcast_to(np.arange(piece), found.shape))
    assert (found[:, 0] % piece == 0).all()
    assert (
        contiguous_run(tirx.decl_buffer(shape, dtype, scope="shared.dyn", layout=layout)) == piece
    )


@pytest.mark.parametrize("dtype", ["float16", "int8", "float32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_of_matrices_lie_in_different_banks(shape, dtype):
    """`ldmatrix` and `stmatrix` take 16 bytes of eight rows at once."""
    size = DataType(dtype).bits // 8
    addresses = places(shape, swizzled(shape, dtype)) * size
    piece = 16 // size
    for *outer, row, column in itertools.product(
        *map(range, shape[:-2]), range(0, shape[-2] - 7, 8), range(0, shape[-1], piece)
    ):
        assert wavefronts(addresses[(*outer, slice(row, row + 8), column)], 16) == 1


@pytest.mark.parametrize("shape", [s for s in SHAPES if 128 % (2 * s[-1]) == 0 or s[-1] % 64 == 0])
def test_vectors_along_rows_lie_in_different_banks(shape):
    """Threads that copy rows take 16 bytes each, one thread beside the other.

    Panels of a row of 192 bytes are 64 bytes wide, and two of them begin in the same banks.
    """
    addresses = places(shape, swizzled(shape, "float16")).reshape(-1)[::8] * 2
    for first in range(0, len(addresses) - 31, 32):
        assert wavefronts(addresses[first : first + 32], 16) == 4


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_pairs_of_an_accumulator_lie_in_different_banks(shape):
    """A warp's store of m16n8 results, two of 16 bits a lane: 4 lanes a row, 8 rows."""
    addresses = places(shape, swizzled(shape, "float16")) * 2
    lanes = np.arange(32)
    tile = addresses.reshape(-1, shape[-2], shape[-1])[0]
    for row, column in itertools.product(range(0, shape[-2] - 7, 8), range(0, shape[-1], 8)):
        assert wavefronts(tile[row + lanes // 4, column + lanes % 4 * 2], 4) == 1


def test_plain_rows_would_share_banks():
    plain = TileLayout(S[(128, 64)])
    assert wavefronts(places((128, 64), plain)[:8, 0] * 2, 16) == 8


@pytest.mark.parametrize("shape", [(64,), (64, 24), (8, 8), (64, 2)], ids=str)
def test_rows_that_are_not_of_panels_stay_plain(shape):
    assert swizzled(shape, "float16") is None


def test_rows_of_32_bytes_are_swizzled_too():
    assert wavefronts(places((64, 16), swizzled((64, 16), "float16"))[8:16, 8] * 2, 16) == 1


def test_a_width_can_be_demanded():
    assert swizzled((64, 64), "float16", 32).swizzle_len == 1
    assert swizzled((64, 32), "float16", 128) is None


def test_functions_of_the_indices_become_layouts():
    i, j = np.indices((128, 64))
    cases = {
        "padded": i * 72 + j,
        "transposed": j * 128 + i,
        "panels": j // 32 * 4096 + i * 32 + j % 32,
        "swizzled": i * 64 + ((j // 8) ^ (i % 8)) * 8 + j % 8,
    }
    for name, expected in cases.items():
        layout = layout_of_places(expected, 16)
        assert isinstance(layout, ComposeLayout) == (name == "swizzled"), name
        assert np.array_equal(places((128, 64), layout), expected), name


def test_other_functions_are_no_layouts():
    i, j = np.indices((16, 16))
    assert layout_of_places(i * 16 + j * j, 16) is None
    assert layout_of_places(i * 16 + j + 5, 16) is None
