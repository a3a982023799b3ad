"""User layouts of fragments: functions of the indices, read as digits of the indices."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer, normalize_to_iter_sum
from tvm.tirx.layout import TileLayout

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


def read_user_layout(tile: ir.Var, layout: Any, threads: int) -> FragmentLayout:
    """Read a layout that `T.annotate_layout` gives a fragment.

    An IndexMap gives the thread and, if it has a second result, the register; where it has one variable
    more than the tile has axes, that is the number of the copy.

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
    ranges = {v: ir.Range(0, e) for v, e in zip(variables, shape, strict=False)}
    ranges.update({v: ir.Range(0, threads) for v in copies})
    digits: dict[ir.Var, dict[int, Digit]] = {v: {} for v in variables}
    for axis, result in zip((THREAD, REGISTER), layout.final_indices, strict=False):
        _add_digits(tile, digits, axis, result, ranges)
    axes = []
    for variable, extent in zip(variables, shape, strict=False):
        axes.append(_joined(tile, digits[variable], extent, len(layout.final_indices) == 1))
    found = FragmentLayout(threads, tuple(axes))
    if any(d.is_thread and d.stride * d.extent > threads for d in found.digits):
        raise _refused(tile, f"it has places in more than the {threads} threads of the block")
    return compact_registers(found) if len(layout.final_indices) == 1 else found


def _add_digits(
    tile: ir.Var,
    digits: dict[ir.Var, dict[int, Digit]],
    axis: str,
    result: ir.Expr,
    ranges: dict[ir.Var, ir.Range],
) -> None:
    name = "thread" if axis == THREAD else "register"
    used = {v: r for v, r in ranges.items() if mentions(result, v)}
    total = normalize_to_iter_sum(result, used)
    value: Any = total.base
    for split in total.args:
        variable = split.source.source
        numbers = [constant(x) for x in (split.lower_factor, split.extent, split.scale)]
        if variable not in digits or None in numbers:
            raise _refused(tile, f"the {name} `{result}` is no sum of digits of the indices")
        lower, extent, scale = (int(number or 0) for number in numbers)
        digits[variable][lower] = Digit(extent, axis, scale)
        value = value + variable // lower % extent * scale
    analyzer = Analyzer()
    for variable, values in used.items():
        analyzer.bind(variable, values)
    if not analyzer.can_prove_equal(value, result) or constant(total.base) != 0:
        raise _refused(tile, f"the {name} `{result}` is no sum of digits of the indices")


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
