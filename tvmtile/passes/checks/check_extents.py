"""CheckExtents: the host checks numbers of a call that it hands on in a narrower dtype."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import ir, tirx
from tvm.ir.transform import PassContext

from tvmtile._tvm import Mutator, mapped, mutated
from tvmtile.ir.calls import op_name
from tvmtile.ir.extents import extent_range
from tvmtile.ir.index_width import widened
from tvmtile.ir.kernels import with_body
from tvmtile.ir.operands import constant, integer_range
from tvmtile.ir.rewriting import seq

_ARGUMENT, _ELEMENT = 15, 17
"""What `tvm_struct_get` reads: a number among the arguments, an extent or a stride of a tensor."""


@tvm.transform.module_pass(opt_level=0, name="tvmtile.CheckExtents")
def CheckExtents(mod: ir.IRModule, _: PassContext) -> ir.IRModule:
    """Refuse an extent, a stride or a number that its parameter's dtype does not hold.

    `MakePackedAPI` keeps the low bits of it. Extents that are known are compared in 64 bits.
    """
    result = mod.clone()
    for name, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc):
            body = mutated(func.body, (tirx.Bind, _bound), (tirx.AssertStmt, _compared))
            result.update_func(name, with_body(func, body))
    return result


def _bound(bind: tirx.Bind, _: Mutator) -> tirx.Stmt:
    found: list[tirx.Cast] = []

    def look(cast: tirx.Cast) -> tirx.Cast:
        if _narrowed(cast) is not None:
            found.append(cast)
        return cast

    mapped(tirx.Evaluate(bind.value), (tirx.Cast, look))
    checks = [_check(bind.var.name, cast) for cast in found]
    return seq([*checks, bind]) if checks else bind


def _narrowed(value: Any) -> int | None:
    """What of an argument a conversion narrows; None where it is another expression."""
    if not isinstance(value, tirx.Cast) or "int" not in str(value.ty.dtype):
        return None
    read: Any = value.value
    if op_name(read) != "tirx.tvm_struct_get" or str(read.ty.dtype) != "int64":
        return None
    kind = constant(read.args[2])
    return kind if kind in (_ARGUMENT, _ELEMENT) else None


def _check(name: str, cast: tirx.Cast) -> tirx.Stmt:
    dtype = str(cast.ty.dtype)
    of = extent_range if _narrowed(cast) == _ELEMENT else integer_range
    lowest, highest = of(dtype)
    highest = min(highest, integer_range("int64")[1])
    fits = tirx.all(
        cast.value >= tirx.const(lowest, "int64"), cast.value <= tirx.const(highest, "int64")
    )
    message = ir.StringImm(f"{name} does not fit {dtype}")
    return tirx.AssertStmt(fits, ir.StringImm("ValueError"), [message])


def _compared(check: tirx.AssertStmt, _: Mutator) -> tirx.Stmt:
    def compare(equal: tirx.EQ) -> Any:
        sides: list[Any] = [equal.a, equal.b]
        if _ELEMENT not in map(_narrowed, sides):
            return equal
        return tirx.EQ(*(side.value if _narrowed(side) else widened(side) for side in sides))

    return mapped(check, (tirx.EQ, compare))
