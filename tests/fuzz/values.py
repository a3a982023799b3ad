"""Arithmetic of the interpreter: numbers with a bound on how far a right result may be from them.

A `Value` is an array of numbers, one a lane, with the dtype that the program gives them. Integers are
exact. A float is held in float64 beside an absolute error: what rounding to its dtype may have added,
in any order of evaluation. Where every operand is exact and the result has a place in the dtype, the
result is exact as well. A comparison of floats that are too close to tell is uncertain, and what is
chosen by it may be either. So nothing is compared with a tolerance that someone made up.

What has no defined result (overflow of signed integers, a float that an integer can't hold) is
`Invalid`: the program is at fault, not the compiler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

__all__ = [
    "EPSILON",
    "UNKNOWN",
    "Invalid",
    "Value",
    "binary",
    "cast",
    "compare",
    "is_float",
    "literal",
    "logical",
    "monotone",
    "negate_bool",
    "round_trip",
    "rounded",
    "rounded_error",
    "select",
    "storage",
]


class Invalid(Exception):
    """The program has no defined meaning: a race, an undefined element, an overflow."""


FLOATS = {
    "float64": np.dtype("float64"),
    "float32": np.dtype("float32"),
    "float16": np.dtype("float16"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "float8_e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "float8_e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "float8_e8m0fnu": np.dtype(ml_dtypes.float8_e8m0fnu),
}
EPSILON = {name: float(ml_dtypes.finfo(dtype).eps) for name, dtype in FLOATS.items()}
"""Twice what one rounding may add, relative to the number: GPUs round the last bit as they like."""
_ADDED = {n: EPSILON[n] if EPSILON[n] <= 2**-23 else EPSILON[n] / 2 + 2**-22 for n in FLOATS}
"""The error of a rounding: narrow floats are the nearest to a number of float32 everywhere."""
_SMALLEST = {name: float(ml_dtypes.finfo(dtype).tiny) for name, dtype in FLOATS.items()}
_LARGEST = {name: float(ml_dtypes.finfo(dtype).max) for name, dtype in FLOATS.items()}


UNKNOWN = 1e30
"""The error of a number of which nothing is known, such as a quotient by what may be zero."""


def is_float(dtype: str) -> bool:
    """Tell a float's dtype from that of an integer or a boolean."""
    return dtype in FLOATS


def storage(dtype: str) -> np.dtype:
    """The dtype of numpy that holds a tensor's elements."""
    return FLOATS[dtype] if is_float(dtype) else np.dtype(dtype)


def held(dtype: str) -> Any:
    """The dtype of numpy that the interpreter computes in."""
    return np.float64 if is_float(dtype) else np.bool_ if dtype == "bool" else np.int64


@dataclass(frozen=True)
class Value:
    """Numbers of one dtype, one for each lane or one for all.

    Attributes
    ----------
    data : ndarray
        float64, int64 or bool.
    error : ndarray
        How far a right result may be from each; 1 for a boolean that may be either.
    dtype : str
        Of the program; "" for a Python number, which takes the dtype of what it meets.
    """

    data: np.ndarray
    error: np.ndarray
    dtype: str

    def __post_init__(self) -> None:
        if np.shape(self.data) != np.shape(self.error):
            data, error = np.broadcast_arrays(self.data, self.error)
            object.__setattr__(self, "data", data)
            object.__setattr__(self, "error", error)
        # Infinity has no error: nothing finite that is added to it changes it.
        if np.isinf(self.data).any():
            object.__setattr__(self, "error", np.where(np.isinf(self.data), 0.0, self.error))

    @property
    def exact(self) -> bool:
        """No lane has an error."""
        return not self.error.any()


def literal(number: float, dtype: str = "") -> Value:
    """A number of the program's text."""
    return Value(np.asarray(number), np.zeros(()), dtype)


def round_trip(data: np.ndarray, dtype: str) -> np.ndarray:
    """Floats as they come back from memory of a dtype."""
    with np.errstate(over="ignore"):
        return data.astype(FLOATS[dtype]).astype(np.float64)


