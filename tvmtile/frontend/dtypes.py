"""The dtypes of the language: `T.float16`, `T.int8`, `T.float8_e4m3fn`, ...

A dtype is a string with a few abilities, so it can be given wherever TVM, numpy or a user's own
table expects a name: `T.float16 == "float16"`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from tvm import DataType, ir, tirx

from tvmtile._tvm import as_expression, dtype_constructed, traced
from tvmtile.errors import InvalidOperand, InvalidValue, UnsupportedDtype, import_optional
from tvmtile.ir.operands import describe, integer_range, wrapped

if TYPE_CHECKING:
    import torch

    DTypeLike: TypeAlias = str | type | torch.dtype | np.dtype[Any]
    """A dtype as one may write it; TVM's and ours are strings."""
    Extent: TypeAlias = int | ir.Expr
    Shape: TypeAlias = Extent | Sequence[Extent]
    """Extents, or the only one."""
else:
    DTypeLike = Extent = Shape = Any

_SCALARS = (
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (4, 8, 16, 32, 64)),
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn",
)
_LANES = (2, 4, 8, 16, 32, 64)
_ALIASES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "char": "int8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "uchar": "uint8",
    "uint": "uint32",
    "tfloat32": "float32",  # rounded to TensorFloat-32 by a GPU's matrix instructions only
    "float8_e4m3": "float8_e4m3fn",
    "float4_e2m1fn_x2": "float4_e2m1fn",
}


class DType(DataType):
    """A dtype: TVM's own, which is a string too, with a few abilities more.

    Calling it casts, as in `T.float32(x)`.

    Examples
    --------
    >>> float16 = DType("float16")
    >>> float16 == "float16", float16.bits
    (True, 16)
    """

    __slots__ = ()

    def __call__(self, *values: Any) -> Any:
        """A constant or a cast of a value; without one, a new variable of this dtype.

        "inf", "-inf" and "nan" are numbers too. Of a vector dtype, one value for all lanes or one for
        each.

        Raises
        ------
        InvalidOperand
            If there are several values, and not one for each lane.
        """
        if len(values) > 1:
            return self._vector(values)
        if not values or values[0] is None:
            return traced(tirx.Var("", str(self)))
        (value,) = values
        if isinstance(value, str):
            value = float(value)
        if isinstance(value, bool | int | float):
            return traced(tirx.const(value, str(self)))
        return traced(cast(value, self))

    def _vector(self, values: tuple[Any, ...]) -> ir.Expr | None:
        """A vector of one value a lane."""
        if len(values) != self.lanes:
            raise InvalidOperand(
                f"T.{self}: {len(values)} values for {self.lanes} lanes",
                help="give one value for all lanes, or one for each",
            )
        lane = DType(str(self).rpartition("x")[0])
        return traced(tirx.Shuffle([lane(value) for value in values], list(range(len(values)))))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int | slice):
            return super().__getitem__(index)
        raise TypeError(f"{self} is a dtype; allocate an array with T.alloc_local(shape, {self!r})")

    @property
    def bytes(self) -> int:
        """Bytes of one element, rounded up."""
        return int(self.bits * self.lanes + 7) // 8

    def as_torch(self) -> Any:
        """The torch dtype that stores elements of this one (imports torch).

        Two elements of 4 bits share a byte: they are `int8` to torch, or its packed float4.
        """
        torch = import_optional("torch", "torch", f"T.{self}.as_torch()")
        if "float4" in self:
            return getattr(torch, "float4_e2m1fn_x2", torch.int8)
        return getattr(torch, {"int4": "int8", "uint4": "uint8"}.get(str(self), str(self)))


def as_dtype(value: DTypeLike) -> DType:
    """Understand a dtype however it is written.

    Raises
    ------
    UnsupportedDtype
        If nothing of that name exists; the message offers the nearest one.
    """
    if isinstance(value, DType):
        return value
    constructed = dtype_constructed(value)
    if constructed is not None:
        return DType(constructed)
    if isinstance(value, type):
        name = {bool: "bool", int: "int32", float: "float32"}.get(value, value.__name__)
    elif type(value).__module__ == "torch":
        name = str(value).removeprefix("torch.")
    else:
        name = str(getattr(value, "name", value))
    name = _ALIASES.get(name, name)
    scalar, _, lanes = (
        name.rpartition("x") if name[-1:].isdigit() and "x" in name else (name, "", "")
    )
    if scalar not in _SCALARS or (lanes and not lanes.isdigit()):
        if isinstance(value, int):
            offer = "an extent belongs into the shape, one argument: `(64, 64)`"
        elif near := _written_out(name) or difflib.get_close_matches(
            name, [*_SCALARS, *_ALIASES], n=1
        ):
            offer = f"did you mean {near[0]!r}?"
        else:
            offer = f"the dtypes are {', '.join(_SCALARS)}"
        raise UnsupportedDtype(f"there is no dtype {name!r}", help=offer)
    return DType(name)


def _written_out(name: str) -> list[str]:
    """The dtype that Triton and others call `fp16`, `bf16` or `i32`; none for other names."""
    kinds = {"fp": "float", "f": "float", "bf": "bfloat", "i": "int", "u": "uint"}
    kind = name.rstrip("0123456789")
    long = kinds.get(kind, "") + name[len(kind) :]
    return [long] if long in _SCALARS else []


