"""Arithmetic on Python integers that kernels' hosts need: `tvmtile.cdiv`, `tvmtile.next_power_of_2`."""

from __future__ import annotations

__all__ = ["cdiv", "next_power_of_2"]


def cdiv(a: int, b: int) -> int:
    """`a / b` rounded up."""
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The least power of two that is not less than `n`; 1 for numbers below 1."""
    return 1 << max(n - 1, 0).bit_length()
