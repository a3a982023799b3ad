"""CheckLoopExits: `break` and `continue` leave a loop that can be left."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvmtile._tvm import Mutator, mutated
from tvmtile.errors import NestingError
from tvmtile.ir.kernels import is_continue, is_loop_exit, is_parallel
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.spans import location_of


@prim_func_pass("CheckLoopExits")
def CheckLoopExits(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Refuse `break` in `T.Parallel`, and `break` or `continue` outside of a loop.

    The iterations of `T.Parallel` have no order, so none of them comes after the one that breaks.
    `continue` ends its iteration. The program is not changed.

    ```
    for i in T.Parallel(64):
        if A[i] > 0:
            break                  # refused: other threads are at other iterations
    ```

    Raises
    ------
    NestingError
        For such a statement.
    """
    _Exits().check(func.body)
    return func


class _Exits:
    def __init__(self) -> None:
        self._loops: list[Any] = [None]

    def check(self, body: tirx.Stmt) -> None:
        mutated(body, ((tirx.For, tirx.While), self._loop), (tirx.Evaluate, self._evaluate))

    def _loop(self, loop: tirx.Stmt, mutator: Mutator) -> tirx.Stmt:
        is_bound = isinstance(loop, tirx.For) and loop.thread_binding is not None
        self._loops.append(None if is_bound else loop)
        mutator.default_mutate(loop)
        self._loops.pop()
        return loop

    def _evaluate(self, node: tirx.Evaluate, _: Mutator) -> tirx.Stmt:
        if not is_loop_exit(node):
            return node
        keyword = "continue" if is_continue(node) else "break"
        loop, location = self._loops[-1], location_of(node.value)
        if loop is None:
            raise NestingError(
                f"`{keyword}` stands outside of a loop",
                help="T.thread_return() ends the thread",
                location=location,
            )
        if is_parallel(loop) and keyword == "break":
            raise NestingError(
                "`break` stands in T.Parallel, whose iterations have no order",
                help="write `continue`, which ends the iteration, or a loop with T.serial",
                location=location,
            )
        return node
