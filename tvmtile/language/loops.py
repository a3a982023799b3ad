"""Loops: `T.Parallel`, `T.Pipelined`, `T.unroll`, ..."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import ir
from tvm.tirx.script import builder as T
from tvm.tirx.script.builder.frame import ForFrame

from tvmtile._tvm import IRBuilder
from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import InvalidOperand, NestingError
from tvmtile.frontend.constructs import LoopNest, bounded_loop, loop_bound, serial
from tvmtile.frontend.kernel import current_kernel, kernel_of
from tvmtile.frontend.proxy import Indices
from tvmtile.frontend.tracer import current_tracer
from tvmtile.ir.annotations import (
    ORDER_ANNOTATION,
    STAGE_ANNOTATION,
    STAGES_ANNOTATION,
    UNROLL_BY_TVM,
    UNROLL_FACTOR,
)
from tvmtile.ir.kernels import is_parallel
from tvmtile.ir.operands import constant
from tvmtile.ir.rewriting import contains
from tvmtile.ir.types import Index

__all__ = [
    "Parallel",
    "Pipelined",
    "Serial",
    "Unroll",
    "Vectorized",
    "grid",
    "loop_break",
    "unroll",
    "vectorized",
]


class _ParallelNest(LoopNest):
    """Nested loops of TVM's parallel kind, which in a tile program mean elementwise work."""

    is_parallel = True

    def __init__(self, extents: Sequence[Index], annotations: Mapping[str, object]) -> None:
        self._extents = extents
        self._annotations = annotations
        self._frames: list[Any] = []

    def __enter__(self) -> Any:
        outside = "elementwise work is done by the blocks of `with T.Kernel(...)`"
        kernel = kernel_of("T.Parallel", outside)
        if kernel.parallel_depth and not self._continues(kernel.parallel_variables):
            raise _nested()
        kernel.parallel_depth += 1
        variables = []
        for position, extent in enumerate(self._extents):
            frame = T.parallel(extent, annotations=self._annotations if position == 0 else None)
            variables.append(frame.__enter__())
            self._frames.append(frame)
        kernel.parallel_variables += variables
        return variables[0] if len(variables) == 1 else Indices(variables)

    def _continues(self, outer: list[ir.Var]) -> bool:
        """Tell whether the loops make one nest with those that they stand in."""
        around = IRBuilder.current().frames[-1]
        is_first = isinstance(around, ForFrame) and around.vars[0].same_as(outer[-1])
        return (
            is_first
            and not around.stmts
            and not self._annotations
            and not contains(list(self._extents), ir.Var, lambda var: any(map(var.same_as, outer)))
        )

    def __exit__(self, *exception: Any) -> None:
        kernel = current_kernel()
        if kernel is not None:
            kernel.parallel_depth -= 1
            del kernel.parallel_variables[-len(self._extents) :]
        body = self._frames[-1].stmts
        if len(body) > 1 and not any(exception) and any(map(is_parallel, body)):
            raise _nested()
        while self._frames:
            self._frames.pop().__exit__(*exception)


def _nested() -> NestingError:
    return NestingError(
        "T.Parallel stands inside another T.Parallel and is not all that it does",
        help="write one T.Parallel with all extents, `for i, j in T.Parallel(M, N)`, or make the inner "
        "loop T.serial",
    )


def Parallel(
    *extents: Index,
    coalesced_width: int | None = None,
    loop_layout: Any = None,
    prefer_async: bool | None = None,
    annotations: Mapping[str, object] | None = None,
) -> LoopNest:
    """Elementwise work on tiles: all iterations are independent and share the block's threads.

    A loop whose body is another one, of extents that do not depend on it, makes one nest with it.

    Parameters
    ----------
    *extents : int or Expr
        The extent of each axis; the loop yields as many variables.
    coalesced_width, loop_layout, prefer_async
        Accepted with a warning: the compiler shares the iterations out.
    annotations : dict, optional
        Annotations of the outermost loop.

    Raises
    ------
    NestingError
        Outside `T.Kernel`, or inside another `T.Parallel` beside other statements.
    """
    if not extents:
        raise InvalidOperand("T.Parallel needs at least one extent")
    hints = {"coalesced_width": coalesced_width, "loop_layout": loop_layout}
    warn_ignored("T.Parallel", **hints, prefer_async=prefer_async)
    return _ParallelNest([loop_bound("T.Parallel", e) for e in extents], dict(annotations or {}))


