"""Functions of floats on Metal: rules for those that TVM has no name for, or that Metal lacks.

Metal's functions take float and half. A bfloat16 is computed with in float32, and rounded once.
"""

from __future__ import annotations

from functools import reduce

from tvmtile.codegen.cpu_math import SMALL_TANH, TANH
from tvmtile.codegen.float_functions import (
    NAMES,
    OTHER_NAMES,
    Rule,
    calling,
    operator,
    scaling,
    widened,
)


def _polynomial(x: str, coefficients: tuple[float, ...]) -> str:
    """The text of a polynomial's value, from its coefficients, the constant first."""
    *rest, last = (f"{coefficient}f" for coefficient in coefficients)
    return reduce(lambda value, coefficient: f"({coefficient} + {x} * {value})", rest[::-1], last)


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
    # As on a CPU. It needs no infinity, which a compiler may take for impossible.
    "tvmtile_tanh": f"""\
inline float tvmtile_tanh(float x) {{
  float size = fabs(x), square = x * x;
  float small = x * (1.0f + square * {_polynomial("square", TANH)});
  float large = 1.0f - 2.0f / (exp(2.0f * (size > 10.0f ? 10.0f : size)) + 1.0f);
  return size < {SMALL_TANH}f ? small : x < 0.0f ? -large : large;
}}
""",
    # By its bits: a compiler that takes numbers for finite would know the answer.
    "tvmtile_isnan": """\
inline bool tvmtile_isnan(float x) {
  return (as_type<uint>(x) & 0x7fffffffu) > 0x7f800000u;
}
""",
}
"""MSL functions by name."""

_IN_FLOAT32 = {name: f"tvmtile_{name}" for name in ("log1p", "hypot", "isnan", "tanh")}


def _rules() -> dict[str, Rule]:
    names = {name: name for name in NAMES} | OTHER_NAMES
    rules = {name: calling({"float32": own, "float16": own}) for name, own in names.items()}
    rules |= {name: calling({"float32": function}) for name, function in _IN_FLOAT32.items()}
    rules["erf"] = widened(operator("erf").get_attr("metal.FLowerIntrinsic"))
    rules["ldexp"] = scaling({"float32": "ldexp", "float16": "ldexp"})
    return rules


RULES = _rules()
"""How each function is called, by the name of TVM's intrinsic."""
