"""Values of Python, or of the running kernel, as a statement takes them."""

from __future__ import annotations

import math
import operator
from typing import Any

from tvm import DataType, ir, tirx
from tvm.tirx.expr import ExprOp
from tvm.tirx.script import builder as T

from tvmtile._tvm import as_expression, is_buffer_var
from tvmtile.errors import InvalidOperand
from tvmtile.frontend.dtypes import (
    DType,
    DTypeLike,
    cast,
    conversion,
    with_kept_bits,
)
from tvmtile.frontend.proxy import Unusable, raise_unusable, store_indices, vector_of
from tvmtile.ir.operands import describe
from tvmtile.ir.rewriting import contains
from tvmtile.ir.spans import current_span
from tvmtile.ir.types import Index, Value

_SHIFTS = {"lshift": "<<", "rshift": ">>"}


BITWISE = {"and_", "or_", "xor", *_SHIFTS}


ARITHMETIC = {"add", "sub", "mul", "floordiv", "mod"}


def binary(op: str, left: Any, right: Any) -> Any:
    """An operator between two values."""
    return getattr(operator, op)(*operands(op, left, right))


def operands(op: str, left: Any, right: Any) -> tuple[Any, Any]:
    """The operands as TVM's operator has to have them, so that none of their bits is lost."""
    if op in FOLDED:
        left, right = _hidden_where_folded(op, left, right)
    if op in ARITHMETIC and _is_truth(left) and _is_truth(right):
        return converted(left, "int32"), converted(right, "int32")
    if op in BITWISE:
        left, right = _as_wide_as(right, left), _as_wide_as(left, right)
    if op in _SHIFTS:
        left = _shifted(_SHIFTS[op], left, right)
    return left, right


def _hidden_where_folded(op: str, left: Any, right: Any) -> tuple[Any, Any]:
    """The operands such that TVM leaves to run time what zeros among them make.

    To TVM `x * 0` and `0 / x` are 0, which infinity and NaN do not give, `x + 0` and `x - -0` are x,
    which -0 does not, and `x / 0` is an error. So is `0 - 1` of unsigned integers.
    """
    zeros = _sign_of_zero(left), _sign_of_zero(right)
    if zeros == (None, None):
        return left, right
    dtypes = [found for value in (left, right) if (found := lane_dtype(value)) is not None]
    unsigned = lane_dtype(right) or lane_dtype(left) or ""
    is_number = type(right) is int or isinstance(right, tirx.IntImm)
    if op == "sub" and is_number and zeros[0] is not None and unsigned.startswith("uint"):
        return left, tirx.bitwise_xor(converted(right, unsigned), tirx.const(0, unsigned))
    is_float = any(isinstance(value, float) for value in (left, right))
    dtype = next((d for d in dtypes if "float" in d), "float32" if is_float and dtypes else None)
    if dtype is None:
        return left, right
    folded = {
        "add": (zeros[0] == 1, zeros[1] == 1),
        "sub": (False, zeros[1] == -1),
        "mul": (zeros[0] is not None, zeros[1] is not None),
        "truediv": (zeros[0] is not None, zeros[1] is not None),
    }[op]
    signs = zip((left, right), zeros, folded, strict=True)
    first, second = (_hidden_zero(sign, dtype) if hide else value for value, sign, hide in signs)
    return first, second


FOLDED = {"add", "sub", "mul", "truediv"}


def _sign_of_zero(value: Any) -> int | None:
    """1 of a constant that is zero, -1 of one that is its negative, None of anything else."""
    if isinstance(value, tirx.IntImm | tirx.FloatImm):
        value = value.value
    if isinstance(value, bool) or not isinstance(value, int | float) or value != 0:
        return None
    return int(math.copysign(1, value))


def lane_dtype(value: Any) -> str | None:
    """The dtype of a lane of a value of the kernel; None of a value of Python."""
    value = as_expression(value)
    if not ir.is_prim_expr(value) or is_buffer_var(value):
        return None
    return str(DataType(str(value.ty.dtype)).with_lanes(1))


def _hidden_zero(sign: int | None, dtype: str) -> ir.Expr:
    """A zero whose bits TVM does not look at; compilers of machine code do."""
    zero = tirx.reinterpret("float32", tirx.const(1 << 31, "uint32"))  # to TVM 0 is a null pointer
    zero = zero if sign == -1 else -zero
    return zero if dtype == "float32" else tirx.Cast(dtype, zero)


