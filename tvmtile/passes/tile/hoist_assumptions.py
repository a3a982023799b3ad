"""HoistAssumptions: what a kernel assumes of sizes is checked before it is launched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tvm import ir, tirx

from tvmtile._tvm import Mutator, mutated
from tvmtile.ir.conditions import assume, assumption_of, conjuncts, failure_of, whole_tile
from tvmtile.ir.kernels import Launch, is_kernel, leaves_loop, with_body, with_launch_body
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import defined_in, reads_no_memory, seq, variables_of


@prim_func_pass("HoistAssumptions")
def HoistAssumptions(func: tirx.PrimFunc) -> tirx.PrimFunc:
    r"""Let the host check what a kernel assumes of values that the host has: sizes, strides, numbers.

    What is assumed unconditionally moves to the kernel's start. What stands behind conditions that the
    host can decide, too, stays there, and is checked where they hold. All else is the user's promise.
    Where extents are multiples of the tiles that a grid counts, every block has a whole one.
    """
    return with_body(func, _Hoister().rewritten(func.body))


class _Hoister:
    def __init__(self) -> None:
        self._of_host: list[tirx.Stmt] = []  # assumed in front of the kernels that follow
        self._kernel: frozenset[ir.Var] | None = None  # what the kernel around defines
        self._path: list[ir.Expr] | None = []  # the conditions around; None: the host does not know
        self._checks: list[tirx.Stmt] = []
        self._head: list[tirx.Stmt] = []

    def rewritten(self, body: tirx.Stmt) -> tirx.Stmt:
        return mutated(
            body,
            (tirx.For, self._loop),
            (tirx.While, self._while),
            (tirx.IfThenElse, self._branch),
            (tirx.Evaluate, self._evaluate),
        )

    def _loop(self, loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        if is_kernel(loop):
            return self._launched(loop, mutator)
        if loop.thread_binding is not None:
            return mutator.default_mutate(loop)
        # An iteration may leave in front of what it assumes.
        with self._under(None if leaves_loop(loop.body) else loop.extent > 0):
            return mutator.default_mutate(loop)

    def _launched(self, loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        self._kernel, outer, self._path = defined_in(loop), self._path, []
        self._checks, self._head = [], list(self._of_host)
        kernel = mutator.default_mutate(loop)
        self._kernel, self._path = None, outer
        if self._head:
            body = Launch(kernel).body
            known = with_launch_body(kernel, seq(self._head))
            kernel = with_launch_body(kernel, seq([*self._head, *_whole_tiles(known), body]))
        return seq([*self._checks, kernel]) if self._checks else kernel

    def _while(self, loop: tirx.While, mutator: Mutator) -> tirx.Stmt:
        with self._under(None):
            return mutator.default_mutate(loop)

    def _branch(self, branch: tirx.IfThenElse, mutator: Mutator) -> tirx.Stmt:
        with self._under(branch.condition):
            then_case = mutator.mutate(branch.then_case)
        else_case = branch.else_case
        if else_case is not None:
            with self._under(tirx.Not(branch.condition)):
                else_case = mutator.mutate(else_case)
        return tirx.IfThenElse(branch.condition, then_case, else_case, branch.span)

    @contextmanager
    def _under(self, condition: ir.Expr | None) -> Iterator[None]:
        """Visit what is done where a condition holds, None: one that the host does not know.

        What is assumed there does not hold behind it.
        """
        path, of_host = self._path, list(self._of_host)
        if path is None or condition is None or not self._host_knows(condition):
            self._path = None
        elif constant(condition) != 1:
            self._path = [*path, condition]
        yield
        self._path, self._of_host = path, of_host

    def _host_knows(self, value: ir.Expr) -> bool:
        inside = self._kernel or frozenset()
        return reads_no_memory(value) and inside.isdisjoint(variables_of(value))

    def _evaluate(self, node: tirx.Evaluate, _: Mutator) -> tirx.Stmt:
        condition = assumption_of(node)
        if condition is None:
            return node
        kept = [self._decided(part, node.value.span) for part in conjuncts(condition)]
        return seq([stmt for stmt in kept if stmt is not None])

    def _decided(self, condition: ir.Expr, span: ir.Span | None) -> tirx.Stmt | None:
        """The statement that stays in the place of an assumption."""
        here = assume(condition, span)
        if self._path is None or not self._host_knows(condition):
            return here
        if self._kernel is None:
            if not self._path:
                self._of_host.append(here)
            return _check(condition, condition, span)
        behind = tirx.Or(tirx.Not(tirx.all(*self._path)), condition) if self._path else condition
        self._checks.append(_check(behind, condition, span))
        if self._path:
            return here
        self._head.append(here)
        return None


def _check(checked: ir.Expr, assumed: ir.Expr, span: ir.Span | None) -> tirx.Stmt:
    message = ir.StringImm(failure_of(assumed, span))
    return tirx.AssertStmt(checked, ir.StringImm("ValueError"), [message], span)


def _whole_tiles(kernel: tirx.For) -> list[tirx.Stmt]:
    """The condition that tiles end inside, by which blocks count along axes of whole ones."""
    launch = Launch(kernel)
    analyzer = launch.analyzer()
    known = (whole_tile(loop, analyzer) for loop in launch.blocks)
    return [assume(condition) for condition in known if condition is not None]
