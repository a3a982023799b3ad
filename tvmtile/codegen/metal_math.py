"""Functions of floats on Metal: rules for those that TVM has no name for, or that Metal lacks.

Metal's functions take float and half. A bfloat16 is computed with in float32, and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

__all__ = ["FUNCTIONS"]

FUNCTIONS = {
    # No difference from 1 is taken, which a compiler that reorders sums would make nothing of.
    "tvmtile_log1p": """\
inline float tvmtile_log1p(float x) {
  float series = 1.0f / 8;
  for (int n = 7; n > 0; --n) series = 1.0f / n - x * series;
  return fabs(x) < 0.0625f ? x * series : log(1.0f + x);
}
""",
    "tvmtile_hypot": """\
inline float tvmtile_hypot(float x, float y) {
  float large = fmax(fabs(x), fabs(y)), small = fmin(fabs(x), fabs(y));
  if (large == 0.0f || large == INFINITY) return large;
  return large * sqrt(1.0f + (small / large) * (small / large));
}
""",
    # By its bits: a compiler that takes numbers for finite would know the answer.
    "tvmtile_isnan": """\
inline bool tvmtile_isnan(float x) {
  return (as_type<uint>(x) & 0x7fffffffu) > 0x7f800000u;
}
""",
}
"""MSL functions by name."""

_NAMES = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "ceil",
    "copysign",
    "cos",
    "cosh",
    "exp",
    "exp10",
    "exp2",
    "fabs",
    "floor",
    "fmod",
    "log",
    "log10",
    "log2",
    "nextafter",
    "pow",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "trunc",
]
_OTHER_NAMES = {"nearbyint": "rint", "round": "rint"}
_IN_FLOAT32 = {"log1p": "tvmtile_log1p", "hypot": "tvmtile_hypot", "isnan": "tvmtile_isnan"}
_LEVEL = 11  # above TVM's own rules


def _rule(name: str, narrowest: str) -> Callable[[ir.Call], ir.Expr]:
    """Call a function of Metal that takes floats of a dtype and wider ones."""

    def lowered(call: ir.Call) -> ir.Expr:
        result = str(call.ty.dtype)
        operand = str(call.args[0].ty.dtype)
        if operand in ("float32", narrowest):
            return T.call_pure_extern(result, name, *call.args)
        wide = [tirx.Cast("float32", arg) for arg in call.args]
        if result == "bool":
            return T.call_pure_extern(result, name, *wide)
        return tirx.Cast(result, T.call_pure_extern("float32", name, *wide))

    return lowered


def _widened(rule: Callable[[ir.Call], ir.Expr]) -> Callable[[ir.Call], ir.Expr]:
    """A rule of TVM's that bfloat16 is kept from."""

    def lowered(call: ir.Call) -> ir.Expr:
        if str(call.ty.dtype) != "bfloat16":
            return rule(call)
        wide: Any = ir.Call(
            call.op, [tirx.Cast("float32", arg) for arg in call.args], ret_ty="float32"
        )
        return tirx.Cast("bfloat16", rule(wide))

    return lowered


def _register() -> None:
    rules = {name: _rule(name, "float16") for name in _NAMES}
    rules |= {name: _rule(other, "float16") for name, other in _OTHER_NAMES.items()}
    rules |= {name: _rule(function, "float32") for name, function in _IN_FLOAT32.items()}
    for name in ("erf", "tanh"):
        rules[name] = _widened(ir.Op.get(f"tirx.{name}").get_attr("metal.FLowerIntrinsic"))
    for name, rule in rules.items():
        tirx.register_intrin_lowering(f"tirx.{name}", target="metal", f=rule, level=_LEVEL)


_register()