def rounded_error(data: np.ndarray, error: np.ndarray, dtype: str) -> np.ndarray:
    """The error of floats after a rounding to `dtype`: none where they have a place in it."""
    if np.isinf(data).any():
        error = np.where(np.isinf(data), 0.0, error)
        data = np.where(np.isinf(data), 0.0, data)
    kept = (error == 0) & (round_trip(data, dtype) == data)
    added = _ADDED[dtype] * (np.abs(data) + error) + _SMALLEST[dtype]
    return np.where(kept, 0.0, error + added)


def rounded(data: np.ndarray, error: np.ndarray, dtype: str) -> Value:
    """A computed number in its dtype."""
    error = np.minimum(error, UNKNOWN)
    if is_float(dtype):
        if np.any((np.abs(data) > _LARGEST[dtype]) & np.isfinite(data)):
            raise Invalid(f"a {dtype} overflows")
        if np.isnan(data).any() or (np.isinf(data).any() and dtype == "float8_e4m3fn"):
            raise Invalid(f"a {dtype} is not a number")
        return Value(data, rounded_error(data, error, dtype), dtype)
    if dtype != "bool":
        limits = np.iinfo(dtype)
        if np.any(data < limits.min) or np.any(data > limits.max):
            raise Invalid(f"an {dtype} overflows")
    return Value(data, error, dtype)


def _rank(dtype: str) -> tuple[bool, bool, int, bool]:
    """Floats hold more than integers, more bits than fewer, unsigned integers than signed ones."""
    return is_float(dtype), dtype != "bool", storage(dtype).itemsize, dtype.startswith("u")


def unified(a: Value, b: Value) -> tuple[Value, Value, str]:
    """Two operands in one dtype: Python numbers follow, of others the one that holds more wins."""
    if not a.dtype and not b.dtype:
        dtype = "float32" if "f" in (a.data.dtype.kind, b.data.dtype.kind) else "int32"
        return cast(a, dtype), cast(b, dtype), dtype
    dtype = a.dtype or b.dtype
    if a.dtype and b.dtype and a.dtype != b.dtype:
        dtype = max(a.dtype, b.dtype, key=_rank)
        if is_float(a.dtype) and is_float(b.dtype) and _rank(a.dtype) == _rank(b.dtype):
            raise Invalid(f"{a.dtype} meets {b.dtype}")
    for number in (a, b):
        if not number.dtype and number.data.dtype.kind == "f" and not is_float(dtype):
            raise Invalid(f"{number.data} meets {dtype}")
    return cast(a, dtype), cast(b, dtype), dtype


def cast(value: Value, dtype: str) -> Value:
    """A number in another dtype: floats are cut towards zero, integers keep their low bits."""
    if value.dtype == dtype:
        return value
    data, error = value.data.astype(np.float64), value.error
    if is_float(dtype):
        return rounded(data, error, dtype)
    if dtype == "bool":
        return compare("!=", value, literal(0))
    if value.data.dtype.kind != "f":
        return Value(value.data.astype(dtype).astype(np.int64), error, dtype)
    whole = np.trunc(data)
    spread = np.maximum(whole - np.trunc(data - error), np.trunc(data + error) - whole)
    return rounded(whole.astype(np.int64), spread, dtype)


_OPERATIONS = {
    "+": (lambda a, b: a + b, lambda a, ea, b, eb: ea + eb),
    "-": (lambda a, b: a - b, lambda a, ea, b, eb: ea + eb),
    "*": (lambda a, b: a * b, lambda a, ea, b, eb: np.abs(a) * eb + np.abs(b) * ea + ea * eb),
}
_EXTREMES = {"max": np.fmax, "min": np.fmin}  # of NaN and a number the number
_OF_INTEGERS = {
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "truncdiv": lambda a, b: (a - np.fmod(a, b)) // b,
    "truncmod": np.fmod,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
}


