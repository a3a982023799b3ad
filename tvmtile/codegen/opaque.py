"""`opaque(x)`: a value that TVM computes where it is bound to a name.

TVM's simplifier puts the value of a name wherever the name stands, so that an expression grows with
each name in it. It leaves values that read state where they are, as `opaque` says of itself. TVM's
LowerIntrin, the last of its passes, takes it off; from a float's name it leaves the bits, since what it
knows of names it asks then, too.

LowerIntrin simplifies each condition with the values of names in it. Divisions by what is not constant,
and selections, are expensive there: for GPUs, whose kernels we see once more, they stay hidden until
`AllowLetInlining`.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import READS, mapped, register_op, register_op_attr
from tvmtile.codegen.device import device_pass
from tvmtile.ir.divisions import DIVISIONS
from tvmtile.ir.kernels import with_body
from tvmtile.ir.rewriting import contains

_NAME = "tvmtile.opaque"


def opaque(value: ir.Expr) -> ir.Call:
    """A value that is computed once, where it is bound."""
    return ir.Call(_NAME, [value], ret_ty=value.ty.dtype)


def shown_if_cheap(call: ir.Call) -> ir.Expr:
    """The value that is opaque; the call itself, where LowerIntrin is not to look at the value."""
    return call if contains(call.args[0], _COSTLY, _is_costly) else _lowered(call)


@device_pass("AllowLetInlining")
def AllowLetInlining(func: tirx.PrimFunc, kind: str) -> tirx.PrimFunc:
    """Take off `opaque` where LowerIntrin has left it."""
    del kind

    def shown(call: ir.Call) -> ir.Expr:
        return call.args[0] if getattr(call.op, "name", "") == _NAME else call

    return with_body(func, mapped(func.body, (ir.Call, shown)))


_COSTLY = (*DIVISIONS, tirx.Select)


def _is_costly(value: Any) -> bool:
    return isinstance(value, tirx.Select) or not isinstance(value.b, tirx.IntImm)


def _lowered(call: ir.Call) -> ir.Expr:
    (value,) = call.args
    if isinstance(value, ir.Var) and "float" in str(value.ty.dtype):
        return ir.Call("tirx.reinterpret", [value], ret_ty=value.ty)
    return value


register_op(_NAME, "A value that is computed where it is bound.")
register_op_attr(_NAME, "TCallEffectKind", READS)
register_op_attr(_NAME, "TVectorizable", True)
register_op_attr(_NAME, "TScriptPrinterName", "tvmtile.opaque")
tirx.register_intrin_lowering(_NAME, target="llvm", f=_lowered)
