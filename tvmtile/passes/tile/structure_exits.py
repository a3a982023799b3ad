"""StructureExits: returns of threads, and early ends of iterations, become branches around the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import mapped, nodes_in
from tvmtile.errors import NestingError
from tvmtile.ir.kernels import (
    Launch,
    flattened,
    is_loop_exit,
    is_parallel,
    is_thread_return,
    leaves_loop,
    statements_of,
    with_kernels,
    with_launch_body,
    with_statements,
)
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, replace_loop, seq
from tvmtile.ir.spans import location_of


@prim_func_pass("StructureExits", establishes=(Property.EXITS_ARE_BRANCHES,))
def StructureExits(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Turn `T.thread_return()`, and exits of loops that may be no loops, into branches.

    What follows a branch that leaves moves into its other side. An exit further inside, in a loop or
    in a branch that goes on otherwise, is noted in a variable of the thread; loops are left, and what
    follows them depends on the variable. A GPU's thread may run one iteration of `T.Parallel`, without
    a loop that it could continue; and TVM replaces a serial loop of one iteration by its body.

    Raises
    ------
    NestingError
        If a return stands in `T.Parallel`, whose iterations are no thread's own.
    """

    def structure(kernel: tirx.For) -> tirx.For:
        body = _without_loop_exits(Launch(kernel).body)
        if contains(body, tirx.Evaluate, is_thread_return):
            body = _Structure(is_thread_return, _may_return, "returned").of(body)
        return with_launch_body(kernel, body)

    return with_kernels(func, structure)


def _without_loop_exits(body: tirx.Stmt) -> tirx.Stmt:
    analyzer = Analyzer()

    def visit(loop: tirx.For) -> tirx.For:
        runs_once = constant(analyzer.simplify(loop.extent)) == 1
        if not (runs_once or is_parallel(loop)) or not leaves_loop(loop.body):
            return loop
        structured = _Structure(is_loop_exit, leaves_loop, "continued").of(loop.body)
        return replace_loop(loop, body=structured)

    return mapped(body, (tirx.For, visit))


class _Structure:
    """Structures the exits of one kind.

    The name is that of the variable that notes an exit.
    """

    def __init__(
        self,
        is_exit: Callable[[tirx.Stmt], bool],
        may_exit: Callable[[tirx.Stmt], bool],
        name: str,
    ) -> None:
        self._is_exit = is_exit
        self._may_exit = may_exit
        self._has_left = tirx.decl_buffer((1,), "bool", name=name, scope="local")
        self._is_noted = False

    def of(self, body: tirx.Stmt) -> tirx.Stmt:
        structured = self._sequence([body], noted=False, in_loop=False)
        if not self._is_noted:
            return structured
        return seq([tirx.AllocBuffer(self._has_left), self._note(False), structured])

    def _note(self, value: bool) -> tirx.Stmt:
        return tirx.BufferStore(self._has_left, tirx.const(value, "bool"), [0])

    def _noted(self) -> ir.TensorLoad:
        return tirx.BufferLoad(self._has_left, [0])

    def _sequence(self, body: Sequence[tirx.Stmt], *, noted: bool, in_loop: bool) -> tirx.Stmt:
        """Structure statements; with `noted`, somebody asks afterwards whether one of them left."""
        statements = [part for stmt in body for part in flattened(stmt)]
        done: list[tirx.Stmt] = []
        for i, stmt in enumerate(statements):
            if self._is_exit(stmt):
                return seq([*done, *self._leave(noted, in_loop)])
            if not self._may_exit(stmt):
                done.append(stmt)
                continue
            rest = statements[i + 1 :]
            if isinstance(stmt, tirx.IfThenElse) and any(map(self._exits, statements_of(stmt))):
                return seq([*done, self._branch(stmt, rest, noted=noted, in_loop=in_loop)])
            done.append(self._inside(stmt, in_loop))
            return seq([*done, *self._rest(rest, noted=noted, in_loop=in_loop)])
        return seq(done)

    def _leave(self, noted: bool, in_loop: bool) -> list[tirx.Stmt]:
        self._is_noted |= noted
        leave: list[tirx.Stmt] = [tirx.Evaluate(tirx.break_loop())] if in_loop else []
        return [self._note(True), *leave] if noted else leave

    def _branch(
        self, branch: tirx.IfThenElse, rest: list[tirx.Stmt], *, noted: bool, in_loop: bool
    ) -> tirx.Stmt:
        """A branch with a side that leaves: what follows belongs to the other side."""
        cases = [[branch.then_case], [] if branch.else_case is None else [branch.else_case]]
        going_on = 1 if self._exits(branch.then_case) else 0
        cases[going_on] += rest
        then, otherwise = (self._sequence(case, noted=noted, in_loop=in_loop) for case in cases)
        return tirx.IfThenElse(branch.condition, then, otherwise if cases[1] else None, branch.span)

    def _inside(self, stmt: tirx.Stmt, in_loop: bool) -> tirx.Stmt:
        if is_parallel(stmt):
            raise NestingError(
                "T.thread_return stands in T.Parallel, whose iterations are shared out to the threads",
                help="write `continue`, which ends the iteration, or a loop of every thread with "
                "T.serial",
                location=_location_of_return(stmt),
            )
        in_loop = in_loop or isinstance(stmt, tirx.For | tirx.While)
        return with_statements(
            stmt,
            [self._sequence([child], noted=True, in_loop=in_loop) for child in statements_of(stmt)],
        )

    def _rest(self, rest: list[tirx.Stmt], *, noted: bool, in_loop: bool) -> list[tirx.Stmt]:
        if in_loop:
            leave = tirx.IfThenElse(self._noted(), tirx.Evaluate(tirx.break_loop()), None)
            return [leave, self._sequence(rest, noted=noted, in_loop=True)] if rest else [leave]
        if not rest:
            return []
        going_on = self._sequence(rest, noted=noted, in_loop=False)
        return [tirx.IfThenElse(tirx.Not(self._noted()), going_on, None)]

    def _exits(self, stmt: tirx.Stmt) -> bool:
        """Tell whether a statement leaves, whatever way it goes."""
        if isinstance(stmt, tirx.SeqStmt):
            return any(map(self._exits, stmt.seq))
        if isinstance(stmt, tirx.IfThenElse):
            cases = statements_of(stmt)
            return len(cases) == 2 and all(map(self._exits, cases))
        return self._is_exit(stmt)


def _may_return(stmt: tirx.Stmt) -> bool:
    return contains(stmt, tirx.Evaluate, is_thread_return)


def _location_of_return(stmt: tirx.Stmt) -> Any:
    returns = filter(is_thread_return, nodes_in(stmt, tirx.Evaluate))
    return location_of(next(returns).value)
