"""Floats with a chosen rounding: `T.ieee_add(x, y, "rz")`, ..., and `T.cast(value, dtype, round=)`.

See `tvmtile.tileop.rounded` for how targets do it.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile.codegen.narrow_floats import FORMATS
from tvmtile.codegen.narrow_floats import ROUNDINGS as CAST_ROUNDINGS
from tvmtile.codegen.rounding import ROUNDINGS
from tvmtile.errors import InvalidValue, UnsupportedDtype
from tvmtile.frontend import dtypes
from tvmtile.frontend.dtypes import DTypeLike, as_dtype
from tvmtile.frontend.values import as_expr
from tvmtile.ir.spans import current_span
from tvmtile.ir.types import Value
from tvmtile.tileop.rounded import APPROXIMATE, Rounded, RoundedCast

__all__ = [
    "cast",
    "fast_rcp",
    "fmul",
    "ieee_add",
    "ieee_fdiv",
    "ieee_fmaf",
    "ieee_frcp",
    "ieee_frsqrt",
    "ieee_fsqrt",
    "ieee_mul",
    "ieee_sub",
]

_NARROW = ("float16", "bfloat16")


def ieee_add(x: Value, y: Value, rounding_mode: str = "rn") -> ir.Expr:
    """`x + y`, rounded once.

    Parameters
    ----------
    x, y : Expr or number
        Of float32 or float64; of float16 or bfloat16, which are rounded to nearest only.
    rounding_mode : {"rn", "rz", "ru", "rd"}
        To nearest, ties to even; to zero; up; down.

    Raises
    ------
    InvalidValue
        For another rounding.
    UnsupportedDtype
        For other dtypes, and for a directed rounding of float16 or bfloat16.
    """
    return rounded("add", "ieee_add", rounding_mode, x, y)


def ieee_sub(x: Value, y: Value, rounding_mode: str = "rn") -> ir.Expr:
    """`x - y`, rounded once; see `ieee_add`."""
    return rounded("sub", "ieee_sub", rounding_mode, x, y)


def ieee_mul(x: Value, y: Value, rounding_mode: str = "rn") -> ir.Expr:
    """`x * y`, rounded once; see `ieee_add`."""
    return rounded("mul", "ieee_mul", rounding_mode, x, y)


def fmul(x: Value, y: Value) -> ir.Expr:
    """`x * y`, rounded to nearest before anything is added to it; see `ieee_add`."""
    return ieee_mul(x, y)


def ieee_fmaf(x: Value, y: Value, z: Value, rounding_mode: str = "rn") -> ir.Expr:
    """`x * y + z`, rounded once; see `ieee_add`."""
    return rounded("fma", "ieee_fmaf", rounding_mode, x, y, z)


def ieee_fdiv(x: Value, y: Value, rounding_mode: str = "rn") -> ir.Expr:
    """`x / y`, rounded once; see `ieee_add`."""
    return rounded("div", "ieee_fdiv", rounding_mode, x, y)


def ieee_frcp(x: Value, rounding_mode: str = "rn") -> ir.Expr:
    """`1 / x`, rounded once; see `ieee_add`."""
    return rounded("rcp", "ieee_frcp", rounding_mode, x)


def ieee_fsqrt(x: Value, rounding_mode: str = "rn") -> ir.Expr:
    """The square root, rounded once; see `ieee_add`."""
    return rounded("sqrt", "ieee_fsqrt", rounding_mode, x)


def ieee_frsqrt(x: Value) -> ir.Expr:
    """`1 / sqrt(x)`, rounded once to nearest; of float32 and narrower floats only."""
    return rounded("rsqrt", "ieee_frsqrt", "rn", x)


def fast_rcp(x: Value) -> ir.Expr:
    """`1 / x`, less exact where the target has a faster instruction."""
    return rounded("rcp", "fast_rcp", APPROXIMATE, x)


def rounded(operation: str, name: str, rounding: str, *values: Value) -> ir.Expr:
    """The call of an operation with a rounding, of scalars.

    Parameters
    ----------
    operation : str
        A key of `tvmtile.codegen.rounding.OPERATIONS`.
    name : str
        What the user wrote.
    rounding : str
        Of `ROUNDINGS`, or `APPROXIMATE`.
    *values : Expr or number
        The operands.
    """
    if rounding not in (*ROUNDINGS, APPROXIMATE):
        raise InvalidValue(
            f"T.{name}: Invalid rounding mode {rounding!r}",
            help='the modes are "rn" (to nearest), "rz" (to zero), "ru" (up) and "rd" (down)',
        )
    like = next((v for v in values if not isinstance(v, bool | int | float)), None)
    like = None if like is None else as_expr(like)
    operands = tuple(as_expr(1.0 * v if isinstance(v, int) else v, like) for v in values)
    kinds = {str(operand.ty.dtype) for operand in operands}
    if len(kinds) > 1:
        raise UnsupportedDtype(
            f"T.{name}: the operands have the dtypes {', '.join(sorted(kinds))}",
            help="cast them to one",
        )
    kind = kinds.pop()
    if kind in _NARROW:
        return _narrow(operation, name, rounding, operands, kind)
    op = Rounded(operands, operation, rounding)
    op.check()
    return op.to_call()


def _narrow(
    operation: str, name: str, rounding: str, operands: tuple[ir.Expr, ...], kind: str
) -> ir.Expr:
    """A rounding by way of float32, of more than twice the bits: the second changes nothing.

    A product and sum may have more bits than that. The one of the two float32 numbers around it whose
    last bit is odd rounds as it does.
    """
    if rounding not in ("rn", APPROXIMATE):
        raise UnsupportedDtype(
            f"T.{name}: {kind} is rounded to nearest only, not {rounding!r}",
            help="cast the operands to float32, and the result by T.cast(value, dtype, round=...)",
        )
    wide = tuple(tirx.Cast("float32", operand) for operand in operands)
    if operation != "fma":
        return tirx.Cast(kind, Rounded(wide, operation, rounding).to_call())
    below, above = tirx.Var("below", "uint32"), tirx.Var("above", "uint32")
    odd = tirx.Select((below & tirx.const(1, "uint32")) != tirx.const(0, "uint32"), below, above)
    result: Any = tirx.Cast(kind, tirx.reinterpret("float32", odd))
    for var, way in ((above, "ru"), (below, "rd")):
        bits = tirx.reinterpret("uint32", Rounded(wide, operation, way).to_call())
        result = tirx.Let(var, bits, result)
    return result


def cast(
    value: Any,
    dtype: DTypeLike,
    round: str = "",
    sat: bool = True,
    rbits: Any = None,
    span: ir.Span | None = None,
) -> Any:
    """Convert `value` to `dtype`, elementwise for a vector.

    Parameters
    ----------
    value : Expr or number
        What to convert.
    dtype : dtype
        The dtype of the result. Floats become integers by truncation, and narrower floats by rounding
        to nearest, ties to even; a number beyond the largest of a float of 8 bits becomes the largest.
    round : {"", "rn", "rz", "rp", "rm", "rs"}
        How a float16, bfloat16 or float32 becomes a narrower float: to nearest, to zero, up, down, or
        stochastically, which is up with the probability of what is lost.
    sat : bool
        With a rounding: what lies beyond the largest number becomes the largest, infinity too.
        Otherwise it becomes infinity, or NaN where the dtype has no infinity, or the largest number
        where the rounding leads towards zero. A float of 4 bits has neither: it needs True, and NaN
        becomes zero.
    rbits : Expr, optional
        32 random bits, for "rs"; of a conversion that loses `n` bits the upper `n` count.
    span : Span, optional
        Accepted for TileLang's kernels.

    Raises
    ------
    InvalidValue
        If there is no such rounding, or `rbits` do not go with it, or `sat` is False of a float of 4
        bits.
    UnsupportedDtype
        If the rounding does not go with the dtypes.
    """
    del span
    _check_rounding(round, sat, rbits)
    wanted = as_dtype(dtype)
    if not round and (sat or "float" not in wanted):
        return dtypes.cast(value, dtype)
    expression = as_expr(float(value) if isinstance(value, int) else value)
    source = str(expression.ty.dtype)
    if str(wanted) not in FORMATS or source not in ("float32", *_NARROW):
        if not round:
            return dtypes.cast(value, dtype)
        raise UnsupportedDtype(
            f"T.cast: a {source} can't become a {wanted} with round={round!r}",
            help=f"a scalar float16, bfloat16 or float32 becomes one of {', '.join(FORMATS)}",
        )
    has_nan = FORMATS[str(wanted)].has_nan
    if not (sat or has_nan):
        raise InvalidValue(
            f"T.cast: sat=False, but {wanted} has no infinity and no NaN",
            help="leave sat out: what lies beyond the largest number becomes the largest",
        )
    operands = [dtypes.cast(expression, "float32") if has_nan else _with_sign_of_nan(expression)]
    if rbits is not None:
        operands.append(dtypes.cast(as_expr(rbits), "uint32"))
    op = RoundedCast(tuple(operands), str(wanted), round or "rn", sat)
    return op.to_call(current_span())


def _with_sign_of_nan(value: Any) -> ir.Expr:
    """A float as a float32 that has its sign, which GPUs drop when they widen NaN."""
    wide = dtypes.cast(value, "float32")
    if str(value.ty.dtype) == "float32":
        return wide
    sign = tirx.Cast("uint32", tirx.reinterpret("uint16", value) & tirx.const(1 << 15, "uint16"))
    magnitude = tirx.reinterpret("uint32", wide) & tirx.const((1 << 31) - 1, "uint32")
    return tirx.reinterpret("float32", magnitude | (sign << tirx.const(16, "uint32")))


def _check_rounding(round: str, sat: bool, rbits: Any) -> None:
    if round not in ("", *CAST_ROUNDINGS):
        raise InvalidValue(
            f"T.cast: Invalid round {round!r}",
            help=f"the roundings are {', '.join(map(repr, CAST_ROUNDINGS))}",
        )
    if not isinstance(sat, bool):
        raise InvalidValue(f"T.cast: Invalid sat {sat!r}", help="sat is True or False")
    if (round == "rs") != (rbits is not None):
        problem = "rbits is required with" if rbits is None else "rbits is only valid with"
        raise InvalidValue(
            f"T.cast: {problem} round='rs'", help="stochastic rounding needs 32 random bits"
        )
