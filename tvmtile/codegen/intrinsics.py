"""The functions of GPUs' languages that compute TVM's intrinsics in a kernel of ours.

CUDA has functions of float32 and float64, Metal of float and half; other floats are computed with in
float32, and rounded once. Where a kernel asks for a fast function, CUDA's approximation takes the place
of the exact one. Metal's shuffles take half, float and integers of 32 bits at most: wider integers are
moved as two halves of 32 bits, bfloat by its bits, and bool as an integer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, reduce
from typing import Any, TypeAlias

from tvm import DataType, ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import mapped
from tvmtile.codegen.cpu_math import SMALL_TANH, TANH
from tvmtile.codegen.cuda import FAST_EXP2, FAST_TANH, value
from tvmtile.codegen.device import device_pass
from tvmtile.codegen.opaque import shown_if_cheap
from tvmtile.ir.annotations import FAST
from tvmtile.ir.kernels import with_body

Rule: TypeAlias = Callable[[ir.Call], ir.Expr]
"""Makes an expression of the call of an intrinsic."""

# fmt: off
NAMES = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh",
    "exp", "exp10", "exp2", "fabs", "floor", "fmod", "log", "log10", "log2", "nextafter", "pow",
    "sin", "sinh", "sqrt", "tan", "trunc",
)
# fmt: on
"""The functions that Metal and CUDA have under the names of TVM's intrinsics."""
OTHER_NAMES = {"nearbyint": "rint", "round": "rint"}
"""Functions that both have under another name."""


def calling(names: Mapping[str, str]) -> Rule:
    """Call the function for the dtype of the operands; of other floats, that of float32.

    `names` are the function's for each dtype that it takes, float32 among them. Narrower floats are
    computed with in float32, and rounded once; integers, as of ldexp, stay as they are. A function of
    vectors works lane by lane.
    """

    def lowered(call: ir.Call) -> ir.Expr:
        result = str(call.ty.dtype)
        operand, lanes = _scalar_and_lanes(call.args[0])
        if operand in names:
            return T.call_pure_extern(result, names[operand], *call.args)
        wide = f"float32{lanes}"
        kind = call.args[0].ty.dtype
        args = [tirx.Cast(wide, arg) if arg.ty.dtype == kind else arg for arg in call.args]
        if result.startswith("bool"):
            return T.call_pure_extern(result, names["float32"], *args)
        return tirx.Cast(result, T.call_pure_extern(wide, names["float32"], *args))

    return lowered


def _scalar_and_lanes(value: ir.Expr) -> tuple[str, str]:
    """The dtype of a lane, and what makes that of the vector: "float16", "x4"."""
    dtype = DataType(str(value.ty.dtype))
    suffix = "" if dtype.lanes == 1 else f"x{dtype.lanes}"
    return str(dtype).removesuffix(suffix), suffix


def widened(rule: Rule) -> Rule:
    """A rule that takes float32, for narrower floats as well: what they give is rounded once."""

    def lowered(call: ir.Call) -> ir.Expr:
        dtype, lanes = _scalar_and_lanes(call)
        if dtype == "float32":
            return rule(call)
        wide = f"float32{lanes}"
        widened: Any = ir.Call(call.op, [tirx.Cast(wide, arg) for arg in call.args], ret_ty=wide)
        return tirx.Cast(str(call.ty.dtype), rule(widened))

    return lowered


# CUDA ---------------------------------------------------------------------------------------------

_OWN_NAMES = ("erf", "hypot", "log1p", "rsqrt", "tanh")
APPROXIMATIONS = ("cos", "exp", "exp10", "exp2", "log", "log10", "log2", "sin", "tan", "tanh")
"""The functions of which CUDA has fast ones, by the name of TVM's intrinsic."""
_OURS = {"exp2": FAST_EXP2, "tanh": FAST_TANH}
"""Functions that are ours, of one lane."""


def _or_fast(name: str, exact: Rule) -> Rule:
    """The approximation of a function where a call of float32, or of less, asks for it."""
    fast = _calling_ours(_OURS[name]) if name in _OURS else calling({"float32": f"__{name}f"})

    def lowered(call: ir.Call) -> ir.Expr:
        is_fast = call.attrs is not None and FAST in call.attrs.keys()  # noqa: SIM118
        dtype = DataType(str(call.ty.dtype))
        has_fast = dtype.bits <= 32 and (name not in _OURS or dtype.lanes == 1)
        return fast(call) if is_fast and has_fast else exact(call)

    return lowered


def _calling_ours(name: str) -> Rule:
    return widened(lambda call: value("float32", name, *call.args))


def _popcount(call: ir.Call) -> ir.Expr:
    """CUDA counts the bits of 32 and 64 without a sign."""
    (operand,) = call.args
    dtype = DataType(str(operand.ty.dtype))
    lanes = "" if dtype.lanes == 1 else f"x{dtype.lanes}"
    bits, function = (64, "__popcll") if dtype.bits == 64 else (32, "__popc")
    own = tirx.Cast(f"uint{dtype.bits}{lanes}", operand)
    wide = tirx.Cast(f"uint{bits}{lanes}", own)
    return tirx.Cast(str(call.ty.dtype), T.call_pure_extern(f"int32{lanes}", function, wide))


