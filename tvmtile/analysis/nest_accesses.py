"""The elements that iterations of a `T.Parallel` nest certainly touch, as numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import ir, tirx

from tvmtile._tvm import mutated
from tvmtile.analysis.conflicts.symbolic import NotSeparable, evaluate
from tvmtile.errors import SourceLocation
from tvmtile.ir.calls import is_if_then_else
from tvmtile.ir.kernels import leaves_loop
from tvmtile.ir.operands import constant
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import substitute
from tvmtile.ir.spans import location_of

__all__ = ["Elements", "Touch", "elements_of", "sample", "touches_in"]

_MOST = 4096
"""Iterations that are looked at: the first and the last ones along each axis, where there are more."""
_MOST_INNER = 4


@dataclass(frozen=True)
class Touch:
    """A load or a store in the body of a nest.

    Attributes
    ----------
    buffer : Var
        Its buffer.
    indices : tuple of Expr
        Names that the kernel binds are replaced by their values.
    value : Expr or None
        What is stored; None for a load.
    loops : tuple of For
        The serial loops around it inside the nest.
    conditions : tuple of Expr
        What holds where an iteration comes to it, as far as that is known.
    is_certain : bool
        Nothing else decides whether an iteration comes to it.
    location : SourceLocation or None
        The user's line.
    """

    buffer: ir.Var
    indices: tuple[Any, ...]
    value: Any
    loops: tuple[tirx.For, ...]
    conditions: tuple[Any, ...]
    is_certain: bool
    location: SourceLocation | None


def touches_in(body: tirx.Stmt, names: dict[ir.Var, Any]) -> list[Touch]:
    """The loads and stores of the body of a nest, in program order, operators' operands apart."""
    return _Touches(names).of(body)


class _Touches:
    def __init__(self, names: dict[ir.Var, Any]) -> None:
        self._names = names
        self._found: list[Touch] = []
        self._loops: tuple[tirx.For, ...] = ()
        self._conditions: tuple[Any, ...] = ()
        self._is_certain = True
        self._location: SourceLocation | None = None

    def of(self, body: tirx.Stmt) -> list[Touch]:
        mutated(
            body,
            (tirx.For, self._loop),
            (tirx.While, self._uncertain),
            (tirx.IfThenElse, self._branch),
            (tirx.Select, self._select),
            (ir.Call, self._call),
            (tirx.BufferStore, self._store),
            (ir.TensorLoad, self._load),
        )
        return self._found

    def _note(self, buffer: ir.Var, indices: Any, value: Any = None) -> None:
        written = tuple(substitute(index, self._names) for index in indices)
        self._found.append(
            Touch(
                buffer,
                written,
                value,
                self._loops,
                self._conditions,
                self._is_certain,
                self._location,
            )
        )

    def _loop(self, loop: tirx.For, mutator: Any) -> Any:
        if leaves_loop(loop.body):
            return self._uncertain(loop, mutator)
        outer, self._loops = self._loops, (*self._loops, loop)
        mutator.default_mutate(loop)
        self._loops = outer
        return loop

    def _uncertain(self, node: Any, mutator: Any) -> Any:
        outer, self._is_certain = self._is_certain, False
        mutator.default_mutate(node)
        self._is_certain = outer
        return node

    def _branch(self, branch: tirx.IfThenElse, mutator: Any) -> Any:
        self._cases(mutator, branch.condition, branch.then_case, branch.else_case)
        return branch

    def _select(self, node: tirx.Select, mutator: Any) -> Any:
        self._cases(mutator, node.condition, node.true_value, node.false_value)
        return node

    def _cases(self, mutator: Any, condition: Any, then: Any, otherwise: Any) -> None:
        mutator.mutate(condition)
        known = substitute(condition, self._names)
        for case, holds in ((then, known), (otherwise, tirx.Not(known))):
            with self._where(holds):
                if case is not None:
                    mutator.mutate(case)

    @contextmanager
    def _where(self, condition: Any) -> Iterator[None]:
        outer, self._conditions = self._conditions, (*self._conditions, condition)
        yield
        self._conditions = outer

    def _call(self, call: ir.Call, mutator: Any) -> Any:
        if operator_of(call) is not None:
            return self._uncertain(call, mutator)
        if is_if_then_else(call):
            self._cases(mutator, *call.args)
            return call
        return mutator.default_mutate(call)

    def _store(self, store: tirx.BufferStore, mutator: Any) -> Any:
        self._location = location_of(store)
        mutator.mutate(store.value)
        for index in store.indices:
            mutator.mutate(index)
        self._note(store.buffer, store.indices, substitute(store.value, self._names))
        self._location = None
        return store

    def _load(self, load: ir.TensorLoad, mutator: Any) -> Any:
        mutator.default_mutate(load)
        self._note(load.source, load.indices)
        return load


