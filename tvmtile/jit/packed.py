"""Tensors of floats of 4 bits, which compiled code takes as tensors of bytes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from tvm import ir

from tvmtile.ir.packed import has_float4

_OF_TORCH = "torch.float4_e2m1fn_x2"


def as_bytes(args: Sequence[object], params: Sequence[ir.Var]) -> tuple[object, ...]:
    """The arguments, with the bytes of those that hold pairs of elements.

    Pairs are torch's `float4_e2m1fn_x2`, or its int8, as TileLang's.
    """
    return tuple(
        _bytes(arg) if has_float4(param) else arg for arg, param in zip(args, params, strict=True)
    )


def _bytes(arg: Any) -> Any:
    name = str(getattr(arg, "dtype", ""))
    torch = sys.modules.get("torch")
    if torch is not None and name in (_OF_TORCH, "torch.int8"):
        return arg.view(torch.uint8)
    return arg.view("uint8") if name == "int8" else arg


def as_elements(tensor: object, param: ir.Var) -> Any:
    """A result as torch's dtype of pairs of elements; bytes where it is not torch's tensor."""
    torch = sys.modules.get("torch")
    if torch is None or not has_float4(param) or not isinstance(tensor, torch.Tensor):
        return tensor
    return tensor.view(torch.float4_e2m1fn_x2)
