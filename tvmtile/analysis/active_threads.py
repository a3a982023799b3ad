"""The threads of a block that come to a statement, where that depends on their index alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tvm import ir, tirx

from tvmtile._tvm import Mutator
from tvmtile.analysis.conflicts.symbolic import NotSeparable, evaluate
from tvmtile.analysis.uniformity import ThreadVariance
from tvmtile.ir.conditions import conjuncts
from tvmtile.ir.kernels import Launch

Threads: TypeAlias = NDArray[np.bool_]
"""Of each thread of a block, whether it comes."""


class Condition:
    """A condition, taken apart.

    Attributes
    ----------
    on_threads, others : list of Expr
        What depends on the index of a thread alone, and the rest.
    taken : ndarray
        The threads for which the first part holds.
    is_uniform_else : bool
        The rest is the same for all threads.
    """

    def __init__(self, condition: ir.Expr, active: ActiveThreads) -> None:
        self.on_threads: list[Any] = []
        self.others: list[Any] = []
        self.taken: Threads = active.all
        for part in conjuncts(condition):
            value = active.value_of(part)
            (self.others if value is None else self.on_threads).append(part)
            if value is not None:
                self.taken = self.taken & value.astype(bool)
        self.is_uniform_else = not any(map(active.variance.may_diverge, self.others))


class ActiveThreads:
    """Follows which threads come, for a rewriting that goes through a kernel.

    Attributes
    ----------
    variance : ThreadVariance
        What differs between its threads.
    all : ndarray
        All threads of a block.
    mask : ndarray or None
        Those that come to where the rewriting is; None where nobody knows before the kernel runs.
    """

    def __init__(self, launch: Launch) -> None:
        self.variance = ThreadVariance(launch.body, [loop.loop_var for loop in launch.threads])
        self.all: Threads = np.ones(launch.num_threads, bool)
        self.mask: Threads | None = self.all
        self._values: dict[ir.Var, Any] = launch.indices_of(np.arange(launch.num_threads))

    def note(self, bind: tirx.Bind) -> None:
        """Note the value of a name."""
        value = self.value_of(bind.value)
        if value is not None:
            self._values[bind.var] = value

    def noted(self, bind: tirx.Bind, mutator: Mutator) -> tirx.Bind:
        """The same as the callback of a rewriting."""
        self.note(bind)
        return mutator.default_mutate(bind)

    def value_of(self, expression: ir.Expr) -> np.ndarray | None:
        """The value of an expression in each thread; None if it is made from more than its index."""
        if not self.variance.depends(expression):
            return None
        try:
            value = evaluate(expression, self._values, lambda _: False, 0)
        except NotSeparable:
            return None
        if value.term is not None:
            return None
        return np.broadcast_to(np.asarray(value.numbers), self.all.shape)

    @contextmanager
    def restricted_to(self, threads: Threads | None) -> Iterator[None]:
        """Let fewer threads come."""
        outer, self.mask = self.mask, threads
        yield
        self.mask = outer

    def entering(self, condition: Condition, *, holds: bool) -> AbstractContextManager[None]:
        """Let those come that take a case of a branch."""
        return self.restricted_to(self.case(condition, holds=holds))

    def case(self, condition: Condition, *, holds: bool) -> Threads | None:
        """The threads that take a case of a branch, among those that come to it."""
        if self.mask is None or not condition.is_uniform_else:
            return None
        if holds:
            return self.mask & condition.taken
        return None if condition.others else self.mask & ~condition.taken