def binary(operator: str, a: Value, b: Value) -> Value:
    """An arithmetic operator of two numbers."""
    a, b, dtype = unified(a, b)
    if operator in _OPERATIONS:
        compute, propagate = _OPERATIONS[operator]
        error = propagate(a.data, a.error, b.data, b.error)
        return rounded(compute(a.data, b.data), error, dtype)
    if operator in _EXTREMES:
        return _extreme(_EXTREMES[operator], a, b, dtype)
    if operator == "/":
        return _divided(a, b, dtype)
    divides = operator in ("//", "%", "truncdiv", "truncmod")
    if is_float(dtype) or (divides and np.any(b.data == 0)):
        raise Invalid(f"{operator} of floats, or of an integer by zero")
    unsure = (a.error > 0) | (b.error > 0)
    reach = 2 * (np.abs(a.data) + a.error + np.abs(b.data) + b.error) + 1
    return rounded(_OF_INTEGERS[operator](a.data, b.data), np.where(unsure, reach, 0.0), dtype)


def _extreme(choose: Any, a: Value, b: Value, dtype: str) -> Value:
    """The larger or smaller of two, which is one of them: nothing is rounded."""
    result = choose(a.data, b.data)
    low, high = (
        choose(a.data - a.error, b.data - b.error),
        choose(a.data + a.error, b.data + b.error),
    )
    with np.errstate(invalid="ignore"):
        spread = np.maximum(result - low, high - result)
    error = np.where((a.error > 0) | (b.error > 0), spread, 0.0)
    return Value(result, error, dtype)


def _divided(a: Value, b: Value, dtype: str) -> Value:
    nearest = np.abs(b.data) - b.error
    if not is_float(dtype) or np.any(b.data == 0):
        raise Invalid("a division by zero, or of integers")
    result = a.data / b.data
    known = nearest > 0
    error = (a.error + np.abs(result) * b.error) / np.where(known, nearest, 1.0)
    error = np.where(known, error, UNKNOWN)
    error = error + 2 * min(EPSILON[dtype], EPSILON["float32"]) * np.abs(result) + _SMALLEST[dtype]
    return rounded(result, error, dtype)


def monotone(function: Any, value: Value, within: float) -> Value:
    """A growing or falling function of floats, computed within a relative error."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        result = function(value.data)
        above, below = (function(value.data + e) for e in (value.error, -value.error))
        spread = np.maximum(np.abs(above - result), np.abs(result - below))
    if np.any(np.isinf(result) & np.isfinite(value.data)):
        raise Invalid(f"a {value.dtype} overflows")
    spread = np.where(np.isnan(spread), UNKNOWN, spread)  # what may lie outside of the domain
    error = spread + within * np.abs(result)
    # Integers are floored, rounded and cut without an error.
    return rounded(result, spread if within == 0 else error, value.dtype)


_COMPARISONS = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}


def compare(operator: str, a: Value, b: Value) -> Value:
    """A comparison, uncertain where the two may be either way."""
    a, b, _ = unified(a, b)
    margin = a.error + b.error
    with np.errstate(invalid="ignore"):
        uncertain = (np.abs(a.data.astype(np.float64) - b.data) <= margin) & (margin > 0)
    return Value(_COMPARISONS[operator](a.data, b.data), uncertain * 1.0, "bool")


def logical(operator: str, a: Value, b: Value) -> Value:
    """`and` or `or`: uncertain where an uncertain side decides."""
    joined = np.logical_and if operator == "and" else np.logical_or
    data = joined(a.data, b.data)
    decided = data != joined(a.data ^ (a.error > 0), b.data)
    decided |= data != joined(a.data, b.data ^ (b.error > 0))
    decided |= data != joined(a.data ^ (a.error > 0), b.data ^ (b.error > 0))
    return Value(data, decided * 1.0, "bool")


def negate_bool(value: Value) -> Value:
    """`not`."""
    return Value(np.logical_not(value.data), value.error, "bool")


def select(condition: Value, a: Value, b: Value) -> Value:
    """One of two numbers; where the condition is uncertain, with an error that covers both."""
    a, b, dtype = unified(a, b)
    chosen = np.where(condition.data, a.error, b.error)
    apart = np.abs(a.data.astype(np.float64) - b.data) + np.maximum(a.error, b.error)
    error = np.where(condition.error > 0, apart, chosen)
    return Value(np.where(condition.data, a.data, b.data), error, dtype)
