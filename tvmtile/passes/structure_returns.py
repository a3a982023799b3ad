"""StructureReturns: a thread that returns leaves out the statements that follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvmtile.errors import NestingError
from tvmtile.passes.kernels import (
    Launch,
    flattened,
    is_thread_return,
    prim_func_pass,
    statements_of,
    with_kernels,
    with_launch_body,
    with_statements,
)
from tvmtile.rewriting import contains, seq
from tvmtile.spans import location_of

__all__ = ["StructureReturns"]


@prim_func_pass("StructureReturns")
def StructureReturns(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Turn `T.thread_return()` into branches.

    What follows a branch that returns moves into its other side. A return further inside, in a loop or
    in a branch that goes on otherwise, is noted in a variable of the thread; loops are left, and what
    follows them depends on the variable.

    Raises
    ------
    NestingError
        If a return stands in `T.Parallel`, whose iterations are no thread's own.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((40,), "float32")):
        for bx in T.thread_binding(2, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                if bx * 32 + tx >= 40:
                    T.evaluate(T.thread_return())
                A[bx * 32 + tx] = T.float32(1)
    ```

    After
    -----
    ```
    @T.prim_func
    def main(A: T.Buffer((40,), "float32")):
        for bx in T.thread_binding(2, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(32, thread="threadIdx.x"):
                if bx * 32 + tx >= 40:
                    T.evaluate(0)
                else:
                    A[bx * 32 + tx] = T.float32(1)
    ```
    """
    del context

    def structure(kernel: tirx.For) -> tirx.For:
        body = Launch(kernel).body
        if not _may_return(body):
            return kernel
        return with_launch_body(kernel, _Structure().kernel(body))

    return with_kernels(func, structure)


class _Structure:
    def __init__(self) -> None:
        self._returned = tirx.decl_buffer((1,), "bool", name="returned", scope="local")
        self._is_noted = False

    def kernel(self, body: tirx.Stmt) -> tirx.Stmt:
        structured = self._sequence([body], noted=False, in_loop=False)
        if not self._is_noted:
            return structured
        return seq([tirx.AllocBuffer(self._returned), self._note(False), structured])

    def _note(self, value: bool) -> tirx.Stmt:
        return tirx.BufferStore(self._returned, tirx.const(value, "bool"), [0])

    def _has_returned(self) -> Any:
        return tirx.BufferLoad(self._returned, [0])

    def _sequence(self, body: Sequence[tirx.Stmt], *, noted: bool, in_loop: bool) -> tirx.Stmt:
        """Structure statements; with `noted`, somebody asks afterwards whether the thread returned."""
        statements = [part for stmt in body for part in flattened(stmt)]
        done: list[tirx.Stmt] = []
        for i, stmt in enumerate(statements):
            if is_thread_return(stmt):
                return seq([*done, *self._leave(noted, in_loop)])
            if not _may_return(stmt):
                done.append(stmt)
                continue
            rest = statements[i + 1 :]
            if isinstance(stmt, tirx.IfThenElse) and any(map(_returns, statements_of(stmt))):
                return seq([*done, self._branch(stmt, rest, noted=noted, in_loop=in_loop)])
            done.append(self._inside(stmt, in_loop))
            return seq([*done, *self._rest(rest, noted=noted, in_loop=in_loop)])
        return seq(done)

    def _leave(self, noted: bool, in_loop: bool) -> list[tirx.Stmt]:
        self._is_noted |= noted
        leave = [tirx.Evaluate(tirx.break_loop())] if in_loop else []
        return [self._note(True), *leave] if noted else leave

    def _branch(
        self, branch: tirx.IfThenElse, rest: list[tirx.Stmt], *, noted: bool, in_loop: bool
    ) -> tirx.Stmt:
        """A branch with a side that returns: what follows belongs to the other side."""
        cases = [[branch.then_case], [] if branch.else_case is None else [branch.else_case]]
        going_on = 1 if _returns(branch.then_case) else 0
        cases[going_on] += rest
        then, otherwise = (self._sequence(case, noted=noted, in_loop=in_loop) for case in cases)
        return tirx.IfThenElse(branch.condition, then, otherwise if cases[1] else None, branch.span)

    def _inside(self, stmt: tirx.Stmt, in_loop: bool) -> tirx.Stmt:
        if isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.PARALLEL:
            raise NestingError(
                "T.thread_return stands in T.Parallel, whose iterations are shared out to the threads",
                help="write an `if` in the loop, or a loop of every thread with T.serial",
                location=_location_of_return(stmt),
            )
        in_loop = in_loop or isinstance(stmt, tirx.For | tirx.While)
        return with_statements(
            stmt,
            [self._sequence([child], noted=True, in_loop=in_loop) for child in statements_of(stmt)],
        )

    def _rest(self, rest: list[tirx.Stmt], *, noted: bool, in_loop: bool) -> list[tirx.Stmt]:
        if in_loop:
            leave = tirx.IfThenElse(self._has_returned(), tirx.Evaluate(tirx.break_loop()), None)
            return [leave, self._sequence(rest, noted=noted, in_loop=True)] if rest else [leave]
        if not rest:
            return []
        going_on = self._sequence(rest, noted=noted, in_loop=False)
        return [tirx.IfThenElse(tirx.Not(self._has_returned()), going_on, None)]


def _may_return(stmt: tirx.Stmt) -> bool:
    return contains(stmt, tirx.Evaluate, is_thread_return)


def _returns(stmt: tirx.Stmt) -> bool:
    """Tell whether a statement returns, whatever way it goes."""
    if isinstance(stmt, tirx.SeqStmt):
        return any(map(_returns, stmt.seq))
    if isinstance(stmt, tirx.IfThenElse):
        cases = statements_of(stmt)
        return len(cases) == 2 and all(map(_returns, cases))
    return is_thread_return(stmt)


def _location_of_return(stmt: tirx.Stmt) -> Any:
    found: list[Any] = []

    def note(call: ir.Call) -> None:
        found.append(location_of(call))

    tvm_ffi.structural_walk(
        stmt, (tirx.Evaluate, lambda node: note(node.value) if is_thread_return(node) else None)
    )
    return found[0]
