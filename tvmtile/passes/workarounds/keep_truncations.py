"""KeepTruncations: conversions of integers to fewer bits take their lowest ones."""

from __future__ import annotations

from typing import Any

from tvm import DataType, ir, tirx

from tvmtile._tvm import mapped
from tvmtile.ir.kernels import with_body
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains

__all__ = ["KeepTruncations"]

_BITS = (8, 16)


@prim_func_pass("KeepTruncations")
def KeepTruncations(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bring an index into the range of the narrow integer that it is converted to.

    TVM fails on the conversion of a constant that does not fit, as an iteration of an unrolled loop
    has one. What is read from memory is never a constant.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((16,), "uint8"), B: T.Buffer((16,), "int8")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for i in range(16):
                A[i] = T.Cast("uint8", i * 40)
                B[i] = T.Cast("int8", i * 40)
    ```

    After
    -----
    ```
                A[i] = T.Cast("uint8", T.bitwise_and(i * 40, 255))
                B[i] = T.Cast("int8", T.bitwise_xor(T.bitwise_and(i * 40, 255), 128) - 128)
    ```
    """
    return with_body(func, mapped(func.body, (tirx.Cast, _kept)))


def _kept(cast: tirx.Cast) -> ir.Expr:
    """A conversion of a value that fits."""
    source, target = (DataType(str(each.ty.dtype)) for each in (cast.value, cast))
    is_narrower = int(target.bits) in _BITS and int(target.bits) < int(source.bits) >= 32
    if not is_narrower or not (_is_integer(source) and _is_integer(target)) or source.lanes > 1:
        return cast
    if contains(cast.value, (ir.TensorLoad, ir.Call)):
        return cast

    def number(value: int) -> Any:
        return tirx.const(value, str(source))

    low = tirx.bitwise_and(cast.value, number((1 << target.bits) - 1))
    if str(target).startswith("int"):
        sign = 1 << (target.bits - 1)
        low = tirx.bitwise_xor(low, number(sign)) - number(sign)
    return tirx.Cast(str(target), low, cast.span)


def _is_integer(dtype: DataType) -> bool:
    return str(dtype).startswith(("int", "uint"))