# Numbers -----------------------------------------------------------------------------------------


def sample(loops: list[tirx.For]) -> dict[ir.Var, Any] | None:
    """The variables of a nest at its iterations, or at some thousands of them.

    Returns
    -------
    dict of Var to ndarray, or None
        None where the extents are not known.
    """
    extents = [constant(loop.extent) for loop in loops]
    if None in extents or any(constant(loop.min) != 0 for loop in loops):
        return None
    known = [extent or 0 for extent in extents]
    most = _MOST if math.prod(known) <= _MOST else int(_MOST ** (1 / len(known)))
    axes = [_ends(extent, most) for extent in known]
    grid = np.meshgrid(*axes, indexing="ij")
    return {loop.loop_var: axis.ravel() for loop, axis in zip(loops, grid, strict=True)}


def _ends(extent: int, most: int) -> Any:
    """The numbers below an extent: all of them, or the first and the last ones."""
    if extent <= most:
        return np.arange(extent)
    last = most // 4
    return np.concatenate([np.arange(most - last), np.arange(extent - last, extent)])


@dataclass(frozen=True)
class Elements:
    """What iterations touch.

    Attributes
    ----------
    touch : Touch
        Where.
    iterations : ndarray
        The number of an iteration in the sample.
    places : ndarray
        The indices of an element that it touches; a row for each.
    terms : tuple of Expr or None
        What is to be added to each index: the same for all iterations.
    values : dict of Var to ndarray
        The variables at each.
    """

    touch: Touch
    iterations: Any
    places: Any
    terms: tuple[Any, ...]
    values: dict[ir.Var, Any]


def elements_of(
    touch: Touch,
    iterations: dict[ir.Var, Any],
    fixed: dict[ir.Var, int],
    is_uniform: Callable[[ir.Var], bool],
) -> Elements | None:
    """The elements that iterations touch; None where that is not known, or where none does.

    Parameters
    ----------
    touch : Touch
        A load or a store.
    iterations : dict of Var to ndarray
        A sample of the nest.
    fixed : dict of Var to int
        A value of each of the variables of loops around.
    is_uniform : callable
        Tells whether another variable has one value for all iterations.
    """
    points = _with_inner_loops(touch.loops, iterations)
    if points is None or not touch.is_certain:
        return None

    values = {**points, **fixed}
    numbers = next(iter(points.values()))
    try:
        holds = np.ones(len(numbers), dtype=bool)
        for condition in touch.conditions:
            found = evaluate(condition, values, is_uniform, 0)
            if found.term is not None:
                return None
            holds &= np.asarray(found.numbers, dtype=bool)
        places = [evaluate(index, values, is_uniform, 0) for index in touch.indices]
    except NotSeparable:
        return None
    rows = [np.broadcast_to(np.asarray(p.numbers, dtype=np.int64), holds.shape) for p in places]
    for row, place, extent in zip(rows, places, touch.buffer.ty.shape, strict=True):
        if place.term is None:  # what lies outside of a tensor is not touched
            size = constant(extent)
            holds &= (row >= 0) & ((row < size) if size is not None else True)
    if not holds.any():
        return None
    return Elements(
        touch,
        points[_NUMBER][holds],
        np.stack(rows, axis=1)[holds],
        tuple(place.term for place in places),
        {var: each[holds] for var, each in points.items()},
    )


_NUMBER = tirx.Var("iteration", "int32")
"""The number of an iteration of the sample, among the values of variables."""


def _with_inner_loops(
    loops: tuple[tirx.For, ...], iterations: dict[ir.Var, Any]
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
