"""Atomic operations: many blocks update one element, or all elements of a tile, and none gets lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvm import DataType, ir, tirx

from tvmtile._tvm import buffer_of, is_buffer_var
from tvmtile.codegen.atomics import ORDERS, supported_dtypes
from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import (
    InvalidOperand,
    InvalidValue,
    UnsupportedDtype,
)
from tvmtile.frontend.emit import check_operand, checked_call, emit
from tvmtile.frontend.values import as_expr
from tvmtile.ir.operands import (
    SAME_EXTENTS,
    as_region,
    check_bounds,
    constant,
    describe,
    dtype_of,
    extents_of,
    matched_regions,
    origin_of,
)
from tvmtile.ir.operators import OperatorEffects, TileOp, Vectorizable, tile_operator
from tvmtile.ir.rewriting import substitute
from tvmtile.ir.types import Index, TileOperand, Value
from tvmtile.tileop.elementwise import converted
from tvmtile.tileop.vectors import ramp


def atomic_add(
    dst: TileOperand,
    value: Value,
    memory_order: str | None = None,
    return_prev: bool = False,
    use_tma: bool = False,
    annotations: Mapping[str, object] | None = None,
) -> ir.Expr | None:
    """`dst += value` in one indivisible step, for one element or for every element of a tile.

    Parameters
    ----------
    dst : element, region or buffer
        An element `C[i, j]` with a number or an expression as `value` is updated by every thread that
        comes: this form may stand in T.Parallel. A region or a buffer is updated once by the block,
        all its elements by one value, or each by that of a tile; where an operand depends on the
        thread, by each thread. With a tile as `value`, an element is
        where the tile to update begins. Elements outside a tensor are skipped.
    value : number, Expr, region or buffer
        What to add; converted to the dtype of `dst`. An element `A[i, j]` is an expression.
    memory_order : {"relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst"}, optional
        As in C++; relaxed where absent.
    return_prev : bool
        Return what was there before. For one element only.
    use_tma
        Accepted with a warning: a fragment of float32 is added by the tensor memory accelerator where
        that is possible (`kernel.choices` says why not), other tiles by elements or vectors.
    annotations
        Accepted with a warning.

    Returns
    -------
    Expr or None
        With `return_prev`, the element's former value: an expression that does the update where it
        is evaluated.

    Raises
    ------
    ShapeMismatch
        If two tiles differ in their extents.
    UnsupportedDtype
        If there is no such operation on the dtype: integers of 8 to 64 bits, float16, bfloat16,
        float32 and float64 can be updated.
    InvalidOperand
        If `return_prev` is asked of a tile.
    InvalidValue
        If there is no such memory order.

    Notes
    -----
    The order in which blocks update an element is not fixed, so sums of floats may differ in their
    last bits from call to call.
    """
    warn_ignored("T.atomic_add", annotations=annotations, use_tma=use_tma)
    return _update("add", dst, value, memory_order, return_prev)


def atomic_max(
    dst: TileOperand,
    value: Value,
    memory_order: str | None = None,
    return_prev: bool = False,
    annotations: Mapping[str, object] | None = None,
) -> ir.Expr | None:
    """`dst = max(dst, value)` in one indivisible step; everything else as of `atomic_add`."""
    warn_ignored("T.atomic_max", annotations=annotations)
    return _update("max", dst, value, memory_order, return_prev)


def atomic_min(
    dst: TileOperand,
    value: Value,
    memory_order: str | None = None,
    return_prev: bool = False,
    annotations: Mapping[str, object] | None = None,
) -> ir.Expr | None:
    """`dst = min(dst, value)` in one indivisible step; everything else as of `atomic_add`."""
    warn_ignored("T.atomic_min", annotations=annotations)
    return _update("min", dst, value, memory_order, return_prev)


def atomic_or(
    dst: TileOperand, value: Value, memory_order: str | None = None, return_prev: bool = False
) -> ir.Expr | None:
    """`dst |= value` in one indivisible step, for integers; everything else as of `atomic_add`."""
    return _update("or", dst, value, memory_order, return_prev)


def atomic_store(dst: TileOperand, src: Value, memory_order: str = "seq_cst") -> None:
    """Store a value into one element, in one indivisible step.

    Parameters
    ----------
    dst : element
        `C[i, j]`.
    src : number or Expr
        Converted to the element's dtype.
    memory_order : {"relaxed", "release", "seq_cst"}
        As in C++.
    """
    if memory_order not in ("relaxed", "release", "seq_cst"):
        raise InvalidValue(
            f"atomic_store does not support memory_order={memory_order!r}",
            help='a store is "relaxed", "release" or "seq_cst"',
        )
    _update("store", dst, src, memory_order, return_prev=False)


def atomic_load(src: TileOperand, memory_order: str = "seq_cst") -> ir.Expr:
    """Load one element, in one indivisible step.

    Parameters
    ----------
    src : element
        `A[i, j]`.
    memory_order : {"relaxed", "consume", "acquire", "seq_cst"}
        As in C++.

    Returns
    -------
    Expr
        An expression that loads where, and as often as, it is evaluated: `while` may wait on it.
    """
    if memory_order not in ("relaxed", "consume", "acquire", "seq_cst"):
        raise InvalidValue(
            f"atomic_load does not support memory_order={memory_order!r}",
            help='a load is "relaxed", "consume", "acquire" or "seq_cst"',
        )
    return checked_call(AtomicLoad(_single("atomic_load", "src", src), memory_order))


def atomic_addx2(dst: TileOperand, value: Value, return_prev: bool = False) -> ir.Expr | None:
    """Add to two neighbouring elements; see `atomic_addx4`."""
    return _add_vector(2, dst, value, return_prev)


def atomic_addx4(dst: TileOperand, value: Value, return_prev: bool = False) -> ir.Expr | None:
    """Add to four neighbouring elements, each in one indivisible step.

    Parameters
    ----------
    dst : element, region or buffer
        The first of the elements, or a tile that begins with it. If one of them lies outside a
        tensor, none is updated.
    value : element, region, buffer or Expr
        The first of four neighbouring values, a tile that begins with it, or a vector of four.
    return_prev : bool
        Return what was there before, as a vector.

    Returns
    -------
    Expr or None
        With `return_prev`, the former values: an expression that does the update where it is
        evaluated.
    """
    return _add_vector(4, dst, value, return_prev)


def _add_vector(lanes: int, dst: Any, value: Any, return_prev: bool) -> Any:
    name = f"atomic_addx{lanes}"
    target = _neighbours(name, check_operand(name, "dst", dst), lanes)
    is_tile = is_buffer_var(value) or isinstance(value, ir.TensorRegion)
    new = value if is_tile else as_expr(value)
    if is_tile or (isinstance(new, ir.TensorLoad) and lanes_of(new) == 1):
        new = _neighbours(name, new, lanes)
    if lanes_of(new) != lanes:
        raise InvalidOperand(
            f"{name}: the value has {lanes_of(new)} lanes",
            help=f"give the first of {lanes} neighbouring elements, or a vector of {lanes}",
        )
    return _element_update(Atomic(target, cast_like(new, target), "add"), return_prev)


def _neighbours(name: str, operand: ir.Expr, lanes: int) -> ir.TensorLoad:
    *outer, last = origin_of(operand)
    if isinstance(last, tirx.Ramp):
        if lanes_of(last) != lanes or constant(last.stride) != 1:
            raise InvalidOperand(
                f"{name}: `{operand}` is not {lanes} neighbouring elements",
                help=f"give the first of them, or T.Ramp(first, 1, {lanes}) as the last index",
            )
        last = last.base
    return tirx.BufferLoad(buffer_of(operand), [*outer, ramp(last, lanes)])


def lanes_of(value: ir.Expr) -> int:
    """The number of lanes of a value."""
    return int(DataType(str(value.ty.dtype)).lanes)


def cast_like(value: ir.Expr, target: ir.TensorLoad) -> ir.Expr:
    """A value in the dtype of an element."""
    return converted(value, dtype_of(target))


def _update(
    kind: str, dst: ir.Expr, value: Any, memory_order: str | None, return_prev: bool
) -> ir.Expr | None:
    name = f"atomic_{kind}"
    order = memory_order or "relaxed"
    if order not in ORDERS:
        raise InvalidValue(
            f"{name}: there is no memory order {memory_order!r}",
            help=f"the memory orders are {', '.join(ORDERS)}",
        )
    if not names_tile(value) and (return_prev or not names_tile(dst) or _has_one_element(dst)):
        target = _single(name, "dst", dst)
        new = cast_like(as_expr(value, target), target)
        return _element_update(Atomic(target, new, kind, order), return_prev)
    if return_prev:
        raise InvalidOperand(
            f"{name}: return_prev asks for the former values of a tile",
            help="update single elements in a loop over T.Parallel, with return_prev for each",
        )
    tile = check_operand(name, "dst", dst)
    new = value if names_tile(value) else converted(as_expr(value), dtype_of(tile))
    emit(AtomicTile(new, tile, kind, order), f"atomic_{kind}")
    return None


def names_tile(operand: ir.Expr | int) -> bool:
    """Tell a tile from an element, which has no extents, and from a value."""
    return is_buffer_var(operand) or isinstance(operand, ir.TensorRegion)


def _has_one_element(tile: ir.Expr) -> bool:
    return all(constant(extent) == 1 for extent in extents_of(tile) or ())


def _element_update(op: Atomic, return_prev: bool) -> ir.Expr | None:
    if return_prev:
        return checked_call(op, f"atomic_{op.kind}")
    emit(op, f"atomic_{op.kind}")
    return None


def _single(name: str, operand_name: str, operand: Any) -> ir.TensorLoad:
    """An operand that is one element, however it is written."""
    operand = check_operand(name, operand_name, operand)
    extents = extents_of(operand)
    if extents is not None and any(constant(extent) != 1 for extent in extents):
        raise InvalidOperand(
            f"{name}: {operand_name} is the tile {describe(operand)}, and the value is a single one",
            help="name an element, `C[i, j]`, or give a tile as the value too",
        )
    if extents is None:
        return operand
    return tirx.BufferLoad(buffer_of(operand), origin_of(operand))


VECTORS = ("float16", "bfloat16", "float32")
"""Dtypes of which some GPU adds several elements at once."""


def _check_dtype(kind: str, operand: ir.Expr) -> None:
    if dtype_of(operand) not in supported_dtypes(kind):
        raise UnsupportedDtype(
            f"atomic_{kind}: {describe(operand)} has a dtype without this operation",
            help=f"use one of {', '.join(supported_dtypes(kind))}",
        )


@tile_operator
class Atomic(Vectorizable):
    """Update one element, or a vector of neighbours one by one; its value is what was there before.

    `dst` is a load that names the place; `value` has its dtype. A vector that is `aligned` begins at a
    multiple of its size.
    """

    name = "atomic"
    inputs = ("dst",)
    outputs = ("dst",)
    is_tile = False

    dst: ir.TensorLoad
    value: ir.Expr
    kind: str = "add"
    order: str = "relaxed"
    aligned: bool = False

    def effects(self) -> OperatorEffects:
        return super().effects()._replace(is_atomic=True)

    def result_dtype(self) -> str:
        return str(self.dst.ty.dtype)

    def check(self) -> None:
        _check_dtype(self.kind, self.dst)

    def vectorized(self, variable: ir.Var, lanes: int, place: Sequence[Index]) -> Atomic | None:
        if self.kind != "add" or dtype_of(self.dst) not in VECTORS or lanes_of(self.dst) > 1:
            return None
        values = [substitute(self.value, {variable: variable + lane}) for lane in range(lanes)]
        *outer, last = place
        dst = tirx.BufferLoad(buffer_of(self.dst), [*outer, ramp(last, lanes)])
        value = tirx.Shuffle(values, list(range(lanes)))
        return replace(self, dst=dst, value=value, aligned=True)


@tile_operator
class AtomicLoad(TileOp):
    """Load one element; `src` is a load that names the place."""

    name = "atomic_load"
    inputs = ("src",)
    is_tile = False

    src: ir.TensorLoad
    order: str = "seq_cst"

    def effects(self) -> OperatorEffects:
        return super().effects()._replace(is_atomic=True)

    def result_dtype(self) -> str:
        return str(self.src.ty.dtype)

    def check(self) -> None:
        _check_dtype("load", self.src)


@tile_operator
class AtomicTile(TileOp):
    """Update every element of a tile, by those of another tile or by one value for all."""

    name = "atomic_tile"
    outputs = ("dst",)

    src: Any
    dst: ir.TensorRegion
    kind: str = "add"
    order: str = "relaxed"
    disable_tma: bool = False

    def effects(self) -> OperatorEffects:
        source = [self.src] if names_tile(self.src) else []
        return OperatorEffects([*source, self.dst], [self.dst])

    def check(self) -> None:
        self.normalized()
        _check_dtype(self.kind, self.dst)

    def normalized(self) -> AtomicTile:
        name = f"atomic_{self.kind}"
        if not names_tile(self.src):
            check_bounds(name, self.dst)
            return replace(self, dst=as_region(self.dst))
        by_origin = "or name dst by its first element, `C[i, j]`, to take the extents of the value"
        src, dst = matched_regions(name, self.src, self.dst, f"{SAME_EXTENTS}, {by_origin}")
        return replace(self, src=src, dst=dst)
