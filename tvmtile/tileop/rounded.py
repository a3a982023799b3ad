"""Arithmetic and conversions with a chosen rounding: `T.ieee_add`, `T.cast(value, dtype, round=)`, ...

Each is an operator on elements without side effects, and part of an expression. The result is the
exact one, rounded once, bit by bit the same on every target.
"""

from __future__ import annotations

from dataclasses import field

from tvm import ir, tirx

from tvmtile.codegen import cuda
from tvmtile.codegen.float_conversions import rounding_name_of
from tvmtile.codegen.narrow_floats import FORMATS, encode_rounded
from tvmtile.codegen.rounding import OPERATIONS, ROUNDINGS, llvm_function, metal_name
from tvmtile.errors import UnsupportedDtype
from tvmtile.ir.operators import VARARGS, ValueOp, tile_operator
from tvmtile.ir.spans import current_span
from tvmtile.tileop.elementwise import converted
from tvmtile.tileop.registry import Decline, LoweringContext, lowering

APPROXIMATE = "approximate"
"""A rounding that may be less exact where the target has a faster instruction."""


class _Pure(ValueOp):
    """An operator whose arguments are values, of which there need not be the same number each time."""

    def to_call(self, span: ir.Span | None = None) -> ir.Call:
        return super().to_call(span or current_span())


@tile_operator
class Rounded(_Pure):
    """A function of one to three float32 or float64 scalars."""

    name = "rounded"
    role = "arithmetic"

    operands: tuple[ir.Expr, ...] = field(metadata=VARARGS)
    operation: str = "add"
    rounding: str = "rn"

    @property
    def dtype(self) -> str:
        """The dtype of the operands and of the result."""
        return str(self.operands[0].ty.dtype)

    def result_dtype(self) -> str:
        return self.dtype

    def check(self) -> None:
        allowed = OPERATIONS[self.operation].cuda
        if self.dtype not in allowed:
            raise UnsupportedDtype(
                f"{self.operation} with a rounding takes {' and '.join(allowed)}, not {self.dtype}",
                help="cast the operands",
            )


@tile_operator
class RoundedCast(_Pure):
    """A float32 scalar as a narrower float; random bits follow it for a stochastic rounding."""

    name = "rounded_cast"
    role = "cast"

    operands: tuple[ir.Expr, ...] = field(metadata=VARARGS)
    dtype: str = "float16"
    rounding: str = "rn"
    saturate: bool = True

    def result_dtype(self) -> str:
        return self.dtype


def _of_quotients(op: Rounded) -> tuple[str, list[ir.Expr]]:
    """The operation and its operands, a reciprocal as a quotient."""
    is_reciprocal = op.operation == "rcp"
    one = [tirx.const(1, op.dtype)] * is_reciprocal
    return "div" if is_reciprocal else op.operation, [*one, *op.operands]


def _quotient(op: Rounded) -> ir.Expr:
    return tirx.const(1, op.dtype) / op.operands[0]


@lowering(Rounded, target="llvm", variant="mode")
def rounded_by_mode(op: Rounded, context: LoweringContext) -> ir.Expr:
    """The processor's rounding mode is set around a directed rounding."""
    if op.rounding == APPROXIMATE:
        return _quotient(op)

    def call(operation: str, dtype: str, *operands: object) -> ir.Expr:
        name, text = llvm_function(operation, dtype, op.rounding)
        context.imports.append(text)
        return tirx.call_pure_extern(dtype, name, *operands)

    operation, operands = _of_quotients(op)
    if operation != "rsqrt":
        return call(operation, op.dtype, *operands)
    # The error of two roundings to float64 leaves the rounding to float32 as it is.
    root = call("sqrt", "float64", converted(operands[0], "float64"))
    return converted(call("div", "float64", tirx.const(1, "float64"), root), op.dtype)


@lowering(Rounded, target="cuda", variant="intrinsic")
def rounded_by_intrinsic(op: Rounded, _: LoweringContext) -> ir.Expr:
    """CUDA has a function for each operation and rounding."""
    name, operands = f"__{OPERATIONS[op.operation].cuda[op.dtype]}_{op.rounding}", op.operands
    if op.rounding == APPROXIMATE:
        if op.dtype != "float32":
            return _quotient(op)
        name, operands = "__fdividef", (tirx.const(1, op.dtype), *operands)
    return tirx.call_pure_extern(op.dtype, name, *operands)


def _is_float32(op: Rounded, _: LoweringContext) -> None:
    if op.dtype != "float32":
        raise Decline(f"Metal has no {op.dtype}")


@lowering(Rounded, target="metal", variant="integers", fits=_is_float32)
def rounded_by_integers(op: Rounded, _: LoweringContext) -> ir.Expr:
    """See `tvmtile.codegen.rounding`."""
    if op.rounding == APPROXIMATE:
        return _quotient(op)
    operation, operands = _of_quotients(op)
    number = tirx.const(ROUNDINGS[op.rounding], "int32")
    return tirx.call_pure_extern(op.dtype, metal_name(operation), *operands, number)


@lowering(RoundedCast, target="llvm", variant="bits")
def cast_by_bits(op: RoundedCast, _: LoweringContext) -> ir.Expr:
    """See `tvmtile.codegen.narrow_floats`."""
    value, *random = op.operands
    code = encode_rounded(op.dtype, value, op.rounding, op.saturate, *random)
    return tirx.reinterpret(op.dtype, code)


@lowering(RoundedCast, target=("metal", "cuda"), variant="function")
def cast_by_function(op: RoundedCast, context: LoweringContext) -> ir.Expr:
    """The same arithmetic as a function in the language of the GPU."""
    name = rounding_name_of(op.dtype, op.rounding, op.saturate)
    storage = FORMATS[op.dtype].storage
    if context.target.kind.name == "metal":
        code = tirx.call_pure_extern(storage, name, *op.operands)
    else:
        code = cuda.value(storage, name, *op.operands)
    return tirx.reinterpret(op.dtype, code)
