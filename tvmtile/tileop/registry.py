"""How the implementations of a tile operator are found.

Its lowerings are functions registered by operator and target kind; each declines with a reason or
returns a statement, and the most specific one that fits is used.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer
from tvm.target import Target

from tvmtile.errors import NoLowering, SourceLocation, TileError, VerifyError
from tvmtile.ir.operands import describe
from tvmtile.ir.operators import TileOp

__all__ = [
    "Decline",
    "Lowering",
    "LoweringContext",
    "demanded_layouts",
    "direct_operands",
    "lower",
    "lowering",
    "registered_lowerings",
]

_LOWERINGS: dict[tuple[str, str], list[Lowering]] = {}


class Decline(Exception):
    """A lowering does not fit; the message says why, in terms of the operands or the target."""


@dataclass
class LoweringContext:
    """What a lowering may ask.

    Attributes
    ----------
    target : Target
        What the kernel is compiled for.
    analyzer : Analyzer
        Knows the ranges of the loop variables around the operator.
    location : SourceLocation or None
        The user's line.
    imports : list of str
        Source text that the lowering's calls need: LLVM's intermediate language for `llvm`. The pass
        links it into the module, each text once.
    attributes : dict of str to Expr
        What a lowering says of the whole kernel, by TVM's name of the attribute.
    launch : Launch
        The loops of the kernel over blocks and threads.
    is_statement : bool
        The operator stands by itself: nobody takes its value.
    declined : list of (str, str)
        The implementations that were tried before, and why they do not fit.
    """

    target: Target
    analyzer: Analyzer
    location: SourceLocation | None = None
    imports: list[str] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    launch: Any = None
    is_statement: bool = False
    declined: list[tuple[str, str]] = field(default_factory=list)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return int(self.launch.num_threads)

    @property
    def thread_index(self) -> Any:
        """The number of a thread in its block."""
        return self.launch.thread_index


@dataclass(frozen=True)
class Lowering:
    """One implementation of an operator on one kind of target.

    Attributes
    ----------
    operator, target_kind, variant : str
        What is implemented, where, and the name of the way it is done.
    priority : int
        Higher ones are tried first; two of an operator and a target never share one.
    function : callable
        `(op, context) -> Stmt`; raises `Decline` where it does not fit.
    layouts : callable or None
        `(op, context) -> {fragment: FragmentLayout}`, what the implementation demands.
    direct : callable or None
        `(op, context) -> {name: count}`, what it could read from global memory.
    """

    operator: str
    target_kind: str
    variant: str
    priority: int
    function: Callable[[Any, LoweringContext], tirx.Stmt]
    layouts: Callable[[Any, LoweringContext], dict[ir.Var, Any]] | None = None
    direct: Callable[[Any, LoweringContext], dict[str, int]] | None = None


def lowering(
    operator: type[TileOp],
    *,
    target: str | tuple[str, ...],
    variant: str,
    priority: int = 0,
    layouts: Callable[[Any, LoweringContext], dict[ir.Var, Any]] | None = None,
    direct: Callable[[Any, LoweringContext], dict[str, int]] | None = None,
) -> Callable[[Callable[[Any, LoweringContext], tirx.Stmt]], Callable[..., tirx.Stmt]]:
    """Register a function as an implementation of an operator.

    Parameters
    ----------
    operator : type of TileOp
        What it implements.
    target : str or tuple of str
        Kind of target: `llvm`, `cuda`, `metal`.
    variant : str
        Name of the way it is done.
    priority : int
        Higher ones are tried first.
    layouts : callable, optional
        `(op, context) -> {fragment: FragmentLayout}`, the layouts that the instructions demand; raises
        `Decline` as the implementation does.
    direct : callable, optional
        `(op, context) -> {name: count}`, the operands that could as well lie in global memory, and how
        many groups of threads read each of their elements.
    """
    kinds = (target,) if isinstance(target, str) else target

    def register(function: Callable[[Any, LoweringContext], tirx.Stmt]) -> Any:
        if not function.__module__.startswith("tvmtile."):
            _import_lowerings()  # so that those of users come after tvmtile's
        for kind in kinds:
            add(Lowering(operator.name, kind, variant, priority, function, layouts, direct))
        return function

    def add(new: Lowering) -> None:
        candidates = _LOWERINGS.setdefault((new.operator, new.target_kind), [])
        for other in candidates:
            if other.priority == priority and other.variant != variant:
                raise ValueError(
                    f"lowerings {other.variant!r} and {variant!r} of {new.operator} on "
                    f"{new.target_kind} have the same priority, {priority}"
                )
        candidates[:] = [c for c in candidates if c.variant != variant]
        candidates.append(new)
        candidates.sort(key=lambda candidate: -candidate.priority)

    return register


def lower(op: TileOp, context: LoweringContext) -> tirx.Stmt:
    """Implement an operator with the first lowering that fits.

    Raises
    ------
    NoLowering
        If every lowering declines; the message is the table of their reasons.
    """
    kind = context.target.kind.name
    reasons = context.declined = []
    for candidate in _candidates(op, context):
        try:
            return candidate.function(op, context)
        except Decline as decline:
            reasons.append((candidate.variant, str(decline)))
        except TileError:
            raise
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            raise VerifyError(
                f"{op.name}: the implementation {candidate.variant!r} failed: "
                f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})",
                help="this is a defect of tvmtile, not of the kernel: please report it",
                location=context.location,
            ) from error
    operands = ", ".join(describe(operand) for operand in [*op.writes(), *op.reads()])
    table = [f"  {variant}: {reason}" for variant, reason in reasons]
    raise NoLowering(
        "\n".join([f"{op.name}: no implementation for {kind} fits {operands}", *table]),
        help="change what a reason names"
        if table
        else f"the target {kind!r} does not implement {op.name}",
        location=context.location,
    )


def demanded_layouts(op: TileOp, context: LoweringContext) -> dict[ir.Var, Any]:
    """The layouts of fragments that the instructions of an operator demand, where it has such."""
    for candidate in _candidates(op, context):
        if candidate.layouts is None:
            continue
        try:
            return candidate.layouts(op, context)
        except Decline:
            continue
    return {}


def direct_operands(op: TileOp, context: LoweringContext) -> dict[str, int]:
    """The operands that could as well lie in global memory, and how often each element is read."""
    for candidate in _candidates(op, context):
        if candidate.direct is None:
            continue
        try:
            return candidate.direct(op, context)
        except Decline:
            continue
    return {}


def _candidates(op: TileOp, context: LoweringContext) -> list[Lowering]:
    """The lowerings of an operator for the target, most specific first."""
    _import_lowerings()
    return _LOWERINGS.get((op.name, context.target.kind.name), [])


@lru_cache(maxsize=1)
def _import_lowerings() -> None:
    """Register those in modules of their own, which nobody needs who only writes programs."""
    importlib.import_module("tvmtile.tileop.lowerings")


def registered_lowerings() -> list[Lowering]:
    """The lowerings that were registered so far; those of users are among them."""
    return [candidate for candidates in _LOWERINGS.values() for candidate in candidates]