def dtype_names() -> list[str]:
    """All names that the language exports as dtypes."""
    vectors = [f"{scalar}x{lanes}" for scalar in _SCALARS for lanes in _LANES if scalar != "bool"]
    return [*_SCALARS, *vectors, *_ALIASES]


def is_float4(dtype: DTypeLike) -> bool:
    """Tell whether a dtype is that of floats of four bits, which lie in pairs in bytes."""
    return str(as_dtype(dtype)).startswith("float4_e2m1fn")


def cast(value: Any, dtype: DTypeLike) -> Any:
    """Convert `value` to `dtype`, elementwise for a vector.

    Parameters
    ----------
    value : Expr or number
        What to convert.
    dtype : dtype
        The dtype of the result. Floats become integers by truncation.
    """
    wanted = as_dtype(dtype)
    if isinstance(value, bool | int | float):
        return tirx.const(_limited(value, str(wanted)), str(wanted))
    expression = as_expression(value)
    if not ir.is_prim_expr(expression):
        raise InvalidOperand(
            f"cast to {wanted}: {describe(value)} is not a value of the kernel",
            help="index a tile, `tile[i, j]`, in a loop over T.Parallel",
        )
    source = str(expression.ty.dtype)
    lanes = DataType(source).lanes
    result = f"{wanted}x{lanes}" if lanes > 1 and wanted.lanes == 1 else str(wanted)
    if source == result and not isinstance(expression, tirx.LShift):  # which would keep its bits
        return expression
    if str(wanted) == "bool":  # as C and TVM have it; TVM's folding of constants asks for 0 or 1
        return expression != tirx.const(0, source)
    return conversion(with_kept_bits(expression, wanted), result)


_LARGEST = {
    dtype: float(tirx.max_value(dtype).value)
    for dtype in ("float16", "float32", "float8_e4m3fn", "float8_e5m2")
}
_LARGEST["bfloat16"] = 2.0**128 - 2.0**120  # TVM has that of float32
_INFINITE = {"float16": 65520.0, "float8_e5m2": 61440.0}
_INFINITE |= {"bfloat16": 2.0**128 - 2.0**119, "float32": 2.0**128 - 2.0**103}
"""The least number that rounds to infinity."""


_MOST_CASTS = 16


def conversion(value: ir.Expr, dtype: str) -> ir.Expr:
    """The conversion of a value, where it has another dtype."""
    if isinstance(value, tirx.IntImm) and dtype.startswith(("int", "uint")):
        low_bits = wrapped(int(value.value), str(DataType(dtype).with_lanes(1)))
        if low_bits != int(value.value):  # which TVM's folding refuses
            return tirx.const(low_bits, dtype)
    number = _number_of(value)
    if number is not None and "float" in str(value.ty.dtype) and dtype.startswith(("int", "uint")):
        low, high = integer_range(str(DataType(dtype).with_lanes(1)))
        if not low - 1 < number < high + 1:
            raise InvalidValue(
                f"{number} is no {dtype}",
                help="give a number that the dtype holds, or use a wider one",
            )
        return tirx.const(int(number), dtype)
    if number is None or (limited := _limited(number, dtype)) is number:
        return tirx.Cast(dtype, value)
    return tirx.const(limited, dtype)


def _limited(number: float, dtype: str) -> float:
    """The value at run time of a number that a float can't hold: TVM's folding refuses it."""
    scalar = str(DataType(dtype).with_lanes(1))
    largest = _LARGEST.get(scalar, math.inf)
    if not abs(number) > largest:  # also NaN
        return number
    rounds_up = scalar in _INFINITE and abs(number) >= _INFINITE[scalar]
    return math.copysign(math.inf if rounds_up else largest, number)


def _number_of(value: Any) -> float | None:
    """The number that a constant is, also one that was converted; None of anything else.

    Long chains of conversions, which Python makes, are no constants.
    """
    nodes = [value]
    while isinstance(nodes[-1], tirx.Cast) and len(nodes) < _MOST_CASTS:
        nodes.append(nodes[-1].value)
    if not isinstance(nodes[-1], tirx.IntImm | tirx.FloatImm):
        return None
    number = float(nodes[-1].value)
    for node in reversed(nodes):
        dtype = str(node.ty.dtype)
        if dtype in ("float64", "int64") or isinstance(node, tirx.IntImm):
            continue
        if dtype not in _LARGEST:
            return None
        number = _rounded(number, dtype)
    return number


def _rounded(number: float, dtype: str) -> float:
    """The float of a dtype that is nearest to a number."""
    import ml_dtypes  # noqa: F401 - numpy has narrow floats from it

    with np.errstate(over="ignore"):
        return float(np.float64(_limited(number, dtype)).astype(dtype))


def with_kept_bits(value: ir.Expr, wanted: DType) -> ir.Expr:
    """`value`, with the bits that a left shift moves out of 8 or 16, if `wanted` has more.

    A kernel that packs bits says `T.cast(x << 8, "uint32")`, and means what C does: 32 bits.
    """
    if not isinstance(value, tirx.LShift) or "int" not in wanted:
        return value
    narrow = DType(str(value.ty.dtype))
    if narrow.bits >= min(wanted.bits, 32):
        return value
    wide = "uint32" if narrow.startswith("u") else "int32"
    return tirx.shift_left(*(cast(side, wide) for side in (value.a, value.b)))
