"""The iterations of a loop for a role: all of them, or those for which a condition holds.

Iterations have numbers, of all that the kernel does, by which a ring knows their buffer copies. What is
left out has none: no role waits for anything there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, tirx

from tvmtile.ir.annotations import NO_UNROLLING
from tvmtile.ir.extents import is_power_of_two
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import mentions, replace_loop, seq, substitute
from tvmtile.passes.tile.schedule.plan import other_annotations
from tvmtile.passes.tile.schedule.rings import Position


@dataclass(frozen=True)
class IterationSpace:
    """All iterations of a loop."""

    loop: tirx.For
    counter: ir.Var | None
    """Counts the iterations of former executions of the loop, and of others with its tiles, where there
    may be some.
    """
    stages: int
    """Buffer copies of its tiles."""

    def of(self, loop: tirx.For) -> IterationSpace:
        """The iterations of the same loop in a kernel that is written anew."""
        return replace(self, loop=loop)

    @property
    def _one(self) -> ir.Expr:
        """The number 1, as the loop counts."""
        return tirx.const(1, str(self.loop.loop_var.ty.dtype))

    @property
    def position(self) -> Position:
        """The position of an iteration in a ring: by its number, of all that the kernel does."""
        iteration = self.loop.loop_var - self.loop.min
        number = iteration if self.counter is None else _value(self.counter) + iteration
        return Position.of(number, self.stages)

    # An iteration, by what stands for its names ----------------------------------------------------

    def started(self, number: int = 0) -> dict[ir.Var, Any]:
        """One of the first iterations, before the loop."""
        return {self.loop.loop_var: _later(self.loop.min, number)}

    def shifted(self, distance: int) -> dict[ir.Var, Any]:
        """The iteration so many later, in an iteration."""
        return {self.loop.loop_var: _later(self.loop.loop_var, distance)}

    @property
    def last(self) -> dict[ir.Var, Any]:
        """The last iteration, behind the loop."""
        return {self.loop.loop_var: self.loop.min + self.loop.extent - self._one}

    @property
    def is_later(self) -> ir.Expr:
        """The condition that an iteration is not the first one."""
        return self.loop.loop_var > self.loop.min

    # Statements ------------------------------------------------------------------------------------

    def begun(self, whole: list[tirx.Stmt]) -> list[tirx.Stmt]:
        """The statements in place of the loop, behind those that it needs."""
        return whole

    def each(self, body: Sequence[tirx.Stmt]) -> tirx.Stmt:
        """All iterations.

        Compilers of CUDA would unroll a loop where the number of iterations is known, and move
        instructions between products that then have to wait for each other.
        """
        annotations = {**other_annotations(self.loop), NO_UNROLLING: 1}
        return replace_loop(self.loop, annotations=annotations, body=seq(self.inside(body)))

    def inside(self, body: Sequence[tirx.Stmt]) -> list[tirx.Stmt]:
        """An iteration with its names, and what counts it."""
        return list(body)

    def others(self, body: Sequence[tirx.Stmt]) -> tirx.Stmt:
        """All iterations but the first one."""
        start, count = self.loop.min + self._one, self.loop.extent - self._one
        return replace_loop(self.each(body), min=start, extent=count)  # type: ignore[arg-type]

    def passed(self) -> list[tirx.Stmt]:
        """The statements behind an iteration."""
        return []

    def counted(self) -> list[tirx.Stmt]:
        """The statements behind the loop."""
        if self.counter is None:
            return []
        # A loop whose end lies before its beginning has no iterations.
        executed = tirx.max(self.loop.extent, tirx.const(0, str(self.loop.extent.ty.dtype)))
        return [_set(self.counter, _value(self.counter) + executed)]

    def if_any(
        self, statements: Sequence[tirx.Stmt], none: Sequence[tirx.Stmt] = ()
    ) -> list[tirx.Stmt]:
        """The statements if there is an iteration, and those if there is none."""
        if (constant(self.loop.extent) or 0) > 0:
            return list(statements)
        return [_branch(self.loop.extent > 0, statements, none)]


@dataclass(frozen=True)
class CountingIterationSpace(IterationSpace):
    """All iterations of a loop, each of which counts itself.

    Where the copies are no power of two, the counter goes round twice their number: a division by that
    would be a chain of multiplications between the products of two iterations
    (`benchmarks/h200/decisions.md`).
    """

    counter: ir.Var
    current: ir.Var
    """The counter's value in an iteration."""

    @property
    def position(self) -> Position:
        if is_power_of_two(self.stages):
            return Position.of(self.current, self.stages)
        is_odd = self.current >= tirx.const(self.stages, str(self.current.ty.dtype))
        slot = tirx.Select(is_odd, self.current - self.stages, self.current)
        return Position(slot, tirx.Cast("int32", is_odd))

    def _counted_on(self, number: Any, distance: int) -> Any:
        """The counter, so many iterations later than where it has a number."""
        if distance == 0 or is_power_of_two(self.stages):
            return _later(number, distance)
        after = number + distance % (2 * self.stages)
        return tirx.Select(after >= 2 * self.stages, after - 2 * self.stages, after)

    def started(self, number: int = 0) -> dict[ir.Var, Any]:
        counted = self._counted_on(_value(self.counter), number)
        return {**super().started(number), self.current: counted}

    def shifted(self, distance: int) -> dict[ir.Var, Any]:
        return {**super().shifted(distance), self.current: self._counted_on(self.current, distance)}

    @property
    def last(self) -> dict[ir.Var, Any]:
        return {**super().last, self.current: self._counted_on(_value(self.counter), -1)}

    def inside(self, body: Sequence[tirx.Stmt]) -> list[tirx.Stmt]:
        number = tirx.Bind(self.current, _value(self.counter))
        return [*_if_used(number, body), *body, *self.passed()]

    def passed(self) -> list[tirx.Stmt]:
        return [_set(self.counter, self._counted_on(_value(self.counter), 1))]

    def counted(self) -> list[tirx.Stmt]:
        return []