def with_sign(value: Any) -> Any:
    """A value of which TVM does not know that it is zero, and takes -0 for 0."""
    sign, dtype = _sign_of_zero(value), lane_dtype(value)
    if sign is None or dtype is None or "float" not in dtype:
        return value
    return _hidden_zero(sign, dtype)


def _is_truth(value: Any) -> bool:
    """Tell whether a value is a truth value, whose sums TVM would cut off to one bit."""
    if isinstance(value, bool | ExprOp):
        return isinstance(value, bool) or str(value.expr_ty().dtype) == "bool"
    return ir.is_prim_expr(value) and str(value.ty.dtype).partition("x")[0] == "bool"


def _shifted(symbol: str, value: Any, amount: Any) -> Any:
    """The operand of a shift: 8 and 16 bits become 32, as in C, where all would be shifted out.

    Raises
    ------
    InvalidOperand
        If the value has not so many bits, or the amount is negative.
    """
    if type(amount) is not int or not ir.is_prim_expr(value):
        return value
    dtype = DType(str(value.ty.dtype))
    if "int" not in dtype or 0 <= amount < dtype.bits:
        return value
    if symbol == "<<" and dtype.bits <= amount < 32:
        return cast(value, "uint32" if dtype.startswith("u") else "int32")
    raise InvalidOperand(
        f"{described(value)} is shifted by {amount}, `{symbol} {amount}`, and has "
        f"{dtype.bits} bits",
        help=f'make it wider before: T.cast(value, "uint{max(32, 2 * dtype.bits)}") {symbol} ...'
        if 0 <= amount < 64
        else "an amount is at least 0 and less than the number of bits",
    )


def _as_wide_as(other: Any, value: Any) -> Any:
    """A number beside a value of the kernel, as a constant that holds it, and a left shift likewise.

    TVM takes numbers for int32 beside bitwise operators, and cuts them off.
    """
    if not ir.is_prim_expr(other):
        return value
    dtype = DType(str(other.ty.dtype))
    if type(value) is not int:
        return with_kept_bits(value, dtype)
    if -(2**31) <= value < 2**31:
        return value
    limit = 2 ** (dtype.bits if dtype.startswith("uint") else dtype.bits - 1)
    return tirx.const(value, str(dtype) if -limit <= value < limit else "int64")


def as_condition(value: Any, keep: bool = False) -> Any:
    """A run-time condition as a boolean expression, anything else as a Python truth value.

    With `keep`, a Python value stays what it is, as the operands of `and` and `or` do.
    """
    value = as_expression(value)
    if isinstance(value, tirx.IntImm):
        return bool(value.value)
    if is_buffer_var(value) or isinstance(value, ir.TensorRegion):
        raise InvalidOperand(
            f"{described(value)} is a tile, not a condition",
            help="compare one element, or reduce the tile with T.any_of or T.all_of",
        )
    if ir.is_prim_expr(value):
        # `value != 0` would be TVM's comparison that is not yet an expression.
        is_bool = value.ty.dtype == "bool"
        return value if is_bool else tirx.NE(value, tirx.const(0, value.ty.dtype))
    return value if keep else bool(value)


def store_element(buffer: ir.Var, index: Any, value: Any) -> None:
    """Emit `buffer[index] = value`, converting the value to the buffer's dtype."""
    stored = converted(value, str(buffer.ty.dtype))
    indices = store_indices(buffer, index, stored)
    T.add_to_parent(tirx.BufferStore(buffer, stored, indices, span=current_span()))


def converted(value: Any, dtype: DTypeLike) -> Any:
    """`value` as an expression of `dtype`; a vector keeps its lanes."""
    value = as_expression(value)
    if isinstance(value, bool | int | float):
        return tirx.const(bool(value) if dtype == "bool" else value, str(dtype))
    if isinstance(value, ir.TensorRegion):
        vector = vector_of(value)
        value = value if vector is None else vector
    if not ir.is_prim_expr(value):
        raise InvalidOperand(
            f"{described(value)} is not a value that can be stored",
            help="store a number, an element of a buffer or an expression of them",
        )
    source = str(value.ty.dtype)
    scalar, _, lanes = source.partition("x")
    is_vector = bool(lanes) and scalar != source and DataType(str(dtype)).lanes == 1
    wanted = f"{dtype}x{lanes}" if is_vector else str(dtype)
    if source == wanted:
        return value
    value = with_kept_bits(value, DType(wanted))
    return value if str(value.ty.dtype) == wanted else conversion(value, wanted)


KINDS = ("bool", "int", "float")


