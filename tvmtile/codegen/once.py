"""`once(x)`: a value that TVM computes where it is bound to a name.

TVM's simplifier puts the value of a name wherever the name stands, so that an expression grows with
each name in it. It leaves values that read state where they are, as `once` says of itself. TVM's
LowerIntrin, the last of its passes, takes it off; from a float's name it leaves the bits, since what it
knows of names it asks then, too.
"""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import READS, register_op, register_op_attr

__all__ = ["once"]

_NAME = "tvmtile.once"


def once(value: ir.Expr) -> ir.Call:
    """A value that is computed once, where it is bound."""
    return ir.Call(_NAME, [value], ret_ty=value.ty.dtype)


def _lowered(call: ir.Call) -> ir.Expr:
    (value,) = call.args
    if isinstance(value, ir.Var) and "float" in str(value.ty.dtype):
        return ir.Call("tirx.reinterpret", [value], ret_ty=value.ty)
    return value


register_op(_NAME, "A value that is computed where it is bound.")
register_op_attr(_NAME, "TCallEffectKind", READS)
register_op_attr(_NAME, "TVectorizable", True)
register_op_attr(_NAME, "TScriptPrinterName", "tile.once")
tirx.register_intrin_lowering(_NAME, target="default", f=_lowered)
