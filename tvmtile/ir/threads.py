"""The threads of a block, by number."""

from __future__ import annotations

__all__ = ["WARP_SIZE"]

WARP_SIZE = 32
"""Threads of a warp of NVIDIA's GPUs, and of a simdgroup of Apple's."""
