"""Values that a name of a kernel may hold: an error, indices, and a buffer's elements.

Elements and regions, `buffer[i, j]` and `buffer[a:b, :]`, are checked where they are written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeGuard

from tvm import DataType, ir, tirx
from tvm.sym import Analyzer
from tvm.tirx.layout import S, TileLayout
from tvm.tirx.script import builder as T
from tvm_ffi import structural_equal

from tvmtile._tvm import as_expression, buffer_of, is_buffer_var, ranges_of, traced
from tvmtile.errors import (
    InvalidOperand,
    OutOfBounds,
    ScopeError,
    ShapeMismatch,
    SourceLocation,
    TileError,
)
from tvmtile.ir.operands import constant, describe
from tvmtile.ir.spans import current_span


class Unusable:
    """The value of a name that has none here: any use is the error."""

    def __init__(self, error: Callable[[], TileError]) -> None:
        object.__setattr__(self, "_error", error)

    def __getattr__(self, attribute: str) -> Any:
        raise_unusable(self)

    def _use(self, *_: object, **__: object) -> Any:
        raise_unusable(self)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _use
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _use
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __pow__ = __rpow__ = _use
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __neg__ = __invert__ = _use
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _use
    __getitem__ = __setitem__ = __call__ = __iter__ = __len__ = __index__ = __bool__ = _use
    __float__ = __int__ = __enter__ = __exit__ = _use
    __hash__ = None  # type: ignore[assignment]


def raise_unusable(value: Unusable) -> NoReturn:
    """Report the use of a name that has no value."""
    make_error = object.__getattribute__(value, "_error")
    raise make_error()


def escaped(
    name: str, construct: str, location: SourceLocation | None, value: object | None = None
) -> Unusable:
    """The value of a name after the run-time loop or branch that bound it."""
    where = f" (line {location.line})" if location is not None else ""
    if is_buffer_var(value):
        remedy = f"the tile belongs to the {construct}: allocate {name} before it"
    else:
        remedy = (
            f"there is no value where the {construct} is not entered: give {name} a first value "
            f"before the {construct}, such as `{name} = 0.0`"
        )
    return Unusable(
        lambda: ScopeError(
            f"{name!r} is bound inside a {construct}{where} and used after it", help=remedy
        )
    )


def counted(name: str) -> Unusable:
    """The value of a loop variable's name after the loop."""
    return Unusable(
        lambda: ScopeError(
            f"{name!r} counts the iterations of a loop and is used after it",
            help="write the value that is meant, such as the loop's extent",
        )
    )


_SCALAR_LAYOUT = TileLayout(S[1])


def is_scalar_variable(value: object) -> TypeGuard[Any]:
    """Tell whether `value` is the load of a variable made by `T.alloc_var` (TVM's local scalar)."""
    if not isinstance(value, ir.TensorLoad) or not is_buffer_var(buffer_of(value)):
        return False
    buffer = buffer_of(value).ty
    return (
        buffer.storage_scope == "local"
        and len(buffer.shape) == 1
        and structural_equal(buffer.layout, _SCALAR_LAYOUT)
    )


class Ref:
    """Annotation of a macro's parameter that is passed by reference, so that the macro can store it."""

    def __class_getitem__(cls, _: object) -> type[Ref]:
        return cls


class Indices(list[Any]):
    """A list of indices, which arithmetic does not take for one of them, or for a list to repeat."""

    def _refuse(self, _: object) -> NoReturn:
        raise InvalidOperand(
            f"arithmetic on the indices of {len(self)} axes, which have one name",
            help="name each, `with T.Kernel(m, n) as (bx, by):` and `for i, j in T.Parallel(m, n):`, "
            "or take one of them, `block[0]`",
        )

    def __add__(self, other: Any) -> Any:
        """More indices behind these, as those of an element."""
        return super().__add__(other) if isinstance(other, list) else self._refuse(other)

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __mod__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse


class Elements:
    """A buffer whose elements and regions are about to be read, `buffer[...]`.

    A constant negative index counts from the end, as in Python. Where elements lie outside is checked
    once it is known that the program gets there (`tvmtile.frontend.program`).
    """

    __slots__ = ("_buffer",)

    def __init__(self, buffer: ir.Var) -> None:
        self._buffer = buffer

    def __getitem__(self, index: Any) -> Any:
        buffer = self._buffer
        items = _items(index)
        shape = buffer.ty.shape
        if len(items) > len(shape):
            raise _wrong_rank(buffer, len(items))
        is_region = len(items) < len(shape) or any(isinstance(item, slice) for item in items)
        if not is_region:
            indices = [_index(buffer, item, axis) for axis, item in enumerate(items)]
            return traced(tirx.BufferLoad(buffer, indices, span=current_span()))
        for axis, item in enumerate(items):
            _check_slice(buffer, item, axis)
        return buffer[tuple(items)]


