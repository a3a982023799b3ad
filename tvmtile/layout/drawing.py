"""Fragment layouts as text, for errors about two that do not go together."""

from __future__ import annotations

import itertools

from tvm.sym import Analyzer

from tvmtile.layout.fragment import FragmentLayout

_ROWS, _COLUMNS = 4, 8


def drawn(layout: FragmentLayout, corner: tuple[int, int] = (0, 0)) -> str:
    """Draw a few elements of a fragment: `thread:register` of each, a line a row.

    An element of which several threads hold copies is shown with the first of them and a `+`. Of a
    fragment with more than two axes the first matrix is drawn, of one with one axis its only row.
    `corner` is the row and column of the first element that is drawn.

    Examples
    --------
    The first rows of an accumulator of `mma.sync`:

    ```
    0:0   0:1   1:0   1:1   2:0   2:1   3:0   3:1   ...
    4:0   4:1   5:0   5:1   6:0   6:1   7:0   7:1   ...
    8:0   8:1   9:0   9:1   10:0  10:1  11:0  11:1  ...
    12:0  12:1  13:0  13:1  14:0  14:1  15:0  15:1  ...
    ...
    ```
    """
    *_, rows, columns = (1, 1, *layout.shape)
    shown_rows = range(corner[0], min(rows, corner[0] + _ROWS))
    shown_columns = range(corner[1], min(columns, corner[1] + _COLUMNS))
    lines = [[_cell(layout, row, column) for column in shown_columns] for row in shown_rows]
    width = max(len(cell) for cell in itertools.chain(*lines))
    text = ["  ".join(cell.ljust(width) for cell in line) for line in lines]
    if columns > shown_columns.stop:
        text = [f"{line}  ..." for line in text]
    if rows > shown_rows.stop:
        text.append("...")
    return "\n".join(line.rstrip() for line in text)


def first_difference(a: FragmentLayout, b: FragmentLayout) -> tuple[int, int]:
    """Row and column of the first element that two layouts give to different threads.

    (0, 0) where there is none, or where their shapes differ.
    """
    if a.shape != b.shape:
        return 0, 0
    *_, rows, columns = (1, 1, *a.shape)
    for row, column in itertools.product(range(rows), range(columns)):
        if _thread(a, row, column) != _thread(b, row, column):
            return row, column
    return 0, 0


def _place(layout: FragmentLayout, row: int, column: int) -> list[int]:
    return [0, 0, *(0 for _ in layout.shape[2:]), row, column][-len(layout.shape) :]


def _thread(layout: FragmentLayout, row: int, column: int) -> int:
    return int(Analyzer().simplify(layout.thread_of(_place(layout, row, column))))


def _cell(layout: FragmentLayout, row: int, column: int) -> str:
    register = Analyzer().simplify(layout.register_of(_place(layout, row, column)))
    copies = "+" if layout.replicas else ""
    return f"{_thread(layout, row, column)}{copies}:{register}"
