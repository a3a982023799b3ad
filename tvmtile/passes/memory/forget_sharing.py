"""ForgetSharing: tensors that may share memory are addressed as any other."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import mapped
from tvmtile.analysis.aliases import MAY_SHARE
from tvmtile.ir.annotations import MAY_ALIAS
from tvmtile.ir.calls import op_name
from tvmtile.ir.kernels import with_body
from tvmtile.ir.passes import prim_func_pass


@prim_func_pass("ForgetSharing")
def ForgetSharing(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Take the pointers of tensors that may share memory for what they are: all who must know did."""
    if func.attrs is None or MAY_ALIAS not in func.attrs:
        return func

    def plain(call: ir.Call) -> ir.Expr:
        return call.args[-1] if op_name(call) == MAY_SHARE else call

    return with_body(func, mapped(func.body, (ir.Call, plain)))
