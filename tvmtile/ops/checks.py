"""What is wrong with the arguments of an operator, before anything is made for them."""

from __future__ import annotations

import math

from tvmtile.errors import InvalidValue

__all__ = ["check_attention"]


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
