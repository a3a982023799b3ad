"""ApproximateFunctionsOnCuda: functions of floats are the fast ones where a kernel asks for them."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import mapped
from tvmtile.codegen.cuda_math import APPROXIMATIONS
from tvmtile.ir.annotations import FAST
from tvmtile.ir.calls import op_name
from tvmtile.ir.kernels import with_body
from tvmtile.ir.passes import prim_func_pass
from tvmtile.transform import FAST_MATH


@prim_func_pass("ApproximateFunctionsOnCuda")
def ApproximateFunctionsOnCuda(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let functions be approximations where the attribute `tvmtile.fast_math` says so.

    `tl.enable_fast_math` sets it. It has the meaning of NVIDIA's `--use_fast_math`: `T.log` is what
    `T.__log` is, and its siblings likewise. Quotients and square roots are approximations already.
    A power is left exact, but for `T.exp10`: the approximation has no value for a base below zero.
    """
    if func.attrs is None or not func.attrs.get(FAST_MATH, False):
        return func
    return with_body(func, mapped(func.body, (ir.Call, _approximate)))


def _approximate(call: ir.Call) -> ir.Call:
    if op_name(call) == "tirx.pow" and _is_ten(call.args[0]):
        call = tirx.exp10(call.args[1])
    dialect, _, name = op_name(call).rpartition(".")
    if dialect not in ("tirx", "prim") or name not in APPROXIMATIONS:
        return call
    return ir.Call(call.op, call.args, attrs={FAST: True}, span=call.span, ret_ty=call.ty)


def _is_ten(value: ir.Expr) -> bool:
    if isinstance(value, tirx.Cast):
        return _is_ten(value.value)
    return isinstance(value, tirx.FloatImm) and float(value.value) == 10
