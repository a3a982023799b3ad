"""Writes out what a role does in a loop: prologue, steady state and epilogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

from tvm import ir, tirx
from tvm_ffi import structural_equal

from tvmtile.ir.asynchronous import kind_of, signal, wait
from tvmtile.ir.kernels import flattened
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import seq, substitute, with_fresh_variables
from tvmtile.passes.tile.schedule.body import Body
from tvmtile.passes.tile.schedule.iteration_space import IterationSpace
from tvmtile.passes.tile.schedule.rings import folded
from tvmtile.passes.tile.schedule.schedule import Action, RoleSchedule, Step

Conditional: TypeAlias = tuple[Sequence[ir.Expr], tirx.Stmt]
"""A statement, and the conditions under which it runs."""
Writer: TypeAlias = Callable[[Step, "ir.Expr | None"], "list[Conditional]"]
"""Writes a step; one behind the iteration is given whether there is an iteration before."""
_Numbered: TypeAlias = tuple[int, Step]
"""A step, and its place in the role."""


@dataclass(frozen=True)
class Emitted:
    """The statements of a role before a loop, in each iteration, and behind the loop."""

    before: list[tirx.Stmt]
    each: list[tirx.Stmt]
    behind: list[tirx.Stmt]


class Emitter:
    """Writes the steps of a role in their order, each for the iteration that it belongs to.

    Steps ahead of an iteration are done before the loop for the first iterations; in the loop, which
    keeps its bounds, they are in a branch, since there may be no such iteration. Steps behind it are
    done behind the loop for the last iteration. With `peels` there is no branch: the first iteration
    of the loop is the second one.

    Each iteration signals each batch, also where there is nothing to issue: before the loop, in the
    last ones, where a condition does not hold. So how many batches may be in flight at a wait is one
    number for all. A drain that counts down would need the last iterations as code of their own, which
    costs more instructions and registers than an empty batch an iteration does; with a dynamic count of
    iterations it would need a branch for each.

    The first of the `spaces` says which iterations there are, the others only number them.
    """

    def __init__(
        self, role: RoleSchedule, body: Body, spaces: Sequence[IterationSpace], write: Writer
    ) -> None:
        self._role, self._body, self._spaces, self._write = role, body, spaces, write
        self._loop = spaces[0].loop
        self._steps = list(enumerate(role.steps))
        self._exists = ir.Var("exists", "bool")

    def emit(self, *, peels: bool = False) -> Emitted:
        """All that the role does."""
        if peels:
            first = [each for each in self._steps if each[1].offset == 0]
            last = [each for each in self._steps if each[1].offset < 0]
            before, behind = self._run(first, self._started(0)), self._run(last, self._last)
        else:
            ahead = max((step.offset for step in self._role.steps), default=0)
            before = [stmt for back in range(ahead, 0, -1) for stmt in self._prologue(back)]
            behind = self._epilogue()
        return Emitted(before, self._steady(peels=peels), behind)

    def _prologue(self, back: int) -> list[tirx.Stmt]:
        """The step so many iterations before the first one: what is so far ahead."""
        count = constant(self._loop.extent)

        def is_done(numbered: _Numbered) -> bool:
            _, step = numbered
            number = step.offset - back
            if step.action is Action.SIGNAL:
                return step.offset > 0
            return number >= 0 and (_is_of_batch(step) or count is None or number < count)

        found: list[tirx.Stmt] = []
        for (offset, is_of_batch), run in groupby(filter(is_done, self._steps), _place_in_time):
            number = offset - back
            statements = self._run(list(run), {} if is_of_batch else self._started(number))
            if count is None and not is_of_batch:
                first = tirx.const(number, str(self._loop.loop_var.ty.dtype))
                statements = [tirx.IfThenElse(first < self._loop.extent, seq(statements), None)]
            found += statements
        return found

    def _steady(self, *, peels: bool) -> list[tirx.Stmt]:
        """An iteration of the loop, whose own steps bind the names that they need once."""
        own = [written for each in self._steps if each[1].offset == 0 for written in self._of(each)]
        names = self._body.bindings_for(_joined(own))
        found: list[tirx.Stmt] = []
        end = folded(self._loop.min + self._loop.extent)

        def offset_of(numbered: _Numbered) -> int:
            _, step = numbered
            return 0 if _is_of_batch(step) and not peels else step.offset

        for offset, group in groupby(self._steps, offset_of):
            run, shifted = list(group), self._shifted(offset)
            if offset == 0:
                statements = _joined([written for each in run for written in self._of(each)])
                if any(step.action is Action.RUN for _, step in run):
                    first = next(n for n, (_, step) in enumerate(run) if not _is_of_batch(step))
                    statements[first:first], names = names, []
                found += statements
            elif peels:
                found += self._run(run, shifted)
            elif offset < 0:
                found += self._run(run, shifted | {self._exists: self._spaces[0].is_later})
            else:
                whole = seq(self._run(run, shifted))
                found.append(tirx.IfThenElse(shifted[self._loop.loop_var] < end, whole, None))
        return list(map(folded, found))

    def _epilogue(self) -> list[tirx.Stmt]:
        """The epilogue: nothing is in flight then, and later stages do their last iteration."""
        drained = [
            wait(batch.token, 0)
            for number, batch in enumerate(self._role.batches)
            if self._role.in_flight(number)
        ]
        late = [(n, step) for n, step in self._steps if step.offset < 0 and not _is_of_batch(step)]
        return [*drained, *self._run(late, self._last)] if late else drained

    # Statements ------------------------------------------------------------------------------------

    def _of(self, numbered: _Numbered, exists: ir.Expr | None = None) -> list[Conditional]:
        place, step = numbered
        if not _is_of_batch(step):
            return self._write(step, exists)
        token = self._role.batches[step.subject].token
        if step.action is Action.SIGNAL:
            return [((), signal(token))]
        return [((), wait(token, min(self._role.behind(place), kind_of(token).max_behind)))]

    def _run(self, steps: Sequence[_Numbered], names: dict[ir.Var, Any]) -> list[tirx.Stmt]:
        """Steps of an iteration, with the names that they need."""
        exists = self._exists if self._exists in names else None
        written = [each for numbered in steps for each in self._of(numbered, exists)]
        statements = _joined(written)
        whole = seq([*self._body.bindings_for(statements), *statements])
        return list(flattened(with_fresh_variables(folded(substitute(whole, names)))))

    def _started(self, number: int) -> dict[ir.Var, Any]:
        return {k: v for space in self._spaces for k, v in space.started(number).items()}

    def _shifted(self, distance: int) -> dict[ir.Var, Any]:
        return {k: v for space in self._spaces for k, v in space.shifted(distance).items()}

    @property
    def _last(self) -> dict[ir.Var, Any]:
        return {k: v for space in self._spaces for k, v in space.last.items()}


def _is_of_batch(step: Step) -> bool:
    return step.action in (Action.SIGNAL, Action.AWAIT)


def _place_in_time(numbered: _Numbered) -> tuple[int, bool]:
    _, step = numbered
    return step.offset, _is_of_batch(step)


def _joined(parts: Sequence[Conditional]) -> list[tirx.Stmt]:
    """Statements under their conditions, adjacent ones with the same condition in one branch."""
    result: list[tirx.Stmt] = []
    position = 0
    while position < len(parts):
        conditions, stmt = parts[position]
        position += 1
        if not conditions:
            result.append(stmt)
            continue
        inside = [(conditions[1:], stmt)]
        while position < len(parts) and _begins(parts[position][0], conditions[0]):
            inside.append((parts[position][0][1:], parts[position][1]))
            position += 1
        result.append(tirx.IfThenElse(conditions[0], seq(_joined(inside)), None))
    return result


def _begins(conditions: Sequence[ir.Expr], condition: ir.Expr) -> bool:
    return bool(conditions) and structural_equal(conditions[0], condition)
