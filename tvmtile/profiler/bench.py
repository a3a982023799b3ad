"""Milliseconds of a function, by the clock of a GPU or of the host."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import tvm

from tvmtile.errors import InvalidOperand

_MORE_THAN_L2 = 256 << 20
"""Bytes; the largest L2 cache so far has half of that."""


def do_bench(
    fn: Callable[[], Any],
    warmup: float = 25,
    rep: float = 100,
    _n_warmup: int = 0,
    _n_repeat: int = 0,
    quantiles: Sequence[float] | None = None,
    fast_flush: bool = True,
    backend: str = "event",
    return_mode: str = "mean",
    early_stop_baseline: float | None = None,
    **_tilelang_options: object,
) -> Any:
    """Measure how long a function takes, in milliseconds.

    Where torch works on an NVIDIA GPU, that is the time between two events of the GPU around the call,
    with its L2 cache overwritten before; elsewhere it is wall-clock time, until an Apple GPU is done.

    Parameters
    ----------
    fn : callable
        Called without arguments.
    warmup, rep : float
        Milliseconds to spend before measuring, and measuring. There is one call at least.
    _n_warmup, _n_repeat : int
        Numbers of calls in place of these times.
    quantiles : sequence of float, optional
        Return these quantiles of the times.
    fast_flush, backend
        Accepted for TileLang's callers.
    return_mode : {"mean", "median", "min", "max"}
        What to return where no quantiles are asked for.
    early_stop_baseline : float, optional
        Milliseconds. Where a first call takes longer, and two more do, the least of them is the answer.

    Returns
    -------
    float or list of float
        Milliseconds a call.
    """
    import numpy as np

    del fast_flush, backend
    if return_mode not in ("mean", "median", "min", "max"):
        raise InvalidOperand(
            f"do_bench: return_mode={return_mode!r}", help="use mean, median, min or max"
        )
    milliseconds = _timer()
    estimate = max(milliseconds(fn), 1e-3)
    if early_stop_baseline is not None and estimate > early_stop_baseline:
        estimate = min(estimate, milliseconds(fn), milliseconds(fn))
        if estimate > early_stop_baseline:
            return [estimate] * len(quantiles) if quantiles is not None else estimate
    for _ in range(_n_warmup or int(warmup / estimate)):
        fn()
    times = [milliseconds(fn) for _ in range(_n_repeat or max(1, int(rep / estimate)))]
    if quantiles is not None:
        return [float(value) for value in np.quantile(times, quantiles)]
    return float(getattr(np, return_mode)(times))


def _timer() -> Callable[[Callable[[], Any]], float]:
    """A function that measures one call, in milliseconds."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return _event_timer(torch)
    return _wall_clock()


def _wall_clock() -> Callable[[Callable[[], Any]], float]:
    waits = _waits()

    def milliseconds(fn: Callable[[], Any]) -> float:
        start = time.perf_counter()
        fn()
        for wait in waits:
            wait()
        return (time.perf_counter() - start) * 1e3

    return milliseconds


def _event_timer(torch: Any) -> Callable[[Callable[[], Any]], float]:
    cache = torch.empty(_MORE_THAN_L2, dtype=torch.int8, device="cuda")

    def milliseconds(fn: Callable[[], Any]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        cache.zero_()  # it also keeps the GPU busy while the call is launched
        start.record()
        fn()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    return milliseconds


def _waits() -> list[Callable[[], Any]]:
    """Functions that wait for the GPUs of TVM's tensors, and of torch's on an Apple GPU."""
    waits: list[Callable[[], Any]] = [
        device.sync for device in (tvm.cuda(0), tvm.metal(0)) if device.exist
    ]
    torch = sys.modules.get("torch")
    if torch is not None and torch.backends.mps.is_available():
        waits.append(torch.mps.synchronize)
    return waits
