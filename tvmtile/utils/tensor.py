"""Comparing tensors, under the name of TileLang's module."""

from __future__ import annotations

from tvmtile.testing import torch_assert_close

__all__ = ["torch_assert_close"]
