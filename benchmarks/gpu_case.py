"""A case of `gpu.py`, and what those who make cases share."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Case:
    """A problem.

    Attributes
    ----------
    name : str
        As the table shows it.
    program : str
        The tile program, a key of `gpu_programs.PROGRAMS`.
    arguments : dict
        The problem's arguments of it.
    configurations : list of dict
        The arguments that the fastest is looked for among.
    inputs : callable
        Makes the inputs; the last parameter of a kernel is its result.
    out : callable
        Makes an empty result of the inputs.
    results : callable
        The tensors of a result that a kernel writes, where they are several.
    reference : callable
        The result in float64, from the inputs.
    tolerance : float
        The largest error, relative to the largest element.
    work : float
        Operations or bytes of a call.
    unit : str
        "TFLOP/s" or "GB/s".
    rivals : dict of str to callable
        Others' functions of the inputs and the result.
    others : dict of str to float
        Those of them that do something else, so much of the case's work: their results are not
        compared, and their times are those of the case's work.
    triton : tuple of (str, list of dict), optional
        The function of `gpu_triton` and its configurations.
    triton_arguments : tuple
        Beside inputs and result.
    triton_views : callable
        What Triton's function gets of the inputs and the result.
    tilelang : list of dict
        Configurations for TileLang alone, beside those of tvmtile.
    goals : dict of str to float
        How fast tvmtile is to be, relative to which contenders.
    """

    name: str
    program: str
    arguments: dict[str, Any]
    configurations: list[dict[str, Any]]
    inputs: Callable[[], Tensors]
    out: Callable[..., torch.Tensor]
    reference: Callable[..., torch.Tensor]
    tolerance: float
    work: float
    unit: str
    rivals: dict[str, Callable[..., object]] = field(default_factory=dict)
    others: dict[str, float] = field(default_factory=dict)
    triton: tuple[str, list[dict[str, Any]]] | None = None
    triton_arguments: tuple[Any, ...] = ()
    triton_views: Callable[..., Tensors] = lambda *tensors: tensors
    tilelang: list[dict[str, Any]] = field(default_factory=list)
    goals: dict[str, float] = field(default_factory=dict)
    results: Callable[[torch.Tensor], Tensors] = lambda out: (out,)

    def rate(self, milliseconds: float) -> float:
        """Work a second, in the case's unit."""
        scale = 1e9 if self.unit == "TFLOP/s" else 1e6
        return self.work / milliseconds / scale


def configurations(names: str, *rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    """One for each row of values, of which there is one for each name."""
    keys = names.split()
    return [dict(zip(keys, row, strict=True)) for row in rows]


def matrix(*shape: int, dtype: str = "float16") -> torch.Tensor:
    """Random numbers on the GPU."""
    return torch.randn(shape, device="cuda").to(getattr(torch, dtype))


def in_processes(function: Callable[[Any], object], jobs: Sequence[Any]) -> None:
    """Do all jobs in as many processes as there are processors."""
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=spawned) as workers:
        list(workers.map(function, jobs))
