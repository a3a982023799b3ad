"""LowerMathOnCpu: elementary functions become arithmetic that vectorises."""

from __future__ import annotations

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import mapped
from tvmtile.codegen.cpu_math import exp2_float32, exp_float32, tanh_float32
from tvmtile.codegen.float_functions import NAMES
from tvmtile.ir.calls import op_name
from tvmtile.ir.kernels import with_body
from tvmtile.ir.passes import prim_func_pass

_FLOAT32 = {"tirx.exp": exp_float32, "tirx.exp2": exp2_float32, "tirx.tanh": tanh_float32}
_NARROW = ("float16", "bfloat16")
# In the C library; TVM has no rule for them, or one that loses small arguments.
_IN_LIBRARY = {
    f"tirx.{name}": {"float32": f"{name}f", "float64": name}
    for name in ("acosh", "asinh", "atanh", "fmod", "tanh")
}
_FUNCTIONS = {f"tirx.{name}" for name in (*NAMES, "erf", "hypot", "ldexp", "log1p", "tanh")}


@prim_func_pass("LowerMathOnCpu")
def LowerMathOnCpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write out `exp`, `exp2` and `tanh` of floats of at most 32 bits (`tvmtile.codegen.cpu_math`).

    As calls of the C library they would keep LLVM from vectorising the loop around them. Functions of
    narrower floats are computed in float32 and rounded once; the C library has none of them. `fmod`,
    for which TVM has no rule, is a call of that library. So are `acosh`, `asinh`, `atanh`, and `tanh`
    of float64, whose rules lose small arguments. The rest is left to TVM.
    """
    return with_body(func, mapped(func.body, (ir.Call, _lower)))


def _lower(call: ir.Call) -> ir.Expr:
    name = op_name(call)
    if name not in _FUNCTIONS:
        return call
    dtype = str(call.ty.dtype)
    if dtype not in _NARROW:
        return _computed(call, name, dtype)
    wide = [
        tirx.Cast("float32", arg) if str(arg.ty.dtype) == dtype else arg  # ldexp takes an integer
        for arg in call.args
    ]
    widened = ir.Call(call.op, wide, attrs=call.attrs, span=call.span, ret_ty="float32")
    return tirx.Cast(dtype, _computed(widened, name, "float32"))


def _computed(call: ir.Call, name: str, dtype: str) -> ir.Expr:
    if name in _FLOAT32 and dtype == "float32":
        return _FLOAT32[name](*call.args)
    function = _IN_LIBRARY.get(name, {}).get(dtype)
    return call if function is None else T.call_pure_extern(dtype, function, *call.args)
