"""Values that a block's threads read of each other: places, shuffles, votes and reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fuzz.values import EPSILON, Invalid, Value

__all__ = ["EXCHANGES", "exchanged"]


def _bits(lanes: np.ndarray) -> int:
    return sum(1 << int(lane) % 32 for lane in lanes)


_PLACES: dict[str, Callable[..., np.ndarray]] = {
    "get_lane_idx": lambda t: t % 32,
    "get_warp_idx": lambda t: t // 32,
    "get_warp_group_idx": lambda t: t // 128,
    "get_warp_idx_sync": lambda t, size=32: t // size,
    "shuffle_elect": lambda t, size: t % size == 0,
}
_SHUFFLES: dict[str, Callable[..., np.ndarray]] = {
    "shfl_up": lambda lane, by: lane - by,
    "shfl_down": lambda lane, by: lane + by,
    "shfl_xor": lambda lane, by: lane ^ by,
    "shfl_sync": lambda lane, by: lane * 0 + by,
}
_OF_WARP: dict[str, tuple[str, Callable[[np.ndarray, Any, np.ndarray], Any]]] = {
    "activemask": ("uint64", lambda lanes, own, all_: _bits(lanes)),
    "ballot": ("uint64", lambda lanes, own, all_: _bits(lanes[all_ != 0])),
    "any_sync": ("int32", lambda lanes, own, all_: all_.any()),
    "all_sync": ("int32", lambda lanes, own, all_: all_.all()),
    "match_any_sync": ("uint32", lambda lanes, own, all_: _bits(lanes[all_ == own])),
    "match_all_sync": ("uint32", lambda lanes, own, all_: 0xFFFFFFFF * np.all(all_ == own)),
    "warp_reduce_sum": ("", lambda lanes, own, all_: all_.sum()),
    "warp_reduce_max": ("", lambda lanes, own, all_: all_.max()),
    "warp_reduce_min": ("", lambda lanes, own, all_: all_.min()),
    "warp_reduce_bitand": ("", lambda lanes, own, all_: np.bitwise_and.reduce(all_)),
    "warp_reduce_bitor": ("", lambda lanes, own, all_: np.bitwise_or.reduce(all_)),
}
_OF_BLOCK: dict[str, Callable[[np.ndarray], Any]] = {
    "syncthreads_count": np.count_nonzero,
    "syncthreads_and": np.all,
    "syncthreads_or": np.any,
}
EXCHANGES = (*_PLACES, *_SHUFFLES, *_OF_WARP, *_OF_BLOCK)


def exchanged(function: str, values: list[Value], here: np.ndarray) -> Value:
    """The values that threads get, where `here` says which of them come to the statement."""
    threads, zeros = np.arange(here.size), np.zeros(here.size)
    given = [np.broadcast_to(value.data, here.shape) for value in values]
    errors = [np.broadcast_to(value.error, here.shape) for value in values]
    if function in _PLACES:
        return Value(_PLACES[function](threads, *given), zeros, "int32")
    if function in _OF_BLOCK:
        return Value(zeros.astype(np.int64) + int(_OF_BLOCK[function](given[0])), zeros, "int32")
    if function in _SHUFFLES:
        width = given[2] if given[2:] else np.full(here.shape, 32)
        first, lane = threads // width * width, threads % width
        other = _SHUFFLES[function](lane, given[1])
        there = (other >= 0) & (other < width) & (first + other < here.size)
        source = np.where(there, first + other, threads)
        if not here[source[here]].all():
            raise Invalid("a value of a thread that does not come")
        return Value(given[0][source], errors[0][source], values[0].dtype)
    dtype, of_warp = _OF_WARP[function]
    result, error = zeros.astype(given[0].dtype if given and not dtype else np.int64), zeros.copy()
    for thread in threads[here]:
        lanes = threads[here & (threads // 32 == thread // 32)]
        own, all_ = (given[0][thread], given[0][lanes]) if given else (None, lanes)
        result[thread] = of_warp(lanes, own, all_)
        if function == "warp_reduce_sum" and values[0].dtype in EPSILON:
            error[thread] = (
                errors[0][lanes].sum() + 32 * EPSILON[values[0].dtype] * np.abs(all_).sum()
            )
        elif given:
            error[thread] = errors[0][lanes].max()
    return Value(result, error, dtype or values[0].dtype)
