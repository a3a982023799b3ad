"""Loops and branches of a kernel that is traced: decided now, or emitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm import ir, tirx
from tvm.script.ir_builder.base import IRBuilderFrame
from tvm.tirx.script import builder as T

from tvmtile._tvm import IRBuilder, as_expression
from tvmtile.errors import InvalidOperand, SourceLocation, SyntaxNotSupported
from tvmtile.frontend.values import as_condition, as_count, described

if TYPE_CHECKING:
    from tvmtile.frontend.tracer import Tracer


class Region:
    """A run-time loop or branch whose body is being traced."""

    def __init__(self, construct: str, carried: Iterable[str] = (), parallel: bool = False) -> None:
        self.construct = construct
        self.carried = frozenset(carried)
        self.parallel = parallel
        self.rebound: dict[str, SourceLocation | None] = {}
        self.made: dict[str, Variable] = {}


@dataclass(eq=False)
class Variable:
    """A name that a run-time construct changes, as a variable."""

    value: Any
    """The variable."""
    first: Any
    """The value of the name before the construct."""
    location: SourceLocation | None
    """The construct's line."""
    depth: int
    """Parallel loops around it."""
    stored: bool = False
    """Whether anything was assigned to it."""


class TracedBranch:
    """An `if`: decided now when its condition is a Python value, emitted otherwise."""

    def __init__(self, tracer: Tracer, condition: Any) -> None:
        self.dynamic = isinstance(condition, ir.Expr)
        self.has_then = self.dynamic or bool(condition)
        self.has_else = self.dynamic or not condition
        self.region = Region("branch")
        self.frame: IRBuilderFrame | None = None
        self._tracer = tracer
        self._condition = condition

    def then(self) -> AbstractContextManager[None]:
        return self._enter(T.Then) if self.dynamic else nullcontext()

    def otherwise(self) -> AbstractContextManager[None]:
        return self._enter(T.Else) if self.dynamic else nullcontext()

    @contextmanager
    def _enter(self, make_frame: Callable[[], IRBuilderFrame]) -> Iterator[None]:
        if self.frame is None:
            self.frame = T.If(self._condition)
            self.frame.__enter__()
        with make_frame(), self._tracer.inside(self.region):
            yield


class TracedLoop:
    """A `for` or `while`: a loop of the program for TVM's loop frames, else a loop of the tracing."""

    def __init__(self, tracer: Tracer, iterable: Any, carried: tuple[str, ...]) -> None:
        self.iterable = iterable
        self.dynamic = isinstance(iterable, IRBuilderFrame | LoopNest)
        parallel = bool(getattr(iterable, "is_parallel", False))
        self.region = Region("loop", carried, parallel)
        self._tracer = tracer

    def __iter__(self) -> Iterator[Any]:
        tracer = self._tracer
        if not self.dynamic:
            tracer.loops.append(self)
            try:
                yield from _python_iterable(self.iterable)
            finally:
                tracer.loops.pop()
            return
        with self.iterable as variables, tracer.inside(self.region):
            tracer.loops.append(self)
            yield variables
            tracer.loops.pop()


class LoopNest:
    """The result of a loop function of the language where TVM has no single frame for it.

    A context manager whose value is the loop variable, or the list of them.
    """

    is_parallel = False
    """Whether the iterations have no order."""
    takes_rest = False
    """Whether it may stand as a statement, whose body are the statements after it."""

    def __enter__(self) -> Any:
        raise NotImplementedError

    def __exit__(self, *exception: object) -> None:
        raise NotImplementedError

    if TYPE_CHECKING:  # to a type checker, `for i in T.Parallel(n)` is Python's

        def __iter__(self) -> Iterator[Any]: ...


class While(LoopNest):
    """A `while`, whose condition is traced when the names that it changes are variables.

    One that takes statements, such as `T.any_of(tile)`, does so in every iteration.
    """

    def __init__(self, condition: Callable[[], Any]) -> None:
        self._condition = condition

    def __enter__(self) -> None:
        test, needs_statements = tried(self._condition)
        if not isinstance(test, ir.Expr):
            raise SyntaxNotSupported(
                "the condition of this `while` is true while tracing and never changes",
                help="a run-time loop needs a run-time condition, e.g. on a T.alloc_var variable",
            )
        self._frame = T.While(tirx.const(True, "bool") if needs_statements else test)
        self._frame.__enter__()
        if needs_statements:
            with T.If(tirx.Not(as_condition(self._condition()))), T.Then():
                T.evaluate(tirx.break_loop())

    def __exit__(self, *exception: Any) -> None:
        self._frame.__exit__(*exception)


def tried(condition: Callable[[], Any]) -> tuple[Any, bool]:
    """The value of a condition, and whether it takes statements."""
    with IRBuilder() as trial, T.prim_func():
        test = as_condition(condition())
        return test, len(trial.frames[-1].stmts) > 0


def _python_iterable(iterable: Any) -> Iterable[Any]:
    if isinstance(iterable, ir.Expr) or not hasattr(iterable, "__iter__"):
        raise SyntaxNotSupported(
            f"a kernel can't loop over {described(iterable)}",
            help="loop over T.serial, T.Parallel, T.Pipelined, T.unroll, range(...) or a Python list",
        )
    return iterable


class _SteppedLoop(LoopNest):
    """`range(start, stop, step)` as a loop over the count, whose value is `start + i * step`."""

    def __init__(
        self, make: Callable[..., Any], start: Any, stop: Any, step: int, notes: Any
    ) -> None:
        distance, stride = (stop - start, step) if step > 0 else (start - stop, -step)
        self._frame = make(tirx.max(0, tirx.ceildiv(distance, stride)), annotations=notes)
        self._start, self._step = start, step

    def __enter__(self) -> Any:
        count = self._frame.__enter__()
        IRBuilder.name("step", count)
        return self._start + count * self._step

    def __exit__(self, *exception: Any) -> None:
        self._frame.__exit__(*exception)


def bounded_loop(
    name: str, make: Callable[..., Any], start: Any, stop: Any, step: Any, notes: Any
) -> Any:
    """A loop of TVM's from `start` to `stop`, with a step other than 1 over the count."""
    if stop is None:
        start, stop = 0, start
    start, stop = loop_bound(name, start), loop_bound(name, stop)
    if isinstance(step, tirx.IntImm):
        step = int(step)
    if step is None or (isinstance(step, int) and step == 1):
        return make(start, stop, annotations=notes or None)
    if not isinstance(step, int) or step == 0:
        raise InvalidOperand(
            f"{name}: the step {step} is not a constant other than 0",
            help="loop over the count and multiply in the body",
        )
    return _SteppedLoop(make, start, stop, step, notes or None)


def loop_bound(name: str, value: Any) -> Any:
    """A bound as int32 or int64; `InvalidOperand` of what is no integer."""
    value = as_expression(value)
    if isinstance(value, int) or (ir.is_prim_expr(value) and "int" in str(value.ty.dtype)):
        return as_count(value)
    raise InvalidOperand(
        f"{name}: a loop bound is an integer, not {value!r}",
        help="use // or T.ceildiv; in Python, `/` makes a float",
    )


def serial(
    start: Any,
    stop: Any = None,
    step: Any = None,
    *,
    annotations: Mapping[str, object] | None = None,
) -> Any:
    """A loop whose iterations run one after the other; `range(...)` in a `for` means the same.

    Parameters
    ----------
    start, stop : int or Expr
        Bounds, as of `range`.
    step : int, optional
        A constant; may be negative.
    annotations : dict, optional
        Annotations of the loop.
    """
    return bounded_loop("T.serial", T.serial, start, stop, step, annotations)
