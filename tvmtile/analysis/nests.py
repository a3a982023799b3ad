"""Nests of `T.Parallel` loops, and the elements that an iteration touches."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx

from tvmtile._tvm import Mutator, mutated
from tvmtile.analysis.conflicts.expressions import bits, strides
from tvmtile.analysis.conflicts.symbolic import NotSeparable, evaluate
from tvmtile.analysis.effects import Effect, effects_of
from tvmtile.analysis.kernel_info import let_values
from tvmtile.ir.kernels import is_parallel
from tvmtile.ir.operands import constant, literal
from tvmtile.ir.rewriting import substitute


class Nest:
    """A nest of `T.Parallel` loops, taken apart.

    Attributes
    ----------
    loops : list of For
        The loops, outermost first.
    body : Stmt
        What an iteration does.
    """

    def __init__(self, loop: tirx.For) -> None:
        self.loops: list[tirx.For] = []
        node: Any = loop
        while is_parallel(node):
            self.loops.append(node)
            node = node.body
        self.body: tirx.Stmt = node

    @property
    def variables(self) -> list[ir.Var]:
        """The loop variables, outermost first."""
        return [loop.loop_var for loop in self.loops]

    @cached_property
    def extents(self) -> list[int | None]:
        """The extents of the loops; None for one that is known at run time only."""
        return [constant(loop.extent) for loop in self.loops]

    @cached_property
    def accesses(self) -> list[Effect]:
        """The elements that an iteration touches, once each, those that it writes first.

        Names that it binds are replaced by their values.
        """
        names = let_values(self.body)
        found: dict[Any, Effect] = {}
        for access in sorted(elements_in(self.body, names), key=lambda access: not access.writes):
            place = tvm_ffi.StructuralKey(access.indices)
            found.setdefault((access.buffer, access.writes, place), access)
        return list(found.values())


def nests_in(statement: tirx.Stmt) -> list[Nest]:
    """The nests of a statement, in program order."""
    found: list[Nest] = []

    def visit(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        if is_parallel(loop):
            found.append(Nest(loop))
            return loop
        return mutator.default_mutate(loop)

    mutated(statement, (tirx.For, visit))
    return found


def elements_in(stmt: tirx.Stmt, names: dict[ir.Var, ir.Expr]) -> list[Effect]:
    """The effects on single elements in a statement, in its order, with names replaced by values."""

    def known(expressions: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        return tuple(substitute(each, names) for each in expressions)

    return [
        replace(
            each,
            indices=known(each.indices),
            value=None if each.value is None else substitute(each.value, names),
            conditions=known(each.conditions),
        )
        for each in effects_of(stmt)
        if each.indices
    ]


# Elements as numbers -----------------------------------------------------------------------------

_MOST = 4096
"""Iterations that are looked at: the first and the last ones along each axis, where there are more."""
_MOST_INNER = 4


def sample(loops: list[tirx.For]) -> dict[ir.Var, Any] | None:
    """The variables of a nest at its iterations, or at some thousands; None of unknown extents."""
    extents = [constant(loop.extent) for loop in loops]
    if None in extents or any(constant(loop.min) != 0 for loop in loops):
        return None
    known = [extent or 0 for extent in extents]
    most = _MOST if math.prod(known) <= _MOST else int(_MOST ** (1 / len(known)))
    axes = [_ends(extent, most) for extent in known]
    grid = np.meshgrid(*axes, indexing="ij")
    return {loop.loop_var: axis.ravel() for loop, axis in zip(loops, grid, strict=True)}


def _ends(extent: int, most: int) -> np.ndarray:
    """The numbers below an extent: all of them, or the first and the last ones."""
    if extent <= most:
        return np.arange(extent)
    last = most // 4
    return np.concatenate([np.arange(most - last), np.arange(extent - last, extent)])


@dataclass(frozen=True)
class AccessedElements:
    """The elements that iterations access."""

    access: Effect
    """Where."""
    iterations: Any
    """The number of an iteration in the sample."""
    places: np.ndarray
    """The indices of an element that it touches; a row for each."""
    terms: tuple[ir.Expr | None, ...]
    """A term to add to each index: the same for all iterations."""
    values: dict[ir.Var, np.ndarray]
    """The variables at each."""

    def in_memory(self, unit: int) -> tuple[np.ndarray, ir.Expr] | None:
        """The units of so many bits that the elements consist of, in rows, and what is to be added.

        They count from where the access starts, one a row, an element's side by side. None where
        strides are not known, or indices of inner axes, which may be outside of their axis.
        """
        buffer, size = self.access.buffer, bits(self.access.buffer)
        distances = [literal(each) for each in (*strides(buffer), buffer.ty.elem_offset)]
        if None in distances or any(term is not None for term in self.terms[1:]):
            return None
        *steps, offset = (int(each or 0) * size // unit for each in distances)
        first = self.places @ np.array(steps, np.int64) + offset + self.access.bits_before // unit
        units = first[:, None] + np.arange(size // unit)
        added = next((term for term in self.terms if term is not None), None)
        return units.reshape(-1, 1), tirx.const(0, "int32") if added is None else added * steps[0]


def elements_of(
    access: Effect,
    iterations: dict[ir.Var, np.ndarray],
    fixed: dict[ir.Var, int],
    is_uniform: Callable[[ir.Var], bool],
) -> AccessedElements | None:
    """The elements that iterations touch; None where that is not known, or where none does.

    The access is of a single element, the iterations are a sample of the nest, `fixed` has a value of
    each of the variables of loops around, and `is_uniform` tells whether another variable has one value
    for all.
    """
    points = _with_inner_loops(access.around, iterations)
    if points is None or not access.is_certain or access.operator is not None:
        return None

    values = {**points, **fixed}
    numbers = next(iter(points.values()))
    try:
        holds = np.ones(len(numbers), dtype=bool)
        for condition in access.conditions:
            found = evaluate(condition, values, is_uniform, 0)
            if found.term is not None:
                return None
            holds &= np.asarray(found.numbers, dtype=bool)
        places = [evaluate(index, values, is_uniform, 0) for index in access.indices]
    except NotSeparable:
        return None
    rows = [np.broadcast_to(np.asarray(p.numbers, dtype=np.int64), holds.shape) for p in places]
    for row, place, extent in zip(rows, places, access.buffer.ty.shape, strict=True):
        if place.term is None:  # what lies outside of a tensor is not touched
            size = constant(extent)
            holds &= (row >= 0) & ((row < size) if size is not None else True)
    if not holds.any():
        return None
    return AccessedElements(
        access,
        points[_NUMBER][holds],
        np.stack(rows, axis=1)[holds],
        tuple(place.term for place in places),
        {var: each[holds] for var, each in points.items()},
    )


_NUMBER = tirx.Var("iteration", "int32")
"""The number of an iteration of the sample, among the values of variables."""


def _with_inner_loops(
    loops: tuple[tirx.For, ...], iterations: dict[ir.Var, np.ndarray]
) -> dict[ir.Var, Any] | None:
    """The points of a sample times some iterations of serial loops."""
    count = len(next(iter(iterations.values())))
    points = {**iterations, _NUMBER: np.arange(count)}
    for loop in loops:
        low, extent = constant(loop.min), constant(loop.extent)
        if low is None or extent is None or extent < 1:
            return None
        inner = _ends(extent, _MOST_INNER) + low
        size = len(next(iter(points.values())))
        points = {var: np.repeat(each, len(inner)) for var, each in points.items()}
        points[loop.loop_var] = np.tile(inner, size)
    return points
