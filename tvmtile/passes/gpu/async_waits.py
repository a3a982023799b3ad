"""How many groups of asynchronous work each wait may leave, on all paths that lead there."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import tirx

from tvmtile.analysis.forward import Forward
from tvmtile.ir.asynchronous import Wait, kind_of, signalled, waited

_Ages = tuple[int, ...]
"""Of the signals of a token, the latest first: how many groups were committed since, at least."""
_State = Mapping[str, _Ages]


def groups_left(stmt: tirx.Stmt) -> dict[tirx.Stmt, int]:
    """For each wait in a statement, how many groups it may leave in flight."""
    waits = _Waits()
    waits.follow(stmt, {})
    return waits.left


class _Waits(Forward[_State]):
    """What is in flight at waits, on all paths; a wait leaves no more than it may."""

    def __init__(self) -> None:
        super().__init__()
        self.left: dict[tirx.Stmt, int] = {}

    def changes(self, stmt: tirx.Stmt) -> bool:
        return signalled(stmt) is not None or waited(stmt) is not None

    def past(self, stmt: tirx.Stmt, state: _State) -> _State:
        token, awaited = signalled(stmt), waited(stmt)
        if awaited is not None:
            left = _left_by(awaited, state)
            self.left[stmt] = min(left, self.left.get(stmt, left))
        return state if token is None else _after_commit(token, state)

    def joined(self, states: list[_State]) -> _State:
        """What holds on all paths; a token that one has not signalled demands nothing there."""
        result: dict[str, _Ages] = {}
        for state in states:
            for token, ages in state.items():
                known = result.get(token, ())
                both = tuple(map(min, known, ages))
                result[token] = both + (known[len(both) :] or ages[len(both) :])
        return result


def _after_commit(token: str, state: _State) -> _State:
    kind = kind_of(token)
    most = kind.max_behind
    older = {
        other: tuple(min(age + 1, most) for age in ages) if kind_of(other) is kind else ages
        for other, ages in state.items()
    }
    return {**older, token: (0, *older.get(token, ()))[: most + 1]}


def _left_by(awaited: Wait, state: _State) -> int:
    """How many groups a wait may leave: those after the batch that it waits for."""
    kind = kind_of(awaited.token)
    if awaited.token == kind.name:
        return min(awaited.behind, kind.max_behind)
    ages = state.get(awaited.token, ())
    return ages[awaited.behind] if awaited.behind < len(ages) else kind.max_behind
