"""Annotations of a kernel: hints that change no result."""

from __future__ import annotations

from typing import Any

from tvmtile.tileop.hints import annotate_layout, use_swizzle

__all__ = [
    "annotate_l2_hit_ratio",
    "annotate_layout",
    "annotate_min_blocks_per_sm",
    "annotate_restrict_buffers",
    "use_swizzle",
]


def annotate_l2_hit_ratio(l2_hit_ratio_map: dict[Any, float]) -> None:
    """Accepted for TileLang's kernels: how much of a tensor to keep in a GPU's L2 cache."""
    del l2_hit_ratio_map


def annotate_min_blocks_per_sm(n: int) -> None:
    """Accepted for TileLang's kernels: how many blocks should fit on a multiprocessor."""
    del n


def annotate_restrict_buffers(*buffers: Any) -> None:
    """Accepted for TileLang's kernels: tensors that may share memory."""
    del buffers
