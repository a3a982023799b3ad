"""The results that a call of a kernel allocates: their shapes, and whose memory they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import ArgumentError
from tvmtile.ir.extents import linear_in
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import mentions, substitute, variables_of
from tvmtile.jit.arguments import row_major
from tvmtile.library import Strides, allocator


@dataclass(frozen=True)
class Source:
    """Where a call finds an extent: an axis of an argument, or a number that is one."""

    position: int
    """Of the argument, results left out."""
    axis: int | None
    """None where the argument is the number."""

    def of(self, args: Sequence[Any]) -> Any:
        """The extent in a call."""
        argument = args[self.position]
        return argument if self.axis is None else argument.shape[self.axis]


@dataclass(frozen=True)
class _Result:
    """A result: its parameter, its extents as numbers, sources or expressions, and its dtype."""

    index: int
    extents: tuple[Any, ...]
    dtype: str
    shape: tuple[int, ...] | None
    """The extents where all are numbers."""
    strides: Strides
    """Those of that shape."""


class Results:
    """What the calls of a kernel allocate."""

    def __init__(self, params: Sequence[ir.Var], out_idx: Sequence[int]) -> None:
        self._params = list(params)
        self._indices = sorted(out_idx)
        self._results: list[_Result] | None = None

    def added_to(self, args: Sequence[object], device: str) -> tuple[object, ...]:
        """The arguments with results in their places, like the first tensor among them.

        They are on `device` where no argument is a tensor.
        """
        if self._results is None:
            self._results = self._planned()
        allocate = allocator(args, device)
        complete = list(args)
        for result in self._results:
            shape = self._shape(result, args) if result.shape is None else result.shape
            complete.insert(result.index, allocate(shape, result.dtype, result.strides))
        return tuple(complete)

    def _planned(self) -> list[_Result]:
        sources = sources_of(self._params, self._indices)
        results = []
        for index in self._indices:
            ty = self._params[index].ty
            extents = tuple(
                int(e.value) if isinstance(e, tirx.IntImm) else sources.get(e, e) for e in ty.shape
            )
            is_static = all(isinstance(extent, int) for extent in extents)
            shape, strides = (extents, tuple(row_major(extents))) if is_static else (None, None)
            results.append(_Result(index, extents, str(ty.dtype), shape, strides))
        return results

    def _shape(self, result: _Result, args: Sequence[Any]) -> tuple[int, ...]:
        try:
            shape = [e.of(args) if isinstance(e, Source) else e for e in result.extents]
        except (AttributeError, IndexError):  # an argument is None, or no tensor
            shape = list(self._params[result.index].ty.shape)
        if any(isinstance(extent, ir.Expr) for extent in shape):
            inputs = iter(args)
            params = enumerate(self._params)
            given = [None if i in self._indices else next(inputs) for i, _ in params]
            values = bound_extents(self._params, given)
            shape = [evaluate(e, values) if isinstance(e, ir.Expr) else e for e in shape]
        return tuple(shape)


def sources_of(params: Sequence[ir.Var], results: Sequence[int]) -> dict[ir.Var, Source]:
    """The arguments that give the variables that are an extent by themselves, or a number."""
    sources: dict[ir.Var, Source] = {}
    inputs = [param for index, param in enumerate(params) if index not in results]
    for position, param in enumerate(inputs):
        if not is_buffer_var(param):
            sources.setdefault(param, Source(position, None))
            continue
        for axis, extent in enumerate(param.ty.shape):
            if isinstance(extent, ir.Var):
                sources.setdefault(extent, Source(position, axis))
    return sources


def bound_extents(params: Any, args: list[Any]) -> dict[ir.Var, int]:
    """The values of dynamic extents, from the arguments that have them."""
    bound: dict[ir.Var, int] = {}
    expressions: list[tuple[Any, int]] = []
    for param, arg in zip(params, args, strict=True):
        if not is_buffer_var(param):
            if isinstance(arg, int):
                bound[param] = arg
            continue
        for extent, size in zip(param.ty.shape, getattr(arg, "shape", ()), strict=False):
            if isinstance(extent, ir.Var):
                bound[extent] = int(size)
            else:
                expressions.append((extent, int(size)))
    while any(_solve(extent, size, bound) for extent, size in expressions):
        pass
    return bound


def _solve(extent: Any, size: int, bound: dict[ir.Var, int]) -> bool:
    """Find the only variable of an extent that is not known yet, as NormalizeSignature does."""
    unknown = [var for var in variables_of(extent) if var not in bound]
    solution = linear_in(extent, unknown[0]) if len(unknown) == 1 else None
    if solution is None:
        return False
    coefficient, rest = solution
    bound[unknown[0]] = (size - evaluate(rest, bound)) // coefficient
    return True


def evaluate(extent: Any, values: dict[ir.Var, int]) -> int:
    """The value of an extent, from those of its variables.

    Raises
    ------
    ArgumentError
        If one of them is not known.
    """
    if isinstance(extent, int):
        return extent
    if isinstance(extent, ir.Var) and extent in values:
        return values[extent]
    used = {
        var: tirx.const(value, str(var.ty.dtype))
        for var, value in values.items()
        if mentions(extent, var)
    }
    result = constant(substitute(extent, used))
    if result is None:
        raise ArgumentError(
            f"the extent {extent} of a result is not known from the arguments",
            help="pass the result tensor too, or make the extent one of an argument",
        )
    return result
