"""`x.dtype` of a kernel's values.

Helper functions ask for it (`assert x.dtype == T.uint8`). TVM 0.27 gives it to buffers only, as a
property of `Var`; here expressions have it too. What had the attribute before keeps it as it was.
"""

from __future__ import annotations

from typing import Any

from tvm import ir

from tvmtile.language.dtypes import DType

__all__ = ["add_dtype_to_expressions"]


def add_dtype_to_expressions() -> None:
    """Give `tvm.ir.Expr` a property `dtype`, once."""
    if "dtype" in vars(ir.Expr):
        return
    of_buffer = vars(ir.Var)["dtype"]

    def of_expression(value: Any) -> DType:
        if not ir.is_prim_expr(value):
            raise AttributeError(f"a {type(value).__name__} that is no value has no dtype")
        return DType(str(value.ty.dtype))

    def of_variable(var: Any) -> Any:
        return of_expression(var) if ir.is_prim_expr(var) else of_buffer.fget(var)

    ir.Expr.dtype = property(of_expression)
    ir.Var.dtype = property(of_variable)
