"""How GPU kernels are measured, for all contenders alike; needs torch only.

A measurement is the time between two events of the GPU around one call, with the L2 cache flushed
before it, so a call neither finds its inputs there nor waits for its launch. The cache is flushed by
reading: what is left in it need not be written back while a call reads. Contenders are called in a
new random order each round: one that follows a hungry kernel finds a slower clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import median

import torch

# More than the L2 cache of any GPU so far.
FLUSHED_BYTES = 256 << 20
CALLS_A_ROUND = 5


def measure(
    contenders: dict[str, Callable[[], object]], rounds: int = 10, warmups: int = 2
) -> dict[str, float]:
    """The median time of each contender in milliseconds."""
    cache = torch.zeros(FLUSHED_BYTES // 4, dtype=torch.int32, device="cuda")
    for contender in contenders.values():
        for _ in range(warmups):
            contender()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            times[name] += _burst(contenders[name], cache)
    return {name: median(own) for name, own in times.items()}


def _burst(contender: Callable[[], object], cache: torch.Tensor) -> list[float]:
    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
        for _ in range(CALLS_A_ROUND)
    ]
    for start, end in events:
        cache.max()
        start.record()
        contender()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in events]


def relative_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest error, relative to the largest element of a reference in float64."""
    assert reference.dtype == torch.float64
    assert result.shape == reference.shape, (result.shape, reference.shape)
    return float((result.double() - reference).abs().max() / reference.abs().max())