@dataclass(frozen=True)
class FilteredIterationSpace(CountingIterationSpace):
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

    condition: ir.Expr
    """Whether an iteration is done, in terms of the loop's variable."""
    next: ir.Var
    """Holds the iteration that is done next."""
    bound: ir.Var
    """The end of the loop, where it is computed."""
    begin: ir.Var
    """The first iteration that is done, or the end."""

    def started(self, number: int = 0) -> dict[ir.Var, Any]:
        assert number == 0, "the second one is not known"
        return {**super().started(), self.loop.loop_var: self._iteration}

    def shifted(self, distance: int) -> dict[ir.Var, Any]:
        return {self.current: self._counted_on(self.current, distance)}

    @property
    def last(self) -> dict[ir.Var, Any]:
        return {self.current: self._counted_on(_value(self.counter), -1)}

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
        is_left = _value(self.next) < self._end
        whole = [*_if_used(iteration, body), *self.inside(body)]
        return tirx.While(is_left, seq(whole), self.loop.span)

    def others(self, body: Sequence[tirx.Stmt]) -> tirx.Stmt:
        return self.each(body)

    def passed(self) -> list[tirx.Stmt]:
        return [*super().passed(), _set(self.next, _value(self.next) + self._one), self._find()]

    def _find(self) -> tirx.Stmt:
        """Leave out iterations."""
        here = _value(self.next)
        is_kept = substitute(self.condition, {self.loop.loop_var: here})
        onward = _set(self.next, here + self._one)
        return tirx.While(tirx.all(here < self._end, tirx.Not(is_kept)), onward)

    def if_any(
        self, statements: Sequence[tirx.Stmt], none: Sequence[tirx.Stmt] = ()
    ) -> list[tirx.Stmt]:
        return [_branch(self.begin < self._end, statements, none)]


def iteration_space(
    loop: tirx.For, stages: int, counter: ir.Var | None, condition: ir.Expr | None = None
) -> IterationSpace:
    """The iterations of a loop, or those for which a condition holds, which a counter counts."""
    name, ty = loop.loop_var.name, loop.loop_var.ty
    if counter is None or (condition is None and is_power_of_two(stages)):
        return IterationSpace(loop, counter, stages)
    current, bound, begin = (ir.Var(f"{name}_{what}", ty) for what in ("number", "end", "begin"))
    if condition is None:
        return CountingIterationSpace(loop, counter, stages, current)
    following = tirx.decl_buffer((1,), str(ty.dtype), name=f"{name}_next", scope="local")
    return FilteredIterationSpace(
        loop, counter, stages, current, condition, following, bound, begin
    )


def counter_begun(counter: ir.Var | None) -> list[tirx.Stmt]:
    """The statements by which a thread begins a counter."""
    if counter is None:
        return []
    return [tirx.AllocBuffer(counter), _set(counter, tirx.const(0, str(counter.ty.dtype)))]


def _later(number: Any, distance: int) -> Any:
    return number + distance if distance >= 0 else number - -distance


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
