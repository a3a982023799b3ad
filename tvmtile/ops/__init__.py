"""Operators that are ready to use: `matmul`, `attention`, `softmax`, `rms_norm`, `layer_norm`.

They take torch's tensors and run where these are, with the configuration of that device. Their tile
programs are `tvmtile.ops.programs`, which need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvmtile.ops import configurations, programs
    from tvmtile.ops.torch_attention import attention
    from tvmtile.ops.torch_matmul import matmul
    from tvmtile.ops.torch_rows import layer_norm, rms_norm, softmax

__all__ = ["attention", "configurations", "layer_norm", "matmul", "programs", "rms_norm", "softmax"]

_HOMES = {
    "attention": "torch_attention",
    "layer_norm": "torch_rows",
    "matmul": "torch_matmul",
    "rms_norm": "torch_rows",
    "softmax": "torch_rows",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = getattr(import_module(f"tvmtile.ops.{_HOMES[name]}"), name)
        globals()[name] = found  # the next look at it finds it without this function
        return found
    if name in __all__:
        return import_module(f"tvmtile.ops.{name}")
    raise AttributeError(f"module 'tvmtile.ops' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
