"""Floats of 4 bits in memory: two neighbours along the last axis share a byte.

The first is in its low half, as in torch's `float4_e2m1fn_x2`. In registers, where nobody sees how, an
element has a byte of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import UnsupportedDtype
from tvmtile.ir.operands import describe
from tvmtile.ir.rewriting import retyped, substitute
from tvmtile.ir.scopes import is_global, is_shared

FLOAT4 = "float4_e2m1fn"


def has_float4(buffer: ir.Expr) -> bool:
    """Tell whether a variable is a buffer of floats of 4 bits."""
    return is_buffer_var(buffer) and str(buffer.ty.dtype) == FLOAT4


def is_packed(buffer: ir.Var) -> bool:
    """Tell whether the elements of a buffer share bytes."""
    return has_float4(buffer) and (is_shared(buffer) or is_global(buffer))


def in_bytes(buffer: ir.Var) -> ir.Var:
    """The buffer of bytes that holds the elements of one of floats of 4 bits."""
    if not is_packed(buffer):
        return retyped(buffer, dtype="uint8")
    *outer, last = buffer.ty.shape
    simplify = Analyzer().simplify
    shape = [*outer, simplify(tirx.floordiv(last + 1, 2))]
    if not buffer.ty.strides:
        return retyped(buffer, dtype="uint8", shape=shape)
    *steps, _ = buffer.ty.strides
    strides = [*(simplify(tirx.floordiv(step, 2)) for step in steps), tirx.const(1, "int32")]
    return retyped(buffer, dtype="uint8", shape=shape, strides=strides)


def params_in_bytes(params: Sequence[ir.Var]) -> tuple[list[ir.Var], dict[ir.Var, Any]]:
    """The parameters of a program, with tensors of bytes for those of floats of 4 bits.

    Returns
    -------
    params : list of Var
        As many.
    values : dict of Var to Expr
        What is to replace variables of the program: those tensors, and a dynamic extent of elements,
        which is twice that of bytes.

    Raises
    ------
    UnsupportedDtype
        If a row does not consist of whole bytes.
    """
    values: dict[ir.Var, Any] = {}
    packed = [param for param in params if has_float4(param)]
    for param in packed:
        *steps, step = param.ty.strides or [tirx.const(1, "int32")]
        if not Analyzer().can_prove_equal(step, 1):
            _refuse(param, "the stride of the last axis is not 1")
        for extent in (param.ty.shape[-1], *steps):
            if isinstance(extent, ir.Var) and not any(map(extent.same_as, params)):
                values[extent] = tirx.Var(f"{extent.name}_bytes", str(extent.ty.dtype)) * 2
    for param in packed:
        rows = [param.ty.shape[-1], *list(param.ty.strides or [])[:-1]]
        for extent in (substitute(extent, values) for extent in rows):
            if not Analyzer().can_prove_equal(tirx.floormod(extent, 2), 0):
                _refuse(param, f"{extent} is not known to be even")
    extents = dict(values)
    for param in params:
        if is_buffer_var(param) and (has_float4(param) or extents):
            shape, strides = (
                [substitute(item, extents) for item in items]
                for items in (param.ty.shape, param.ty.strides or [])
            )
            resized = retyped(param, shape=shape, strides=strides or None)
            values[param] = in_bytes(resized) if has_float4(param) else resized
    return [values.get(param, param) for param in params], values


def _refuse(param: ir.Var, reason: str) -> None:
    raise UnsupportedDtype(
        f"{describe(param)}: two elements of 4 bits share a byte, and {reason}",
        help="let each row be contiguous and have an even number of elements",
    )
