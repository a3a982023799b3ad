"""The verification of a kernel against torch on a sample: results, gradients and time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Relative to the largest element: sums of float32 in another order, rounded to the dtype."""


def error_of(
    ours: Callable[[], Tensor], theirs: Callable[[], Tensor], inputs: Sequence[Tensor]
) -> float:
    """The largest difference of results, and of the gradients of what requires one among the inputs.

    It is infinite where shapes or dtypes differ, or one has NaN where the other has none.
    """
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    with torch.enable_grad():
        result, expected = ours(), theirs()
    if result.shape != expected.shape or result.dtype != expected.dtype:
        return float("inf")
    error = _difference(result, expected, 0.0)
    if not (wanted and expected.requires_grad):
        return error
    gradient = torch.randn_like(expected)
    found = torch.autograd.grad(result, wanted, gradient, allow_unused=True)
    right = torch.autograd.grad(expected, wanted, gradient, allow_unused=True)
    pairs = [pair for pair in zip(found, right, strict=True) if pair[1] is not None]
    # Terms that cancel leave rounding where nothing is the right gradient.
    least = _NOTHING * max(_largest(theirs) for _, theirs in pairs)
    return max(error, *(_difference(*pair, least) for pair in pairs))


_NOTHING = 1e-2
"""Of the largest gradient: a tensor whose gradients are smaller is held to this."""


def _largest(tensor: Tensor) -> float:
    finite = tensor.detach().double().nan_to_num(0, 0, 0).abs()
    return float(finite.max()) if finite.numel() else 0.0


def _difference(ours: Any, theirs: Tensor, least: float) -> float:
    """Relative to the largest element of theirs, or to `least` where that is larger."""
    if ours is None:
        return float("inf")
    largest = max(_largest(theirs), least, torch.finfo(torch.float64).tiny)
    ours, theirs = ours.detach().double(), theirs.detach().double()
    if not theirs.numel():
        return 0.0
    if not torch.equal(ours.isnan(), theirs.isnan()):
        return float("inf")
    # Infinities have to be the same; what is left of them here is NaN then.
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    difference = (ours - theirs).masked_fill(same, 0).abs().max()
    return float("inf") if difference.isnan() else float(difference) / largest


def milliseconds(
    functions: Sequence[Callable[[], Tensor]],
    device: torch.device,
    wanted: Sequence[Tensor] = (),
    rounds: int = 10,
) -> list[float]:
    """The median time of each function, and of its gradients for what is wanted.

    They take turns, so noise hits all alike. A GPU gets several calls at once, as a model gives it,
    so that it does not wait for the host.
    """
    calls = 1 if device.type == "cpu" else 20
    times: list[list[float]] = [[] for _ in functions]
    with torch.set_grad_enabled(bool(wanted)):
        for _ in range(rounds):
            for function, own in zip(functions, times, strict=True):
                _run(function, wanted)
                _synchronize(device)
                start = time.perf_counter()
                for _ in range(calls):
                    _run(function, wanted)
                _synchronize(device)
                own.append((time.perf_counter() - start) * 1e3 / calls)
    return [median(own) for own in times]


def _run(function: Callable[[], Tensor], wanted: Sequence[Tensor]) -> None:
    result = function()
    if wanted and result.requires_grad:
        torch.autograd.grad(result, wanted, torch.ones_like(result), allow_unused=True)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
