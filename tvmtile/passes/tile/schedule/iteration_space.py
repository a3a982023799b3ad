"""How a role goes through a loop: by all of its iterations, or by those for which a condition holds.

Iterations have numbers, of all that the kernel does, by which a ring knows their buffer copies. What is
left out has none: no role waits for anything there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, tirx

from tvmtile.ir.annotations import NO_UNROLLING
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import mentions, replace_loop, seq, substitute
from tvmtile.passes.tile.schedule.plan import other_annotations


@dataclass(frozen=True)
class IterationSpace:
    """All iterations of a loop."""

    loop: tirx.For
    counter: ir.Var | None
    """Counts the iterations of former executions of the loop, and of others with its tiles, where there
    may be some.
    """

    def of(self, loop: tirx.For) -> IterationSpace:
        """Those of the same loop in a kernel that is written anew."""
        return replace(self, loop=loop)

    @property
    def _one(self) -> ir.Expr:
        """The number 1, as the loop counts."""
        return tirx.const(1, str(self.loop.loop_var.ty.dtype))

    # Numbers ---------------------------------------------------------------------------------------

    @property
    def number(self) -> Any:
        """That of an iteration, of all that the kernel does."""
        iteration = self.loop.loop_var - self.loop.min
        return iteration if self.counter is None else _value(self.counter) + iteration

    # An iteration, by what stands for its names ----------------------------------------------------

    @property
    def first(self) -> dict[ir.Var, Any]:
        """The first iteration, before the loop."""
        return {self.loop.loop_var: self.loop.min}

    @property
    def before(self) -> dict[ir.Var, Any]:
        """The iteration before, in an iteration."""
        return {self.loop.loop_var: self.loop.loop_var - self._one}

    @property
    def after(self) -> dict[ir.Var, Any]:
        """The iteration after, in an iteration."""
        return {self.loop.loop_var: self.loop.loop_var + self._one}

    @property
    def last(self) -> dict[ir.Var, Any]:
        """The last iteration, behind the loop."""
        return {self.loop.loop_var: self.loop.min + self.loop.extent - self._one}

    @property
    def is_later(self) -> ir.Expr:
        """Whether an iteration is not the first one."""
        return self.loop.loop_var > self.loop.min

    @property
    def is_followed(self) -> ir.Expr:
        """Whether an iteration is not the last one."""
        return self.loop.loop_var < self.loop.min + self.loop.extent - self._one

    # Statements ------------------------------------------------------------------------------------

    def begun(self, whole: list[tirx.Stmt]) -> list[tirx.Stmt]:
        """What is done in place of the loop, and before that what it needs."""
        return whole

    def each(self, body: Sequence[tirx.Stmt]) -> tirx.Stmt:
        """All iterations.

        Compilers of CUDA would unroll a loop where the number of iterations is known, and move
        instructions between products that then have to wait for each other.
        """
        annotations = {**other_annotations(self.loop), NO_UNROLLING: 1}
        return replace_loop(self.loop, annotations=annotations, body=seq(body))

    def others(self, body: Sequence[tirx.Stmt]) -> tirx.Stmt:
        """All iterations but the first one."""
        start, count = self.loop.min + self._one, self.loop.extent - self._one
        return replace_loop(self.each(body), min=start, extent=count)  # type: ignore[arg-type]

    def passed(self) -> list[tirx.Stmt]:
        """Behind an iteration."""
        return []

    def counted(self) -> list[tirx.Stmt]:
        """Behind the loop."""
        if self.counter is None:
            return []
        # A loop whose end lies before its beginning has no iterations.
        executed = tirx.max(self.loop.extent, tirx.const(0, str(self.loop.extent.ty.dtype)))
        return [_set(self.counter, _value(self.counter) + executed)]

    def if_any(
        self, statements: Sequence[tirx.Stmt], none: Sequence[tirx.Stmt] = ()
    ) -> list[tirx.Stmt]:
        """What is done if there is an iteration, and if there is none."""
        if (constant(self.loop.extent) or 0) > 0:
            return list(statements)
        return [_branch(self.loop.extent > 0, statements, none)]


@dataclass(frozen=True)
class FilteredIterationSpace(IterationSpace):
    """The iterations for which a condition holds.

    Each role looks for the next one at the end of an iteration, so that what is done is in no branch:
    if a product were, ptxas would have it wait for the one before (C7514).

        next = the first of begin, begin + 1, .. for which the condition holds, or end
        while next < end:
            k, number = next, counter
            ..
            counter += 1
            next = the first of k + 1, k + 2, ..
    """

    counter: ir.Var
    condition: ir.Expr
    """Whether an iteration is done, in terms of the loop's variable."""
    next: ir.Var
    """Holds the iteration that is done next."""
    bound: ir.Var
    """The end of the loop, where it is computed."""
    begin: ir.Var
    """The first iteration that is done, or the end."""
    current: ir.Var
    """The number of an iteration, in it."""

    @classmethod
    def named(cls, loop: tirx.For, counter: ir.Var, condition: ir.Expr) -> FilteredIterationSpace:
        """Those, with variables of their own."""
        name, ty = loop.loop_var.name, loop.loop_var.ty
        following = tirx.decl_buffer((1,), str(ty.dtype), name=f"{name}_next", scope="local")
        bound, begin, current = (
            ir.Var(f"{name}_{what}", ty) for what in ("end", "begin", "number")
        )
        return cls(loop, counter, condition, following, bound, begin, current)

    @property
    def number(self) -> Any:
        return self.current

    @property
    def first(self) -> dict[ir.Var, Any]:
        return {self.loop.loop_var: self._iteration, self.current: _value(self.counter)}

    @property
    def before(self) -> dict[ir.Var, Any]:
        return {self.current: self.current - self._one}

    @property
    def last(self) -> dict[ir.Var, Any]:
        return {self.current: _value(self.counter) - self._one}

    @property
    def is_later(self) -> ir.Expr:
        return self.loop.loop_var > self.begin

    @property
    def _end(self) -> Any:
        is_known = constant(self.loop.min) is not None and constant(self.loop.extent) is not None
        return self.loop.min + self.loop.extent if is_known else self.bound

    @property
    def _iteration(self) -> Any:
        """The next one, of which the index's range is known; that changes no value."""
        return tirx.max(tirx.min(_value(self.next), self._end - self._one), self.loop.min)

    def begun(self, whole: list[tirx.Stmt]) -> list[tirx.Stmt]:
        end = tirx.Bind(self.bound, self.loop.min + self.loop.extent)
        begin = tirx.Bind(self.begin, _value(self.next))
        found = [tirx.AllocBuffer(self.next), _set(self.next, self.loop.min), self._find()]
        return [*_if_used(end, [*found, *whole]), *found, *_if_used(begin, whole), *whole]

    def each(self, body: Sequence[tirx.Stmt]) -> tirx.Stmt:
        iteration = tirx.Bind(self.loop.loop_var, self._iteration)
        number = tirx.Bind(self.current, _value(self.counter))
        names = [*_if_used(iteration, body), *_if_used(number, body)]
        is_left = _value(self.next) < self._end
        return tirx.While(is_left, seq([*names, *body, *self.passed()]), self.loop.span)

    def others(self, body: Sequence[tirx.Stmt]) -> tirx.Stmt:
        return self.each(body)

    def passed(self) -> list[tirx.Stmt]:
        counted = _set(self.counter, _value(self.counter) + self._one)
        return [counted, _set(self.next, _value(self.next) + self._one), self._find()]

    def _find(self) -> tirx.Stmt:
        """Leave out iterations."""
        here = _value(self.next)
        is_kept = substitute(self.condition, {self.loop.loop_var: here})
        onward = _set(self.next, here + self._one)
        return tirx.While(tirx.all(here < self._end, tirx.Not(is_kept)), onward)

    def counted(self) -> list[tirx.Stmt]:
        return []

    def if_any(
        self, statements: Sequence[tirx.Stmt], none: Sequence[tirx.Stmt] = ()
    ) -> list[tirx.Stmt]:
        return [_branch(self.begin < self._end, statements, none)]


def _value(counter: ir.Var) -> Any:
    return tirx.BufferLoad(counter, [0])


def _set(counter: ir.Var, value: ir.Expr) -> tirx.Stmt:
    return tirx.BufferStore(counter, value, [0])


def _if_used(name: tirx.Bind, statements: Sequence[tirx.Stmt]) -> list[tirx.Bind]:
    return [name] if any(mentions(stmt, name.var) for stmt in statements) else []


def _branch(
    condition: ir.Expr, statements: Sequence[tirx.Stmt], none: Sequence[tirx.Stmt]
) -> tirx.Stmt:
    return tirx.IfThenElse(condition, seq(statements), seq(none) if none else None)