def Pipelined(
    start: Any,
    stop: Any = None,
    num_stages: Any = 0,
    order: Sequence[int] | None = None,
    stage: Sequence[int] | None = None,
    sync: Any = None,
    group: Any = None,
    annotations: Mapping[str, object] | None = None,
) -> Any:
    """A serial loop whose copies may run ahead of the work that uses them.

    Parameters
    ----------
    start, stop : int or Expr
        `T.Pipelined(n)` runs from 0 to n, `T.Pipelined(a, b)` from a to b.
    num_stages : int
        How many buffer copies of a tile there are: copies from global memory into shared tiles run
        `num_stages - 1` iterations ahead of what uses them. None runs ahead for 0 or 1. The result
        does not depend on it.
    order, stage : sequence of int, optional
        A schedule of your own: the order in which the statements of the body are issued, and the stage
        of each; a stage runs an iteration ahead of the next one. Names whose value can be computed
        again in each stage have no entries.
    sync, group
        Accepted with a warning: the compiler finds the dependences.
    annotations : dict, optional
        Further annotations of the loop.
    """
    warn_ignored("T.Pipelined", sync=sync, group=group)
    if not isinstance(num_stages, int) or num_stages < 0:
        raise InvalidOperand(
            f"T.Pipelined: num_stages={num_stages!r}", help="num_stages is an integer of 0 or more"
        )
    for name, entries in (("order", order), ("stage", stage)):
        if entries is not None and not isinstance(entries, Sequence):
            raise InvalidOperand(
                f"T.Pipelined: {name}={entries!r} is no list of numbers",
                help="the arguments are start, stop and num_stages; a pipelined loop has no step",
            )
    orders = [] if order is None else list(order)
    stages = [] if stage is None else list(stage)
    if len(orders) != len(stages):
        raise InvalidOperand(
            "T.Pipelined: order and stage go together and have one entry a statement",
            help="give both with the same length, or neither",
        )
    merged = dict(annotations or {})
    merged[STAGES_ANNOTATION] = num_stages
    if orders:
        merged[ORDER_ANNOTATION] = orders
        merged[STAGE_ANNOTATION] = stages
    return serial(start, stop, annotations=merged)


def loop_break() -> None:
    """Leave the innermost loop, as `break` does: TileLang's name for it.

    Raises
    ------
    NestingError
        If it stands in no loop of the running kernel.
    """
    tracer = current_tracer()
    if tracer is None or not tracer.loops or not tracer.loops[-1].dynamic:
        raise NestingError(
            "T.loop_break() stands in no loop of the running kernel",
            help="write it in a T.serial or `while`, and `break` in a loop over Python values",
        )
    tracer.break_loop()


def unroll(
    start: Any,
    stop: Any = None,
    step: Any = None,
    *,
    explicit: bool = False,
    unroll_factor: int | None = None,
    annotations: Mapping[str, object] | None = None,
) -> Any:
    """A serial loop that the compiler unrolls.

    Parameters
    ----------
    start, stop, step : int or Expr
        Bounds, as of `range`. A loop whose number of iterations only a call knows stays a loop, which
        the target's compiler may unroll.
    explicit : bool
        Unroll in the program itself rather than in the code generator.
    unroll_factor : int, optional
        How many iterations to unroll at a time: the loop becomes one over so many copies of its body.
    annotations : dict, optional
        Annotations of the loop.
    """
    if explicit and unroll_factor is not None:
        raise InvalidOperand("T.unroll: explicit and unroll_factor exclude each other")
    merged = dict(annotations or {})
    if explicit:
        merged[UNROLL_BY_TVM] = True
    if unroll_factor is not None:
        _check_factor(unroll_factor)
        merged[UNROLL_FACTOR] = unroll_factor
    is_known = all(constant(bound) is not None for bound in (start, stop) if bound is not None)
    return bounded_loop("T.unroll", T.unroll if is_known else T.serial, start, stop, step, merged)


def _check_factor(factor: Any) -> None:
    if isinstance(factor, bool) or not isinstance(factor, int) or factor < 1:
        raise InvalidOperand(
            f"T.unroll: unroll_factor={factor!r}", help="unroll_factor is a positive integer"
        )


def vectorized(
    start: Any, stop: Any = None, *, annotations: Mapping[str, object] | None = None
) -> Any:
    """A loop of constant extent that runs as one vector operation.

    Parameters
    ----------
    start, stop : int
        Bounds, as of `range`.
    annotations : dict, optional
        Annotations of the loop.
    """
    return bounded_loop("T.vectorized", T.vectorized, start, stop, None, annotations)


def grid(*extents: Index) -> Any:
    """Nested serial loops, one for each extent."""
    return T.grid(*(loop_bound("T.grid", extent) for extent in extents))


Serial = serial
Unroll = unroll
Vectorized = vectorized
