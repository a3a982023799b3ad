"""Layouts as pictures: a square for each element, coloured by who holds it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from tvm.sym import Analyzer

from tvmtile.errors import InvalidOperand, import_optional
from tvmtile.ir.threads import WARP_SIZE
from tvmtile.layout import Fragment, Layout
from tvmtile.layout.fragment import Digit, FragmentLayout

Operand: TypeAlias = tuple[tuple[Digit, ...], ...]
"""An operand of an instruction: the digits of the index along each of its axes."""

_FORMATS = ("pdf", "png", "svg")


def plot_layout(
    layout: Layout | FragmentLayout | Operand,
    save_directory: str | Path = "./tmp",
    name: str = "layout",
    colormap: str | None = None,
    verbose: bool = False,
    formats: str | Sequence[str] = "pdf",
    view: str = "input",
    grid_shape: tuple[int, int] | None = None,
) -> Any:
    """Draw where the elements of a tile lie, and save the picture.

    An element of a fragment shows its thread and its register; one of another tile its place, with a
    colour a piece of the row that it was in.

    Parameters
    ----------
    layout : Layout, Fragment, FragmentLayout or an operand of an instruction
        What to draw. An instruction has its operands as `a`, `b` and `c`: A of `mma.sync` for float16
        is `tvmtile.instructions.mma.ATOMS["float16", "float16"][0].a`.
    save_directory, name : str
        Where the picture goes, without its ending.
    colormap : str, optional
        One of matplotlib's.
    verbose : bool
        Accepted for TileLang's callers.
    formats : str or sequence of str
        "pdf", "png", "svg", several of them by commas, or "all".
    view : {"input", "output"}
        Draw the tile with the place of each element, or the memory with the element of each place.
    grid_shape : tuple of int, optional
        Rows and columns of the picture; the tile's last axis has the columns where absent.

    Returns
    -------
    matplotlib.figure.Figure
        The picture.
    """
    del verbose
    endings = _endings(formats)
    layout = _fragment(layout) if isinstance(layout, tuple) else layout
    held = dict(places(layout))
    cells = _cells(held, layout, view)
    columns = grid_shape[1] if grid_shape is not None else _columns(layout, cells)
    figure = _figure([cells[place] for place in sorted(cells)], columns, colormap)
    directory = Path(save_directory)
    directory.mkdir(parents=True, exist_ok=True)
    for ending in endings:
        figure.savefig(directory / f"{name}.{ending}", bbox_inches="tight")
    return figure


def places(layout: Layout | FragmentLayout) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Each element of a tile with its place: (thread, register) in a fragment, else indices."""
    simplify = Analyzer().simplify
    for index in itertools.product(*map(range, layout.shape)):
        if isinstance(layout, FragmentLayout):
            found = [layout.thread_of(index), layout.register_of(index)]
        else:
            copies = [0] if isinstance(layout, Fragment) and layout.replicate > 1 else []
            found = list(layout.index_map.map_indices([*index, *copies]))
        yield index, tuple(int(simplify(value)) for value in found)


def _fragment(operand: Operand) -> FragmentLayout:
    """The fragment that the threads of an instruction hold together."""
    threads = [digit.extent for axis in operand for digit in axis if digit.is_thread]
    return FragmentLayout(math.prod(threads), operand)


def _endings(formats: str | Sequence[str]) -> list[str]:
    asked = formats.split(",") if isinstance(formats, str) else list(formats)
    endings = list(_FORMATS) if asked == ["all"] else [ending.strip() for ending in asked]
    for ending in endings:
        if ending not in _FORMATS:
            raise InvalidOperand(
                f"plot_layout can't write {ending!r}", help=f"the formats are {', '.join(_FORMATS)}"
            )
    return endings


_Cell = tuple[str, int]
"""The text on a square, and the number of its colour."""


def _cells(
    held: dict[tuple[int, ...], tuple[int, ...]], layout: Any, view: str
) -> dict[tuple[int, ...], _Cell]:
    if isinstance(layout, Fragment | FragmentLayout):
        return {index: (_held(place), place[0] % WARP_SIZE) for index, place in held.items()}
    piece = max(1, layout.shape[-1] // 8)
    if view == "output":
        return {place: (_text(index), index[-1] // piece) for index, place in held.items()}
    return {index: (_text(place), place[-1] // piece) for index, place in held.items()}


def _held(place: tuple[int, ...]) -> str:
    return "\n".join(f"{kind}{number}" for kind, number in zip("TL", place, strict=False))


def _text(place: Iterable[int]) -> str:
    return ",".join(map(str, place))


def _columns(layout: Any, cells: dict[tuple[int, ...], _Cell]) -> int:
    if len(next(iter(cells))) == len(layout.shape):
        return max(place[-1] for place in cells) + 1
    return int(layout.shape[-1])  # places are counted through


def _figure(cells: Sequence[_Cell], columns: int, colormap: str | None) -> Any:
    figures = import_optional("matplotlib.figure", "plot", "plot_layout")

    rows = -(-len(cells) // columns)
    figure = figures.Figure(figsize=(0.5 * columns, 0.5 * rows))
    axes = figure.subplots()
    colours = np.full(rows * columns, np.nan)
    colours[: len(cells)] = [colour % WARP_SIZE for _, colour in cells]
    grid = {"edgecolors": "black", "linewidth": 0.3, "alpha": 0.6}
    axes.pcolormesh(colours.reshape(rows, columns), cmap=colormap or "turbo", **grid)
    for number, (text, _) in enumerate(cells):
        row, column = divmod(number, columns)
        axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=7)
    axes.set(ylim=(rows, 0), aspect="equal", xticks=[], yticks=[])
    return figure
