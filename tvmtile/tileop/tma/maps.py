"""The tensor map of a tensor that moves in boxes."""

from __future__ import annotations

from tvm import ir

from tvmtile.ir.operands import bits_of
from tvmtile.ir.tensor_maps import TensorMap, tensor_map
from tvmtile.tileop.tma.boxes import Boxes, strides_of

_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
_L2_PROMOTION = 2
"""To 128 bytes."""
_DTYPES = ("float16", "bfloat16", "float32", "float64")
_NO_INTERLEAVE, _ZEROS = 0, 0


def map_of(tensor: ir.Var, boxes: Boxes) -> ir.Expr:
    """The address of the map that describes a tensor to copies, as an expression of the kernel.

    Floats of 8 bits and bool are copied as integers of their width.
    """
    dtype, bits = str(tensor.ty.dtype), bits_of(tensor)
    steps = [stride * (bits // 8) for stride in strides_of(tensor)[:-1]]
    return tensor_map(
        TensorMap(
            tensor.data,
            dtype if dtype in _DTYPES else f"uint{bits}",
            list(reversed(tensor.ty.shape)),
            list(reversed(steps)),
            list(reversed(boxes.in_tensor)),
            [1] * len(boxes.in_tensor),
            [_NO_INTERLEAVE, _SWIZZLES[boxes.swizzle], _L2_PROMOTION, _ZEROS],
        )
    )
