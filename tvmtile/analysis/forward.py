"""What holds at the statements of a thread, on all paths that lead there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from tvm import tirx

from tvmtile.ir.kernels import is_loop_exit, statements_of
from tvmtile.ir.operands import constant

State = TypeVar("State")


class Forward(ABC, Generic[State]):
    """Follows the paths through a statement; those through a loop until nothing more is found."""

    def __init__(self) -> None:
        self._exits: list[list[State]] = []
        self._changing: dict[tirx.Stmt, bool] = {}

    @abstractmethod
    def changes(self, stmt: tirx.Stmt) -> bool:
        """Tell whether the state behind a statement that holds no others may not be that before it."""

    @abstractmethod
    def past(self, stmt: tirx.Stmt, state: State) -> State:
        """The state behind a statement that holds no others."""

    @abstractmethod
    def joined(self, states: list[State]) -> State:
        """What holds where paths meet."""

    def follow(self, stmt: tirx.Stmt, state: State) -> State:
        """The state behind a statement."""
        if not self._may_change(stmt):
            return state
        if isinstance(stmt, tirx.For | tirx.While):
            return self._loop(stmt, state)
        if type(stmt) is tirx.IfThenElse:
            cases = [self.follow(case, state) for case in statements_of(stmt)]
            return self.joined([*cases, *([state] if stmt.else_case is None else [])])
        inside = statements_of(stmt)
        for each in inside:
            state = self.follow(each, state)
        if inside:
            return state
        if is_loop_exit(stmt) and self._exits:
            self._exits[-1].append(state)
        return self.past(stmt, state)

    def _may_change(self, stmt: tirx.Stmt) -> bool:
        """Tell whether anything in a statement changes the state, or leaves a loop."""
        known = self._changing.get(stmt)
        if known is None:
            inside = statements_of(stmt)
            own = not inside and (is_loop_exit(stmt) or self.changes(stmt))
            known = self._changing[stmt] = own or any(map(self._may_change, inside))
        return known

    def _loop(self, loop: tirx.For | tirx.While, state: State) -> State:
        runs_once = isinstance(loop, tirx.For) and constant(loop.extent) == 1
        while True:
            self._exits.append([])
            end = self.follow(loop.body, state)
            exits = self._exits.pop()
            if runs_once:
                return self.joined([end, *exits])
            entered = self.joined([state, end, *exits])
            if entered == state:
                return state
            state = entered
