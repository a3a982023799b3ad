"""User layouts of fragments: functions of the indices, read as digits of the indices."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import ir, tirx
from tvm.tirx.layout import TileLayout

from tvmtile.analysis.conflicts.symbolic import NotSeparable, evaluate
from tvmtile.errors import InvalidOperand
from tvmtile.ir.operands import constant, describe
from tvmtile.ir.rewriting import mentions
from tvmtile.layout.fragment import (
    REGISTER,
    THREAD,
    Digit,
    FragmentLayout,
    compact_registers,
    layout_of,
)
from tvmtile.layout.shared import digits_of


def read_user_layout(tile: ir.Var, layout: Any, threads: int) -> FragmentLayout:
    """Read a layout that `T.annotate_layout` gives a fragment.

    An IndexMap gives the thread and, if it has a second result, the register; where it has one variable
    more than the tile has axes, that is the number of the copy. An element is in the threads that this
    leaves open, too: a tile that the second half of a block has is in both halves.

    Raises
    ------
    InvalidOperand
        If thread and register are no sums of digits of the indices, or an element has no place.
    """
    shape = tuple(constant(extent) or 1 for extent in tile.ty.shape)
    if isinstance(layout, TileLayout):
        typed = tirx.decl_buffer(shape, "int32", scope=tile.ty.storage_scope, layout=layout)
        found = layout_of(typed)
        if found is None or found.threads != threads:
            raise _refused(tile, f"{layout} is not one over {threads} threads")
        return found
    if not isinstance(layout, tirx.IndexMap):
        raise _refused(tile, f"{layout!r} is one of shared memory")
    variables = list(layout.initial_indices)
    copies = variables[len(shape) :]
    extents = dict(zip(variables, shape, strict=False)) | dict.fromkeys(copies, threads)
    digits: dict[ir.Var, dict[int, Digit]] = {v: {} for v in variables}
    first, *_ = [
        _add_digits(tile, digits, axis, result, extents)
        for axis, result in zip((THREAD, REGISTER), layout.final_indices, strict=False)
    ]
    axes = []
    for variable, extent in zip(variables, shape, strict=False):
        axes.append(_joined(tile, digits[variable], extent, len(layout.final_indices) == 1))
    found = FragmentLayout(threads, tuple(axes))
    of_threads = [d for d in found.digits if d.is_thread]
    if first >= threads or any(d.stride * d.extent > threads for d in of_threads):
        raise _refused(tile, f"it has places in more than the {threads} threads of the block")
    if any(first // d.stride % d.extent for d in of_threads):
        raise _refused(
            tile, f"the threads are counted from {first}, amid the digits of the indices"
        )
    return compact_registers(found) if len(layout.final_indices) == 1 else found


def _add_digits(
    tile: ir.Var,
    digits: dict[ir.Var, dict[int, Digit]],
    axis: str,
    result: ir.Expr,
    extents: dict[ir.Var, int],
) -> int:
    """Add the digits of the indices whose sum a thread or a register is: all elements are tried.

    Threads may be counted from a number, which is returned.
    """
    name = "thread" if axis == THREAD else "register"
    refused = _refused(tile, f"the {name} `{result}` is no sum of digits of the indices")
    used = {v: extent for v, extent in extents.items() if mentions(result, v)}
    grid = np.indices(tuple(used.values()), np.int64)
    try:
        found = evaluate(result, dict(zip(used, grid, strict=True)), lambda _: False, 0).numbers
    except NotSeparable:
        raise refused from None
    values = np.broadcast_to(np.asarray(found), grid.shape[1:])
    first = int(values.flat[0])
    total = np.full(values.shape, first, np.int64)
    for number, (variable, extent) in enumerate(used.items()):
        line = values[tuple(slice(None) if n == number else 0 for n in range(len(used)))] - first
        lower = 1
        for count, weight in reversed(list(digits_of(line))):
            if weight:
                digits[variable][lower] = Digit(count, axis, weight)
            lower *= count
        if lower != extent:
            raise refused
        total += line.reshape([-1 if n == number else 1 for n in range(len(used))])
    is_counted_from_0 = first == 0 or axis == THREAD
    if not is_counted_from_0 or values.min() < 0 or not np.array_equal(total, values):
        raise refused
    return first


def _joined(
    tile: ir.Var, digits: dict[int, Digit], extent: int, registers_follow: bool
) -> tuple[Digit, ...]:
    """The digits of one index, most significant first; what has none is in registers."""
    result: list[Digit] = []
    position = 1
    for lower, digit in [*sorted(digits.items()), (extent, None)]:
        if lower > position:
            if not registers_follow or lower % position:
                raise _refused(tile, "two elements would lie in one place")
            result.insert(0, Digit(lower // position, REGISTER, 1))
        elif lower < position:
            raise _refused(tile, "an index has a digit twice")
        if digit is not None:
            result.insert(0, digit)
            position = lower * digit.extent
    return tuple(digit for digit in result if digit.extent > 1)


def _refused(tile: ir.Var, reason: str) -> InvalidOperand:
    return InvalidOperand(
        f"T.annotate_layout: the layout of the fragment {describe(tile)} can't be used: {reason}",
        help="write thread and register with +, *, // and % of the indices, each element in a place "
        "of its own",
    )
