"""ApproximateFunctionsOnCuda: arithmetic of floats is the fast one where a kernel asks for it."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import mapped
from tvmtile.codegen import cuda
from tvmtile.codegen.cuda import function_call
from tvmtile.codegen.cuda_math import APPROXIMATIONS
from tvmtile.ir.annotations import FAST
from tvmtile.ir.calls import op_name
from tvmtile.ir.kernels import Launch, with_body, with_kernels, with_launch_body
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import seq
from tvmtile.transform import FAST_MATH


@prim_func_pass("ApproximateFunctionsOnCuda")
def ApproximateFunctionsOnCuda(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let functions be approximations where the attribute `tvmtile.fast_math` says so.

    `tl.enable_fast_math` sets it. It has the meaning of NVIDIA's `--use_fast_math`: `T.log` is what
    `T.__log` is, and its siblings likewise. Quotients, square roots and subnormals are the compiler's,
    which reads in the source that they may be fast.
    A power is left exact, but for `T.exp10`: the approximation has no value for a base below zero.
    """
    if func.attrs is None or not func.attrs.get(FAST_MATH, False):
        return func
    approximated = with_body(func, mapped(func.body, (ir.Call, _approximate)))
    return with_kernels(approximated, _asking)


def _asking(kernel: tirx.For) -> tirx.For:
    """A kernel whose source says that all of its arithmetic may be fast."""
    ask = tirx.Evaluate(function_call("void", cuda.FAST_MATH))
    return with_launch_body(kernel, seq([ask, Launch(kernel).body]))


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
