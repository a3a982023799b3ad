"""Kernels of the operators: compiled once for a program and a kind of device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmtile.jit import Kernel
from tvmtile.jit import compile as compile_program
from tvmtile.jit.following import chosen_target, target_on
from tvmtile.target import TargetLike

__all__ = ["compiled", "is_plain", "size_class", "target_for"]

_LARGEST = 1 << 14
_kernels: dict[Any, Kernel] = {}


def target_for(device: Any) -> Any:
    """The target of a kind of device of torch's; what `TVMTILE_TARGET` names where it is set."""
    return chosen_target() or target_on(device)


def size_class(extent: int) -> int:
    """What an extent that varies between calls is taken for: the next power of two, up to a limit.

    So calls of many different extents share few configurations, and as many kernels.
    """
    return min(_LARGEST, 1 << max(0, extent - 1).bit_length())


def compiled(key: Any, program: Callable[[], Any], target: TargetLike) -> Kernel:
    """The kernel of a program.

    Parameters
    ----------
    key : hashable
        All that decides the program.
    program : callable
        Makes it.
    target : str or dict
        What it is compiled for.
    """
    key = (str(target), key)
    kernel = _kernels.get(key)
    if kernel is None:
        kernel = _kernels[key] = compile_program(program(), target=target)
    return kernel


def is_plain(*tensors: Any) -> bool:
    """Tell whether torch has nothing to record or to trace of these tensors, None aside."""
    import torch

    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    from tvmtile.jit.torch_operators import is_wrapper

    records = torch.is_grad_enabled()
    return not any(
        is_wrapper(t) or (records and getattr(t, "requires_grad", False)) for t in tensors
    )
