"""CheckSupport: what a kernel asks for is something that its target has at all."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import NoLowering, SourceLocation, UnsupportedDtype
from tvmtile.passes.kernels import prim_func_pass
from tvmtile.passes.lower_tile_op import target_of
from tvmtile.spans import location_of
from tvmtile.tileop.operands import describe

__all__ = ["CheckSupport"]


@prim_func_pass("CheckSupport")
def CheckSupport(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Refuse what a target lacks, by the name that the user gave it.

    Metal has no float64, and a kernel there can't stop with an error.

    ```
    A: T.Tensor((8,), "float64")          # refused for Metal
    T.device_assert(n > 0, "n > 0")       # refused for Metal
    ```

    Raises
    ------
    UnsupportedDtype
        If a tensor, a tile or a number has a dtype that the target lacks.
    NoLowering
        If the kernel has a run-time assertion, and the target can't stop a kernel.
    """
    del context
    if target_of(func).kind.name != "metal":
        return func
    for param in func.params:
        _check_dtype(param, None)
    tvm_ffi.structural_walk(
        func.body,
        [
            (tirx.AllocBuffer, lambda node: _check_dtype(node.buffer, location_of(node))),
            (tirx.Bind, lambda node: _check_dtype(node.var, location_of(node))),
            (tirx.AssertStmt, _refuse),
        ],
        order="pre",
    )
    return func


def _check_dtype(var: ir.Var, location: SourceLocation | None) -> None:
    is_buffer = is_buffer_var(var)
    if not is_buffer and not ir.is_prim_expr(var):
        return
    if str(var.ty.dtype).startswith("float64"):
        raise UnsupportedDtype(
            f"{describe(var) if is_buffer else var.name}: Metal has no float64",
            help="use float32",
            location=location,
        )


def _refuse(node: tirx.AssertStmt) -> None:
    raise NoLowering(
        "T.device_assert: a kernel on Metal can't stop with an error",
        help="show what is wrong by T.print, or check it before the launch",
        location=location_of(node),
    )
