"""Pictures of layouts."""

from __future__ import annotations

import pytest

import tvmtile
import tvmtile.language as T
from tvmtile import layout as layouts
from tvmtile.errors import InvalidOperand
from tvmtile.instructions.mma import ATOMS, lane_map
from tvmtile.layout.fragment import replicated, spread
from tvmtile.layout.plot import places
from tvmtile.layout.shared import SWIZZLES, swizzled

ROWS = T.Fragment((4, 8), lambda i, j: (i * 4 + j // 2, j % 2))
COPIES = T.Fragment((4,), lambda i, r: (i + 4 * r, 0), replicate=2)
SWIZZLED = T.Layout((8, 16), lambda i, j: (i, j ^ (i // 4 * 8)))


@pytest.mark.parametrize(
    ("layout", "index", "place"),
    [
        (ROWS, (1, 3), (5, 1)),
        (COPIES, (3,), (3, 0)),
        (SWIZZLED, (5, 2), (5, 10)),
        (T.Layout((4, 4), lambda i, j: j * 4 + i), (1, 2), (9,)),
        (spread((4, 8), 16, 2), (1, 3), (5, 1)),
        (replicated((4,), 32), (2,), (0, 2)),
    ],
)
def test_where_an_element_is(layout, index, place):
    assert dict(places(layout))[index] == place


@pytest.mark.parametrize("shape", [(16, 64), (8, 128)])
@pytest.mark.parametrize(("kind", "width"), SWIZZLES.items())
def test_a_swizzle_of_known_extents_is_that_of_the_compiler(kind, width, shape):
    layout = getattr(layouts, f"make_{kind}_bank_swizzled_layout")(*shape, 16)
    compiled = swizzled(shape, "float16", width)
    for index, (place,) in places(layout):
        assert place == int(compiled.apply(*index, shape=list(shape))["m"])


def test_a_tile_without_such_rows():
    with pytest.raises(
        InvalidOperand, match="rows of 24 elements of 16 bits have no panels of 128"
    ):
        layouts.make_full_bank_swizzled_layout(8, 24, 16)


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.full
def test_a_fragment_shows_threads_and_registers(tmp_path):
    pytest.importorskip("matplotlib")
    figure = tvmtile.plot_layout(ROWS, tmp_path / "new", "rows", formats="png,svg")
    assert texts(figure)[:4] == ["T0\nL0", "T0\nL1", "T1\nL0", "T1\nL1"]
    assert {file.name for file in (tmp_path / "new").iterdir()} == {"rows.png", "rows.svg"}
    assert (tmp_path / "new" / "rows.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
def test_an_operand_of_an_instruction_shows_its_lanes(tmp_path):
    pytest.importorskip("matplotlib")
    (atom,) = ATOMS["float16", "float16"]
    for operand, rows, columns in ((atom.a, 16, 16), (atom.b, 16, 8), (atom.c, 16, 8)):
        drawn = texts(tvmtile.plot_layout(operand, tmp_path, formats="svg"))
        for lane, held in enumerate(lane_map(operand)):
            for register, (i, j) in enumerate(held):
                assert drawn[i * columns + j] == f"T{lane}\nL{register}"
        assert len(drawn) == rows * columns


def test_a_tile_shows_places_and_memory_elements(tmp_path):
    pytest.importorskip("matplotlib")
    from tvmtile.tools import plot_layout

    figure = plot_layout(SWIZZLED, tmp_path, formats="svg")
    assert texts(figure)[4 * 16 : 4 * 16 + 2] == ["4,8", "4,9"]
    colours = figure.axes[0].collections[0].get_array()
    assert colours.shape == (8, 16)
    assert colours[4, 0] == colours[0, 8] != colours[0, 0]  # the piece has moved
    figure = plot_layout(SWIZZLED, tmp_path, formats="svg", view="output", grid_shape=(16, 8))
    assert texts(figure)[4 * 16 : 4 * 16 + 2] == ["4,8", "4,9"]
    assert figure.axes[0].collections[0].get_array().shape == (16, 8)


def test_a_format_that_there_is_not(tmp_path):
    with pytest.raises(InvalidOperand, match="plot_layout can't write 'gif'") as caught:
        tvmtile.plot_layout(ROWS, tmp_path, formats=["png", "gif"])
    assert "the formats are pdf, png, svg" in str(caught.value)
