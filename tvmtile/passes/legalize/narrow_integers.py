"""Rules for integers of 8 and 16 bits, which C++ promotes to int in the source of a kernel."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, indices_of
from tvmtile.passes.legalize.rules import Rule, Scope

_ARITHMETIC = (
    tirx.Add,
    tirx.Sub,
    tirx.Mul,
    tirx.Div,
    tirx.Mod,
    tirx.BitwiseAnd,
    tirx.BitwiseNot,
    tirx.BitwiseOr,
    tirx.BitwiseXor,
    tirx.LShift,
    tirx.RShift,
)
_REASON = (
    "arithmetic on 8 and 16 bits gives an int, which does not wrap around as the dtype does, and is "
    "ambiguous among Metal's functions"
)


def narrow_integers(casts: dict[str, str]) -> tuple[Rule, ...]:
    """The rules that put casts after arithmetic on narrow integers, but where the result is stored.

    Parameters
    ----------
    casts : dict
        The text of the cast to each dtype: `{"int8": "(signed char)"}`.
    """

    def cast(value: ir.Expr, _: Scope) -> ir.Expr:
        dtype = str(value.ty.dtype)
        return tirx.call_pure_extern(dtype, casts[dtype], value) if dtype in casts else value

    def store(statement: tirx.BufferStore, _: Scope) -> tirx.Stmt:
        value = without_cast(statement.value, casts)
        if value is statement.value:
            return statement
        return tirx.BufferStore(
            buffer_of(statement), value, indices_of(statement), span=statement.span
        )

    language = "C++, of which CUDA and Metal are dialects"
    return (
        Rule("arithmetic of narrow integers", _ARITHMETIC, cast, language, _REASON),
        Rule("stores of narrow integers", (tirx.BufferStore,), store, language, "a store converts"),
    )


def without_cast(value: ir.Expr, casts: dict[str, str]) -> ir.Expr:
    """The value in the cast of such a rule; another expression as it is."""
    if not isinstance(value, ir.Call) or getattr(value.op, "name", "") != "tirx.call_pure_extern":
        return value
    is_cast = str(value.args[0].value) == casts.get(str(value.ty.dtype))
    return value.args[1] if is_cast else value
