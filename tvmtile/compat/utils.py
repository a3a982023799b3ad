"""TileLang's `utils`: the GPU of this machine as torch sees it, targets, tensors, the log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tvmtile.language as T
from tvmtile.compat.absent import no_attribute
from tvmtile.errors import MissingDependency, import_optional
from tvmtile.jit.backends import best_target, chosen_target
from tvmtile.jit.signature import KernelParam
from tvmtile.jit.threads import usable_cpus
from tvmtile.profiler import TensorSupplyType, filled
from tvmtile.target import TORCH_DEVICES, TargetLike, resolve
from tvmtile.testing import torch_assert_close

if TYPE_CHECKING:
    import torch

__all__ = [
    "TensorSupplyType",
    "determine_target",
    "device_synchronize",
    "get_available_cpu_count",
    "get_current_device",
    "get_tensor_supply",
    "map_torch_type",
    "set_log_level",
    "torch_assert_close",
]


def set_log_level(level: int | str) -> None:
    """Set the level of the log `tvmtile`, in which the autotuner writes.

    Parameters
    ----------
    level : int or str
        As of Python's `logging`: "INFO" has a line for each configuration that is measured.
    """
    logging.getLogger("tvmtile").setLevel(level.upper() if isinstance(level, str) else level)


def determine_target(target: TargetLike = "auto", return_object: bool = False) -> Any:
    """A target, where "auto" is what `TVMTILE_TARGET` names or else the best device of this machine.

    Parameters
    ----------
    target : str, dict or Target
        As of `tvmtile.compile`.
    return_object : bool
        Return TVM's `Target` in place of what was written.
    """
    if target == "auto":
        target = chosen_target() or best_target()
    return resolve(target) if return_object else target


def _module(device: str | None = None) -> Any:
    """`torch.cuda` or `torch.mps`, for a kind of device or for what there is; None without a GPU."""
    torch = import_optional("torch", "torch", "tvmtile.utils.device")
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "mps"
        if device == "mps" and not torch.backends.mps.is_available():
            return None
    return getattr(torch, device)


def __getattr__(name: str) -> Any:
    # TileLang's module asks the driver when it is imported.
    if name in ("IS_CUDA", "IS_MPS", "IS_NPU"):
        module = _module()
        return module is not None and module.__name__ == f"torch.{name[3:].lower()}"
    if name == "Event":
        return getattr(_module(), "Event", None)
    raise no_attribute("tvmtile", sys.modules[__name__], name)


def get_current_device() -> int | str | None:
    """The number of the NVIDIA GPU that is in use, "mps:0" on an Apple GPU, None without either."""
    module = _module()
    if module is None:
        return None
    return int(module.current_device()) if hasattr(module, "current_device") else "mps:0"


def device_synchronize(device: int | str | torch.device | None = None) -> None:
    """Wait until a GPU has done what it was given.

    Parameters
    ----------
    device : int, str or torch.device, optional
        A number is of an NVIDIA GPU; this machine's GPU where absent.

    Raises
    ------
    MissingDependency
        If there is none.
    """
    torch = import_optional("torch", "torch", "tvmtile.utils.device")
    if device is None:
        module = _module()
        if module is None:
            raise MissingDependency(
                "there is no GPU here to wait for", help="a call on the CPU returns when it is done"
            )
        module.synchronize()
        return
    kind = "cuda" if isinstance(device, int) else torch.device(device).type
    _module(kind).synchronize(*([device] if kind == "cuda" else []))


def get_available_cpu_count() -> int:
    """The processors that this process may use."""
    return len(usable_cpus())


def map_torch_type(intype: str) -> torch.dtype:
    """The torch dtype of a dtype."""
    found: torch.dtype = T.get_tvm_dtype(intype).as_torch()
    return found


def get_tensor_supply(
    supply_type: TensorSupplyType = TensorSupplyType.Integer,
) -> Callable[[KernelParam], torch.Tensor]:
    """A maker of tensors for parameters, on this machine's GPU where it has one.

    Parameters
    ----------
    supply_type : TensorSupplyType
        What tensors hold.
    """

    def supply(param: KernelParam) -> torch.Tensor:
        shape = [int(extent) for extent in param.shape]
        return filled(shape, param.torch_dtype(), supply_type).to(TORCH_DEVICES[best_target()])

    return supply
