"""Tensors at the edges of what floats hold, on which operators and examples are tried."""

from __future__ import annotations

import torch

WIDTH = 40


def placed(shape):
    """Numbers that are not random, of both signs."""
    return torch.linspace(-1, 1, torch.Size(shape).numel()).sin().reshape(shape)


def ROWS(dtype, width=WIDTH):
    """Named rows of a dtype."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(width, generator=generator, dtype=torch.float64)
    some = torch.arange(width) % 3 == 1
    info = torch.finfo(dtype)
    row = lambda value: torch.full((width,), value, dtype=torch.float64)
    rows = {
        "normal": normal,
        "1e4 times normal": 1e4 * normal,
        "1e6 times normal": 1e6 * normal,
        "zeros": row(0),
        "the lowest number": row(info.min),
        "the largest number": row(info.max),
        "the lowest number as a mask": torch.where(some, info.min, normal),
        "normal below a mask": (normal + info.min).clamp_min(info.min),
        "below -1e30": normal.clamp(-1, 1) * 1e30 - 2e30 if info.max > 1e31 else normal,
        "subnormals": normal * info.tiny / 4,
        "-infinity as a mask": torch.where(some, -torch.inf, normal),
        "-infinity": row(-torch.inf),
        "infinity": row(torch.inf),
        "one infinity": torch.where(torch.arange(width) == 7, torch.inf, normal),
        "both infinities": torch.where(some, torch.inf, row(-torch.inf)),
        "NaN": row(torch.nan),
        "NaN first": torch.where(torch.arange(width) == 0, torch.nan, normal),
        "NaN last": torch.where(torch.arange(width) == width - 1, torch.nan, normal),
    }
    return {name: value.to(dtype) for name, value in rows.items()}


def _scaled(factor):
    def tensors(queries, keys, dim):
        q, k, v = (torch.randn(1, 2, n, dim) for n in (queries, keys, keys))
        return q * factor, k * factor, v

    return tensors


def _with(which, value):
    def tensors(queries, keys, dim):
        given = list(_scaled(1)(queries, keys, dim))
        given[which][0, 0, -1, 1] = value
        return given

    return tensors


def _below(queries, keys, dim):
    """All scores far below -1e30."""
    q, k, v = _scaled(1)(queries, keys, dim)
    return q.abs() * 1e17, -k.abs() * 1e17, v


def _masked(queries, keys, dim):
    """The last key takes no part: its scores are -infinity."""
    q, k, v = _scaled(1)(queries, keys, dim)
    k[:, :, -1] = -torch.inf
    return q.abs(), k, v


def _growing(queries, keys, dim):
    """Scores of both signs that double up to 2^33, where float32 rounds by up to 256."""
    sign = 1 - torch.arange(queries).view(-1, 1) % 2 * 2.0
    q = (sign * 2**14).expand(1, 2, queries, dim)
    k = 2.0 ** (torch.arange(keys).view(-1, 1) % 30 - 15).expand(1, 2, keys, dim)
    return q.contiguous(), k.contiguous(), torch.randn(1, 2, keys, dim)


SCORES = {
    "normal": _scaled(1),
    "1e4 times normal": _scaled(1e4),
    "1e6 times normal": _scaled(1e6),
    "subnormals": _scaled(1e-40),
    "below -1e30": _below,
    "growing": _growing,
    "-infinity of the last key": _masked,
    **{
        f"{value} in {'qkv'[which]}": _with(which, value)
        for which in range(3)
        for value in (torch.nan, torch.inf, -torch.inf)
    },
    "one query": lambda _, keys, dim: _scaled(1e4)(1, keys, dim),
    "one key": lambda queries, _, dim: _scaled(1e4)(queries, 1, dim),
    "no queries": lambda _, keys, dim: _scaled(1)(0, keys, dim),
    "no keys": lambda queries, _, dim: _scaled(1)(queries, 0, dim),
    "heads of no elements": lambda queries, keys, _: _scaled(1)(queries, keys, 0),
}
"""Q, K and V by name, for numbers of queries and keys and elements of a head."""
