"""Making and comparing tensors, under the names of TileLang's module."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tvmtile.jit.following import best_target
from tvmtile.jit.parameters import KernelParam
from tvmtile.profiler import TensorSupplyType, filled
from tvmtile.testing import torch_assert_close

if TYPE_CHECKING:
    import torch

__all__ = ["TensorSupplyType", "get_tensor_supply", "torch_assert_close"]

_DEVICES = {"llvm": "cpu", "cuda": "cuda", "metal": "mps"}


def get_tensor_supply(
    supply_type: TensorSupplyType = TensorSupplyType.Integer,
) -> Callable[[KernelParam], torch.Tensor]:
    """What makes a tensor for a parameter, on this machine's GPU where it has one.

    Parameters
    ----------
    supply_type : TensorSupplyType
        What tensors hold.
    """

    def supply(param: KernelParam) -> torch.Tensor:
        shape = [int(extent) for extent in param.shape]
        return filled(shape, param.torch_dtype(), supply_type).to(_DEVICES[best_target()])

    return supply
