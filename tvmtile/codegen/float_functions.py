"""Functions of floats on a GPU: which function of its language computes which of TVM's intrinsics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tvm import DataType, ir, tirx
from tvm.tirx.script import builder as T

Rule: TypeAlias = Callable[[ir.Call], ir.Expr]
"""Makes an expression of the call of an intrinsic."""

NAMES = (
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
)
"""The functions that Metal and CUDA have under the names of TVM's intrinsics."""
OTHER_NAMES = {"nearbyint": "rint", "round": "rint"}
"""Those that both have under another name."""


def calling(names: Mapping[str, str]) -> Rule:
    """Call the function for the dtype of the operands; of other floats, that of float32.

    `names` are the function's for each dtype that it takes, float32 among them. Narrower floats are
    computed with in float32, and rounded once. A function of vectors works lane by lane.
    """

    def lowered(call: ir.Call) -> ir.Expr:
        result = str(call.ty.dtype)
        operand, lanes = _scalar_and_lanes(call.args[0])
        if operand in names:
            return T.call_pure_extern(result, names[operand], *call.args)
        wide = f"float32{lanes}"
        args = [tirx.Cast(wide, arg) for arg in call.args]
        if result.startswith("bool"):
            return T.call_pure_extern(result, names["float32"], *args)
        return tirx.Cast(result, T.call_pure_extern(wide, names["float32"], *args))

    return lowered


def _scalar_and_lanes(value: ir.Expr) -> tuple[str, str]:
    """The dtype of a lane, and what makes that of the vector: "float16", "x4"."""
    dtype = DataType(str(value.ty.dtype))
    suffix = "" if dtype.lanes == 1 else f"x{dtype.lanes}"
    return str(dtype).removesuffix(suffix), suffix


def scaling(names: Mapping[str, str]) -> Rule:
    """Call the function that multiplies by a power of two; `names` as for `calling`."""

    def lowered(call: ir.Call) -> ir.Expr:
        value, exponent = call.args
        result = str(call.ty.dtype)
        operand, lanes = _scalar_and_lanes(call)
        if operand in names:
            return T.call_pure_extern(result, names[operand], value, exponent)
        wide = f"float32{lanes}"
        scaled = T.call_pure_extern(wide, names["float32"], tirx.Cast(wide, value), exponent)
        return tirx.Cast(result, scaled)

    return lowered


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


def operator(name: str) -> ir.Op:
    """TVM's operator of a name: most are of the dialect `tirx`, a few of `prim`."""
    own = f"prim.{name}"
    return ir.Op.get(own if own in ir.Op.list_op_names() else f"tirx.{name}")
