"""`T.annotate_safe_value`: what reads outside a tensor give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import InvalidOperand
from tvmtile.frontend.emit import emit
from tvmtile.ir.operands import dtype_of
from tvmtile.ir.operators import TileOp, tile_operator
from tvmtile.ir.scopes import is_global


def annotate_safe_value(safe_value_map: Mapping[Any, Any]) -> None:
    """Say what reads outside tensors in global memory give, in place of zero.

    Parameters
    ----------
    safe_value_map : dict of buffer to number
        For each tensor the value, of the tensor's dtype. It holds for `T.copy` and for every other
        read in the kernel, wherever the annotation stands in it.

    Raises
    ------
    InvalidOperand
        If a key is not a tensor in global memory, or a value is not a number.
    """
    for buffer, value in safe_value_map.items():
        if not is_buffer_var(buffer) or not is_global(buffer):
            raise InvalidOperand(
                f"T.annotate_safe_value: {getattr(buffer, 'name', buffer)} is not a tensor in global "
                "memory",
                help="only accesses to those are checked",
            )
        emit(SafeValue(buffer, value))


@tile_operator
class SafeValue(TileOp):
    """Reads outside `tensor` give `value`. InsertBoundsGuards takes it out of the program."""

    name = "annotate_safe_value"
    role = "values outside"
    is_tile = False

    tensor: ir.Var
    value: Any

    def __post_init__(self) -> None:
        if isinstance(self.value, bool | int | float):
            object.__setattr__(self, "value", tirx.const(self.value, dtype_of(self.tensor)))

    def check(self) -> None:
        if not isinstance(self.value, tirx.IntImm | tirx.FloatImm):
            raise InvalidOperand(
                f"T.annotate_safe_value: {self.value} is not a number",
                help="the value is known while tracing",
            )
        if str(self.value.ty.dtype) != dtype_of(self.tensor):
            raise InvalidOperand(
                f"T.annotate_safe_value: {self.value} is {self.value.ty.dtype}, the tensor holds "
                f"{dtype_of(self.tensor)}",
                help="pass a Python number",
            )