def _cuda_rules() -> dict[str, Rule]:
    names = {name: name for name in (*NAMES, *_OWN_NAMES)} | OTHER_NAMES
    rules = {name: calling({"float32": f"{own}f", "float64": own}) for name, own in names.items()}
    rules |= {name: _or_fast(name, rules[name]) for name in APPROXIMATIONS}
    rules["ldexp"] = calling({"float32": "ldexpf", "float64": "ldexp"})
    rules["popcount"] = _popcount
    return rules


# Metal --------------------------------------------------------------------------------------------


def _polynomial(x: str, coefficients: tuple[float, ...]) -> str:
    """The text of a polynomial's value, from its coefficients, the constant first."""
    *rest, last = (f"{coefficient}f" for coefficient in coefficients)
    return reduce(lambda value, coefficient: f"({coefficient} + {x} * {value})", rest[::-1], last)


METAL_FUNCTIONS = {
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
_SHUFFLES = {
    "tvm_warp_shuffle": "simd_shuffle",
    "tvm_warp_shuffle_up": "simd_shuffle_up",
    "tvm_warp_shuffle_down": "simd_shuffle_down",
    "tvm_warp_shuffle_xor": "simd_shuffle_xor",
}
_AS_BITS = "as_type<{own}>({function}(as_type<{moved}>(value), lane))"
_FORMS = {
    "int64": _AS_BITS.format(own="long", moved="uint2", function="{function}"),
    "uint64": _AS_BITS.format(own="ulong", moved="uint2", function="{function}"),
    "bfloat16": _AS_BITS.format(own="bfloat", moved="ushort", function="{function}"),
    "bool": "(bool){function}((ushort)(value), lane)",
}
"""How a dtype that Metal's shuffles do not take is moved."""
_ACTIVE_LANES = "tvmtile_active_lanes"


@cache
def shuffle_definition(name: str) -> str | None:
    """The text of the macro of a name; None for a name of anything else.

    A macro, so that a shuffle stands in the line of the kernel where the lanes meet.
    """
    if name == _ACTIVE_LANES:
        return f"#define {name}() (uint)((simd_vote::vote_t)simd_active_threads_mask())\n"
    function, _, dtype = name.removeprefix("tvmtile_").rpartition("_")
    if dtype not in _FORMS or function not in _SHUFFLES.values():
        return None
    return f"#define {name}(value, lane) {_FORMS[dtype].format(function=function)}\n"


def _shuffling(function: str) -> Rule:
    def lowered(call: ir.Call) -> ir.Expr:
        _, value, lane, *_ = call.args
        dtype = str(call.ty.dtype)
        name = f"tvmtile_{function}_{dtype}" if dtype in _FORMS else function
        return T.call_pure_extern(dtype, name, value, lane)

    return lowered


def _metal_rules() -> dict[str, Rule]:
    names = {name: name for name in NAMES} | OTHER_NAMES
    rules = {name: calling({"float32": own, "float16": own}) for name, own in names.items()}
    rules |= {name: calling({"float32": function}) for name, function in _IN_FLOAT32.items()}
    rules["erf"] = widened(_operator("erf").get_attr("metal.FLowerIntrinsic"))
    rules["ldexp"] = calling({"float32": "ldexp", "float16": "ldexp"})
    rules |= {name: _shuffling(function) for name, function in _SHUFFLES.items()}
    rules["tvm_warp_activemask"] = lambda call: T.call_extern(str(call.ty.dtype), _ACTIVE_LANES)
    return rules


# Both ---------------------------------------------------------------------------------------------


def _operator(name: str) -> ir.Op:
    """TVM's operator of a name: most are of the dialect `tirx`, a few of `prim`."""
    own = f"prim.{name}"
    return ir.Op.get(own if own in ir.Op.list_op_names() else f"tirx.{name}")


_RULES = {
    kind: {_operator(name).name: rule for name, rule in rules.items()}
    for kind, rules in (("cuda", _cuda_rules()), ("metal", _metal_rules()))
}
"""How each intrinsic is called, by its operator."""


@device_pass("LowerIntrinsics")
def LowerIntrinsics(func: tirx.PrimFunc, kind: str) -> tirx.PrimFunc:
    """Call the functions of a GPU's language where TVM has no rule for an intrinsic, or another one.

    TVM's own pass of this purpose takes its rules from a table of the process, which the kernels of
    others are lowered with too.
    """
    rules = {**_RULES[kind], "tvmtile.opaque": shown_if_cheap}

    def lowered(call: ir.Call) -> ir.Expr:
        rule = rules.get(getattr(call.op, "name", ""))
        return call if rule is None else rule(call)

    return with_body(func, mapped(func.body, (ir.Call, lowered)))
