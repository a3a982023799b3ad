"""Checks of the arguments of an operator, before anything is made for them."""

from __future__ import annotations

import math
from typing import Any

from tvmtile.errors import ArgumentError, InvalidValue

DTYPES = ("float16", "bfloat16", "float32", "float64")


def check_attention(heads: int, kv_heads: int, scale: float, layout: str) -> None:
    """Refuse what `attention` has no program for.

    Raises
    ------
    InvalidValue
        If `kv_heads` does not divide the heads, the scale is not positive, or there is no such layout.
    """
    if kv_heads < 1 or heads % kv_heads:
        raise InvalidValue(
            f"attention: {heads} heads of q share {kv_heads} heads of k and v",
            help="as many consecutive heads of q share each head of k and v: the first number is a "
            "multiple of the second",
        )
    if not (scale > 0 and math.isfinite(scale)):
        raise InvalidValue(
            f"attention: scale={scale}",
            help="the scale is a positive number; multiply q by what else there is",
        )
    if layout not in ("bhld", "blhd"):
        raise InvalidValue(
            f"attention: layout={layout!r}",
            help="the layouts are 'bhld' (batch, heads, length, dim) and 'blhd'",
        )


def check_tensor(operator: str, name: str, value: Any, rank: int) -> None:
    """Refuse what is no dense tensor of floats with at least `rank` axes.

    Raises
    ------
    ArgumentError
        The message names the argument, and says what it is.
    """
    if not hasattr(value, "is_contiguous"):
        raise ArgumentError(
            f"{operator}: {name} is {value!r}",
            help="give a tensor of torch's: torch.from_numpy(...)",
        )
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise ArgumentError(
            f"{operator}: {name} is {described(value)}", help=f"its dtypes are {', '.join(DTYPES)}"
        )
    if value.dim() < rank or value.layout is not _strided():
        raise ArgumentError(
            f"{operator}: {name} is {described(value)}",
            help=f"it needs a dense tensor with at least {rank} axes",
        )


def check_same_kind(operator: str, first: tuple[str, Any], *others: tuple[str, Any]) -> None:
    """Refuse tensors of several dtypes or devices.

    Raises
    ------
    ArgumentError
        The message names two arguments that differ, and says what converts one.
    """
    name, tensor = first
    for other, value in others:
        if value.dtype != tensor.dtype:
            raise ArgumentError(
                f"{operator}: {other} is {described(value)}, and {name} is {described(tensor)}",
                help=f"give both one dtype: {other}.to({tensor.dtype})",
            )
        if value.device != tensor.device:
            raise ArgumentError(
                f"{operator}: {other} is on {value.device}, and {name} on {tensor.device}",
                help=f"give both one device: {other}.to({str(tensor.device)!r})",
            )


def described(tensor: Any) -> str:
    """A tensor as messages name it."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype}[{', '.join(map(str, tensor.shape))}]"


def _strided() -> Any:
    import torch

    return torch.strided
