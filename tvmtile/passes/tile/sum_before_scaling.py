"""SumBeforeScaling: sums of a loop with one scale are scaled once, behind the loop."""

from __future__ import annotations

from tvm import tirx
from tvm.sym import Analyzer
from tvm.target import Target

from tvmtile._tvm import Mutator, buffer_of, mutated
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.effects import effects_of
from tvmtile.ir.kernels import flattened, is_parallel, target_of, with_kernels
from tvmtile.ir.operators import Accumulates, TileOp, operator_of
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import defined_in, replace_loop, seq, variables_of


@prim_func_pass("SumBeforeScaling")
def SumBeforeScaling(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let a loop add up products, and scale the sums behind it.

    That is done to an operator that has sums of its own (`Accumulates`) if nothing else in the
    loop touches what it writes, the loop neither writes nor binds what the scaling reads, and it runs
    at least once. The sums are rounded once less an iteration; on a CPU the loop stays as it is.
    """
    target = target_of(func)
    return with_kernels(func, lambda kernel: _Sums(kernel, target).rewrite(kernel))


class _Sums:
    def __init__(self, kernel: tirx.For, target: Target) -> None:
        self._root = Aliases(kernel).root
        self._target = target
        self._analyzer = Analyzer()

    def rewrite(self, kernel: tirx.For) -> tirx.For:
        return mutated(kernel, (tirx.For, self._loop))

    def _loop(self, loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        if is_parallel(loop):
            return loop
        inner = mutator.default_mutate(loop)
        if inner.thread_binding is not None or not self._analyzer.can_prove(inner.extent >= 1):
            return inner
        statements = list(flattened(inner.body))
        before: list[tirx.Stmt] = []
        after: list[tirx.Stmt] = []
        for number, stmt in enumerate(statements):
            others = seq([*statements[:number], *statements[number + 1 :]])
            parts = self._parts(inner, stmt, others)
            if parts is not None:
                begin, statements[number], end = parts
                before.append(begin)
                after.append(end)
        if not before:
            return inner
        return seq([*before, replace_loop(inner, body=seq(statements)), *after])

    def _parts(
        self, loop: tirx.For, stmt: tirx.Stmt, others: tirx.Stmt
    ) -> tuple[tirx.Stmt, tirx.Stmt, tirx.Stmt] | None:
        """The sums of an operator of a loop, if what is done behind the loop comes to the same."""
        op = operator_of(stmt)
        op = None if op is None else op.normalized()
        parts = op.accumulated(self._target) if isinstance(op, Accumulates) else None
        if op is None or parts is None:
            return None
        if defined_in(loop) & set(variables_of(parts[2])) or self._interferes(op, parts[2], others):
            return None
        return parts

    def _interferes(self, op: TileOp, end: tirx.Stmt, others: tirx.Stmt) -> bool:
        """Tell whether other statements touch what an operator writes, or write what scaling reads."""
        written = {self._root(buffer_of(operand)) for operand in op.writes()}
        read = {self._root(var) for var in variables_of(end)}
        return any(
            self._root(access.buffer) in (written | read if access.writes else written)
            for access in effects_of(others)
        )
