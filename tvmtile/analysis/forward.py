"""A forward dataflow: the facts at each statement of a thread that hold on all paths to it."""

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
        self._changing: dict[tirx.Stmt, list[tirx.Stmt] | None] = {}

    @abstractmethod
    def changes(self, stmt: tirx.Stmt) -> bool:
        """Tell whether a statement may change the state, apart from those that it holds."""

    @abstractmethod
    def past(self, stmt: tirx.Stmt, state: State) -> State:
        """The state behind a statement that holds no others."""

    @abstractmethod
    def joined(self, states: list[State]) -> State:
        """The state where paths meet: what holds on all of them."""

    def follow(self, stmt: tirx.Stmt, state: State) -> State:
        """The state behind a statement."""
        changing = self._changing_in(stmt)
        if changing is None:
            return state
        if isinstance(stmt, tirx.For | tirx.While):
            return self._loop(stmt, state)
        if type(stmt) is tirx.IfThenElse:
            cases = [self.follow(case, state) for case in statements_of(stmt)]
            return self.joined([*cases, *([state] if stmt.else_case is None else [])])
        for each in changing:
            state = self.follow(each, state)
        if changing or statements_of(stmt):
            return state
        if is_loop_exit(stmt) and self._exits:
            self._exits[-1].append(state)
        return self.past(stmt, state)

    def _changing_in(self, stmt: tirx.Stmt) -> list[tirx.Stmt] | None:
        """The statements directly inside that may change the state; None if nothing does.

        To leave a loop is a change.
        """
        if stmt not in self._changing:
            inside = statements_of(stmt)
            found = [each for each in inside if self._changing_in(each) is not None]
            own = self.changes(stmt) or (not inside and is_loop_exit(stmt))
            self._changing[stmt] = found if found or own else None
        return self._changing[stmt]

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
