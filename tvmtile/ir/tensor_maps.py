"""Tensor maps: how a tensor is described to copies of boxes of it.

In a kernel, `tensor_map(...)` is the address of a map. It says of which tensor, and how it is cut, so
that the host can make the map before it launches the kernel (see EncodeTensorMaps).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import ir, tirx

from tvmtile.ir.calls import op_name
from tvmtile.ir.operands import as_int32
from tvmtile.ir.types import Index

ENCODER = "runtime.cuTensorMapEncodeTiled"
"""TVM's function that calls the driver's."""
_NAME = "tvmtile.tensor_map"


@dataclass(frozen=True)
class TensorMap:
    """The parts of a tensor map; axes are listed with the innermost first."""

    data: ir.Expr
    """Address of the tensor."""
    dtype: str
    """Of its elements."""
    extents: Sequence[Index]
    """Of the tensor."""
    strides: Sequence[Index]
    """Bytes from one index to the next, along each axis but the innermost."""
    box: Sequence[Index]
    """Elements that a copy moves along each axis."""
    steps: Sequence[Index]
    """From one of these elements to the next, in the tensor."""
    options: Sequence[Index]
    """Interleave, swizzle, promotion in the L2 cache, and what is read outside of the tensor, as
    `cuTensorMapEncodeTiled` numbers them.
    """


def tensor_map(made_of: TensorMap) -> ir.Call:
    """The address of a tensor map, as an expression of a kernel."""
    numbers = [
        *made_of.extents,
        *made_of.strides,
        *made_of.box,
        *made_of.steps,
        *made_of.options,
    ]
    args = [ir.StringImm(made_of.dtype), made_of.data, *map(as_int32, numbers)]
    return ir.Call(_NAME, args, ret_ty=tirx.Var("map", "handle").ty)


def is_encoder(call: ir.Call) -> bool:
    """Tell whether a call makes a tensor map, on the host."""
    return op_name(call) == "tirx.tvm_call_packed" and str(call.args[0].value) == ENCODER


def tensor_map_of(call: ir.Call) -> TensorMap | None:
    """The tensor map that a call is the address of; None of another call."""
    if op_name(call) != _NAME:
        return None
    dtype, data, *numbers = call.args
    rank = (len(numbers) - 3) // 4
    parts = [numbers[start : start + rank] for start in (0, rank, 2 * rank - 1, 3 * rank - 1)]
    extents, strides, box, steps = parts
    return TensorMap(
        data, str(dtype.value), extents, strides[: rank - 1], box, steps, numbers[4 * rank - 1 :]
    )