def store_indices(buffer: ir.Var, index: Any, value: ir.Expr) -> list[Any]:
    """The index expressions of `buffer[index] = value`; a slice of the last axis takes a vector.

    Raises
    ------
    InvalidOperand
        If there are not as many indices as dimensions, one is not an integer, or a region is given
        anything but a vector of its elements.
    ShapeMismatch
        If the vector and the slice differ in length.
    """
    items = _items(index)
    if len(items) != len(buffer.ty.shape):
        raise _wrong_rank(buffer, len(items))
    if any(isinstance(item, slice) for item in items[:-1]):
        raise _region_stored(buffer)
    indices = [_index(buffer, item, axis) for axis, item in enumerate(items)]
    lanes = DataType(str(value.ty.dtype)).lanes
    if indices and isinstance(indices[-1], tirx.Ramp) and lanes == 1:
        raise _region_stored(buffer)
    if items and isinstance(items[-1], slice) and lanes != _lanes(indices[-1]):
        raise ShapeMismatch(
            f"{lanes} elements are assigned to {_lanes(indices[-1])} of {describe(buffer)}",
            help="give both sides the same number of elements",
        )
    return indices


def _lanes(index: Any) -> int:
    return int(index.lanes) if isinstance(index, tirx.Ramp) else 1


def vector_of(region: ir.TensorRegion) -> ir.Expr | None:
    """The elements of a region as one vector; None where they do not lie along the last axis."""
    *outer, last = ranges_of(region)
    lanes = constant(last.extent)
    if lanes is None or any(constant(r.extent) != 1 for r in outer):
        return None
    indices = [r.min for r in outer]
    indices.append(last.min if lanes == 1 else T.ramp(last.min, 1, lanes))
    return tirx.BufferLoad(buffer_of(region), indices, span=current_span())


def _items(index: object) -> list[Any]:
    return list(index) if isinstance(index, tuple | list | ir.Array) else [index]


def _wrong_rank(buffer: ir.Var, count: int) -> InvalidOperand:
    rank = len(buffer.ty.shape)
    return InvalidOperand(
        f"{describe(buffer)} has {rank} dimension{'s' * (rank != 1)} and is indexed with {count}",
        help="give one index for each dimension",
    )


def _region_stored(buffer: ir.Var) -> InvalidOperand:
    return InvalidOperand(
        f"a region of {describe(buffer)} can't be assigned to",
        help="use T.fill(region, value) or T.copy(source, region), or store its elements in a loop "
        "over T.Parallel",
    )


def _index(buffer: ir.Var, item: Any, axis: int) -> Any:
    if isinstance(item, slice):
        return _vector(buffer, item, axis)
    item = as_expression(item)
    if isinstance(item, tirx.IntImm):
        item = int(item)
    if isinstance(item, int) and item < 0:
        return _from_end(buffer.ty.shape[axis], item)
    _check_integer(buffer, item)
    return item


def _from_end(extent: Any, index: int) -> Any:
    """A negative index counted from 0; it stays negative where it lies before the first element."""
    known = constant(extent)
    if known is None:
        return extent + index
    return index + known if index + known >= 0 else index


def _check_integer(buffer: ir.Var, item: Any) -> None:
    if isinstance(item, str):
        raise InvalidOperand(
            f"{describe(buffer)} is indexed with the string {item!r}",
            help="an index is an integer, a slice or a value of the kernel",
        )
    is_float = isinstance(item, float) or (ir.is_prim_expr(item) and "float" in str(item.ty.dtype))
    if is_float:
        raise InvalidOperand(
            f"{describe(buffer)} is indexed with the float {item}",
            help="use //, since in Python `/` makes a float; T.cast(x, 'int32') cuts a value off",
        )


def _vector(buffer: ir.Var, item: slice, axis: int) -> Any:
    """The elements of a slice as the lanes of one vector."""
    _check_slice(buffer, item, axis)
    start = 0 if item.start is None else item.start
    stop = buffer.ty.shape[axis] if item.stop is None else item.stop
    lanes = constant(Analyzer().simplify(stop - start))
    if lanes is None:
        raise _region_stored(buffer)
    return start if lanes == 1 else T.ramp(start, 1, lanes)


def _check_slice(buffer: ir.Var, item: object, axis: int) -> None:
    if not isinstance(item, slice):
        _check_integer(buffer, item)
        return
    if item.step not in (None, 1):
        raise InvalidOperand(
            f"a slice of {describe(buffer)} has the step {item.step}",
            help="a region has no gaps: copy the elements in a loop over T.Parallel",
        )
    for bound in (item.start, item.stop):
        if bound is None:
            continue
        _check_integer(buffer, bound)
        if isinstance(bound, int) and bound < 0:
            raise OutOfBounds(
                f"a slice of {describe(buffer)} begins or ends at {bound} along axis {axis}",
                help=f"bounds of a slice count from 0: write {buffer.ty.shape[axis]} - {-bound}",
            )
