"""`T.reduce` and its short forms: combine the elements of a tile along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import ir

from tvmtile._tvm import buffer_of
from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import (
    InvalidOperand,
    ShapeMismatch,
    UnsupportedDtype,
)
from tvmtile.frontend.emit import check_operand, checked_call, emit
from tvmtile.ir.combiners import COMBINERS, Combiner, has_bit_operations, propagating_nan
from tvmtile.ir.operands import (
    check_bounds,
    checked_axis,
    constant,
    describe,
    dtype_of,
    extents_of,
    literal,
    same_extents,
    without_units,
)
from tvmtile.ir.operators import CarriesLayouts, OperatorEffects, tile_operator
from tvmtile.ir.types import Index, TileOperand
from tvmtile.tileop.elementwise import moving_axes
from tvmtile.tileop.moves import fill


def reduce(
    buffer: TileOperand,
    out: TileOperand,
    reduce_type: str,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    nan_propagate: bool = False,
    annotations: Mapping[str, object] | None = None,
) -> None:
    """Combine the elements of a tile along one axis: `out[x, y] = combine over d of buffer[x, d, y]`.

    Parameters
    ----------
    buffer : buffer or region
        [X, d, Y], in any scope; X and Y are any number of axes.
    out : buffer, region or element
        [X, Y] or [X, 1, Y]; where `buffer` has one axis, [1] or an element. In any scope. Its dtype
        may differ from the buffer's: the result is converted.
    reduce_type : {"sum", "max", "min", "abssum", "absmax", "bitand", "bitor", "bitxor"}
        How to combine; `abs` ones take absolute values first, `bit` ones need integers or booleans.
    dim : int
        The axis; negative ones count from the last.
    clear : bool
        False also combines what is in `out`.
    batch : int
        Accepted with a warning: how many results threads exchange at once.
    nan_propagate : bool
        A maximum or minimum over a NaN is NaN, as torch has it. By default NaNs are left out (of
        nothing else the maximum is minus infinity, the minimum infinity, of absolute values 0), as
        TileLang has it, which costs less.
    annotations : dict, optional
        Accepted with a warning.

    Raises
    ------
    ShapeMismatch
        If the extents of `out` are not those of `buffer` without the axis.
    UnsupportedDtype
        If bits of floats would be combined.
    InvalidOperand
        If there is no such axis or no such way to combine.

    Notes
    -----
    Of an axis without elements the sum is 0, and the maximum what it is of NaNs alone.
    Floats narrower than 32 bits are combined in float32 and rounded once. The order in which a sum
    of floats is taken is the compiler's.
    """
    if reduce_type not in COMBINERS:
        raise InvalidOperand(
            f"reduce: there is no way to combine called {reduce_type!r}",
            help=f"the ways are {', '.join(COMBINERS)}",
        )
    name = f"reduce_{reduce_type}"
    if batch < 1:
        raise InvalidOperand(f"{name}: batch={batch!r}", help="batch is a positive integer")
    warn_ignored(f"T.{name}", batch=None if batch == 1 else batch, annotations=annotations)
    src, dst = check_operand(name, "buffer", buffer), check_operand(name, "out", out)
    axis = checked_axis(name, "buffer", src, dim)
    op = Reduce(src, dst, reduce_type, axis, bool(clear), bool(nan_propagate))
    if literal((extents_of(src) or [])[axis]) == 0:
        checked_call(op)
        if clear:
            fill(dst, op.combiner.identity(dtype_of(dst)))
        return
    emit(op)


def reduce_sum(
    buffer: TileOperand,
    out: TileOperand,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    annotations: Mapping[str, object] | None = None,
) -> None:
    """Sum along an axis; see `reduce`."""
    reduce(buffer, out, "sum", dim, clear, batch, annotations=annotations)


def reduce_max(
    buffer: TileOperand,
    out: TileOperand,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    nan_propagate: bool = False,
    annotations: Mapping[str, object] | None = None,
) -> None:
    """Maximum along an axis; see `reduce`."""
    reduce(buffer, out, "max", dim, clear, batch, nan_propagate, annotations)


def reduce_min(
    buffer: TileOperand,
    out: TileOperand,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    nan_propagate: bool = False,
    annotations: Mapping[str, object] | None = None,
) -> None:
    """Minimum along an axis; see `reduce`."""
    reduce(buffer, out, "min", dim, clear, batch, nan_propagate, annotations)


def reduce_abssum(
    buffer: TileOperand,
    out: TileOperand,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    annotations: Mapping[str, object] | None = None,
) -> None:
    """Sum of absolute values along an axis; see `reduce`."""
    reduce(buffer, out, "abssum", dim, clear, batch, annotations=annotations)


def reduce_absmax(
    buffer: TileOperand,
    out: TileOperand,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    nan_propagate: bool = False,
    annotations: Mapping[str, object] | None = None,
) -> None:
    """Maximum of absolute values along an axis; see `reduce`."""
    reduce(buffer, out, "absmax", dim, clear, batch, nan_propagate, annotations)


def reduce_bitand(
    buffer: TileOperand,
    out: TileOperand,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    annotations: Mapping[str, object] | None = None,
) -> None:
    """Bitwise "and" along an axis; see `reduce`."""
    reduce(buffer, out, "bitand", dim, clear, batch, annotations=annotations)


def reduce_bitor(
    buffer: TileOperand,
    out: TileOperand,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    annotations: Mapping[str, object] | None = None,
) -> None:
    """Bitwise "or" along an axis; see `reduce`."""
    reduce(buffer, out, "bitor", dim, clear, batch, annotations=annotations)


def reduce_bitxor(
    buffer: TileOperand,
    out: TileOperand,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    annotations: Mapping[str, object] | None = None,
) -> None:
    """Bitwise "exclusive or" along an axis; see `reduce`."""
    reduce(buffer, out, "bitxor", dim, clear, batch, annotations=annotations)


@tile_operator
class Reduce(CarriesLayouts):
    """Combine the elements of a tile along an axis, or several; `dim` is not negative."""

    name = "reduce"
    inputs = ("src",)
    outputs = ("dst",)
    role = "reduction"

    src: ir.TensorRegion
    dst: ir.TensorRegion
    kind: str = "sum"
    dim: int | tuple[int, ...] = 0
    clear: bool = True
    nan_propagate: bool = False

    def effects(self) -> OperatorEffects:
        return OperatorEffects([self.src] if self.clear else [self.src, self.dst], [self.dst])

    @property
    def dims(self) -> tuple[int, ...]:
        """The axes, in order; a user's reduction has one."""
        return (self.dim,) if isinstance(self.dim, int) else self.dim

    @property
    def axis(self) -> int:
        """The only axis of a reduction that no pass has made of several."""
        (axis,) = self.dims
        return axis

    @property
    def combiner(self) -> Combiner:
        """The combiner of elements."""
        combiner = COMBINERS[self.kind]
        return propagating_nan(combiner) if self.nan_propagate else combiner

    def check(self) -> None:
        for operand in (self.src, self.dst):
            check_bounds(self.name, operand)
            if self.combiner.integers_only and not has_bit_operations(dtype_of(operand)):
                raise UnsupportedDtype(
                    f"reduce_{self.kind}: {describe(operand)} holds floats, not bits",
                    help="T.view the tile as integers of the same width",
                )
        self._check_shape()

    def _check_shape(self) -> None:
        extents = extents_of(self.src) or []
        rest: list[Index] = [extent for n, extent in enumerate(extents) if n not in self.dims]
        kept: list[Index] = [1 if n in self.dims else extent for n, extent in enumerate(extents)]
        given = extents_of(self.dst)
        if given is None:
            given = []
        whole = not any(isinstance(tile, ir.TensorRegion) for tile in (self.src, self.dst))
        accepted = (rest or [1], kept)
        if whole and given:
            if any(_same(given, shape) for shape in accepted):
                return
        elif _same(without_units(given), without_units(rest)):
            return
        shapes = " or ".join(_shown(shape) for shape in accepted if shape is kept or shape != kept)
        raise ShapeMismatch(
            f"reduce_{self.kind}: the result of {describe(self.src)} along axis {self.dim} has shape "
            f"{shapes}, and {describe(self.dst)} has another",
            help=f"allocate out with shape {_shown(accepted[0])}",
        )

    def with_buffer_copies(self, operands: Sequence[ir.Expr]) -> Reduce:
        grown = any(self.src is operand for operand in operands)
        return replace(self, dim=tuple(dim + 1 for dim in self.dims)) if grown else self

    def carried_layouts(self, layouts: Mapping[ir.Var, Any]) -> dict[ir.Var, Any]:
        layout, result = layouts.get(buffer_of(self.src)), buffer_of(self.dst)
        kept = [axis for axis in moving_axes(self.src) if axis not in self.dims]
        of_result = [extent for extent in result.ty.shape if constant(extent) != 1]
        if layout is None or len(of_result) != len(kept):  # the result is a part of a buffer
            return {}
        left = (axis for axis in range(len(layout.axes)) if axis not in self.dims)
        held = zip(left, layout.without_axis(*self.dims).axes, strict=True)
        digits = iter([digits for axis, digits in held if axis in kept])
        axes = tuple(() if constant(extent) == 1 else next(digits) for extent in result.ty.shape)
        return {result: replace(layout, axes=axes)}


@tile_operator
class PartialReduce(Reduce):
    """Combine the elements along the axes that a thread holds: what threads hold is combined later.

    `src` is [X, d, Y] and `dst` [X, p, Y], fragments with layouts. Along the axis `dst` has an element
    for each of the p threads that hold different elements of `src`. Which elements it combines is the
    layout's to say, so that it exists only behind InferLayout.
    """

    name = "partial_reduce"
    role = "partial reduction"

    def check(self) -> None:
        pass


def _same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(same_extents(x, y) for x, y in zip(a, b, strict=True))


def _shown(shape: list[Index]) -> str:
    return f"[{', '.join(str(extent) for extent in shape)}]"