def as_count(value: Any) -> Any:
    """A number of iterations or blocks as int32 or int64: loops have no variables of other dtypes."""
    dtype = dtype_of_variable(value) or ""
    if "int" not in dtype or dtype in ("int32", "int64"):
        return value
    return cast(value, "int32" if DataType(dtype).bits < 32 else "int64")


def kind_of(dtype: str) -> str:
    """The kind, of `KINDS`, that a dtype is."""
    return next((kind for kind in KINDS if kind in dtype), "float")


def dtype_of_variable(value: Any) -> str | None:
    """The dtype of a variable that begins with a value; None for what no variable holds."""
    value = as_expression(value)
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int32" if -(2**31) <= value < 2**31 else "int64"
    if isinstance(value, float):
        return "float32"
    if is_buffer_var(value) or not ir.is_prim_expr(value):
        return None
    dtype = str(value.ty.dtype)
    return dtype if DataType(dtype).lanes == 1 and dtype != "handle" else None


def is_number(value: object) -> bool:
    """Tell whether a value is a number, of Python or of the running kernel."""
    value = as_expression(value)
    is_expression = ir.is_prim_expr(value) and not isinstance(value, ir.StringImm)
    return is_expression or isinstance(value, bool | int | float)


def reads_memory(value: ir.Expr) -> bool:
    """Tell whether an expression loads something, or calls what may."""
    return contains(value, (ir.TensorLoad, ir.Call))


def described(value: object) -> str:
    """A value in the words of an error."""
    if isinstance(value, Unusable):
        raise_unusable(value)
    if is_buffer_var(value):
        return f"the buffer {describe(value)}"
    if isinstance(value, ir.Expr):
        return f"the expression `{value}`"
    return f"a {type(value).__name__}"


def as_expr(value: Any, like: Any = None) -> ir.Expr:
    """A Python number or a comparison as an expression; numbers take the dtype of `like`."""
    value = as_expression(value)
    if isinstance(value, bool | int | float):
        if ir.is_prim_expr(like):
            return tirx.const(value, str(like.ty.dtype))
        return tirx.const(value, "float32" if isinstance(value, float) else "int32")
    if not ir.is_prim_expr(value):
        raise InvalidOperand(
            f"a function of elements got {describe(value)}",
            help="index a tile, `tile[i, j]`, in a loop over T.Parallel",
        )
    return value


def as_exprs(a: Any, b: Any) -> tuple[ir.Expr, ir.Expr]:
    """Two operands as expressions; a number takes the dtype of the other."""
    return as_expr(a, b), as_expr(b, a)


def are_numbers(*values: object) -> bool:
    """Tell whether all are numbers of Python."""
    return all(isinstance(value, bool | int | float) for value in values)


def ceildiv(a: Index, b: Index) -> Index:
    """`a / b` rounded up, for integers; of Python integers, a Python integer."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    a, b = alike(a, b)
    if isinstance(b, tirx.IntImm) and b.value > 0:
        return tirx.ceildiv(a, b)
    has_rest = tirx.NE(tirx.floormod(a, b), tirx.const(0, a.ty.dtype))
    return tirx.floordiv(a, b) + tirx.Cast(str(a.ty.dtype), has_rest)


def if_then_else(condition: Value, then: Value, otherwise: Value) -> Any:
    """One of two values; only the chosen one is evaluated, so it may guard a load.

    Parameters
    ----------
    condition : Expr or bool
        Decides at run time, or now if it is a Python value. A number is true where it is not 0.
    then, otherwise : Expr or number
        Values of one dtype; a number takes the dtype of the other.
    """
    test = as_condition(condition)
    if isinstance(test, bool):
        return then if test else otherwise
    if are_numbers(then, otherwise):
        is_float = isinstance(then, float) or isinstance(otherwise, float)
        kind = "float32" if is_float else "int32"
        a, b = tirx.const(then, kind), tirx.const(otherwise, kind)
    else:
        a, b = as_exprs(then, otherwise)
    return tirx.if_then_else(test, *_promoted(a, b))


def alike(a: Any, b: Any) -> tuple[ir.Expr, ir.Expr]:
    """Two operands as expressions of one dtype."""
    return _promoted(*as_exprs(a, b))


def _promoted(a: ir.Expr, b: ir.Expr) -> tuple[ir.Expr, ir.Expr]:
    """Two expressions in the dtype that arithmetic between them has."""
    if str(a.ty.dtype) == str(b.ty.dtype):
        return a, b
    common = str((a + b).ty.dtype)
    return cast(a, DType(common)), cast(b, DType(common))
