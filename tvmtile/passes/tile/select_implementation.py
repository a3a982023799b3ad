"""SelectImplementation: choose the implementation of each tile operator, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, tirx
from tvm.target import Target

from tvmtile._tvm import buffer_of
from tvmtile.errors import SourceLocation, warn
from tvmtile.ir.kernels import target_of, with_body
from tvmtile.ir.operands import describe
from tvmtile.ir.operators import TileOp
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.layout.fragment import layout_of
from tvmtile.passes.tile.lower_tile_op import TileOperators
from tvmtile.tileop.registry import (
    Decline,
    Lowering,
    LoweringContext,
    fragments_of,
    implementation_of,
)
from tvmtile.tileop.selection import declined_before, refusal, select


@prim_func_pass(
    "SelectImplementation",
    requires=(Property.REGIONS, Property.GROUPS),
    establishes=(Property.IMPLEMENTATIONS,),
)
def SelectImplementation(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write into each tile operator which of its implementations is used.

    It is the most specific one that fits, or the one that a call asks for, `T.gemm(..., impl="mma")`.
    From here on every pass asks that `Lowering` what it needs to know. An operator that the target
    implements in one way has nothing to choose. Where it depends on the layouts of fragments, the
    choice stays open until the pass runs again after InferLayout. A choice that is slow where a matrix
    unit could be expected is a warning, unless the call asks for it.

    Raises
    ------
    NoLowering
        If nothing fits, or not what a call asks for; the message is the table of reasons.
    """
    target = target_of(func)
    refused: dict[str, str] = {}
    while True:
        selector = _Select(target, refused)
        body = selector.rewrite(func.body)
        more = selector.disagreements()
        if (
            more.keys() <= refused.keys()
        ):  # what a call asks for stays: InferLayout says what is wrong
            break
        refused.update(more)
    for message, location in selector.warnings:
        warn(message, location)
    return with_body(func, body)


class _Select(TileOperators):
    """Chooses, and notes what demands which layout of a fragment."""

    def __init__(self, target: Target, refused: Mapping[str, str]) -> None:
        super().__init__(target)
        self._refused = refused
        self._demands: dict[ir.Var, set[Any]] = {}
        self._agreeing: dict[ir.Var, str] = {}
        self.warnings: list[tuple[str, SourceLocation | None]] = []

    def rewritten(self, op: TileOp, context: LoweringContext, node: tirx.Evaluate) -> tirx.Stmt:
        new, message = _chosen(op, context, self._refused)
        if message is not None:
            self.warnings.append((message, context.location))
        self._note_demands(new, context)
        if new is op:
            return node
        return tirx.Evaluate(new.to_call(node.value.span), node.span)

    def _note_demands(self, op: TileOp, context: LoweringContext) -> None:
        chosen = implementation_of(op, context.kind)
        fragments = fragments_of(op)
        if chosen is None or chosen.fragments is None or not fragments:
            return
        demanded = chosen.fragments.layouts(op, context)
        for fragment in fragments:
            self._demands.setdefault(fragment, set()).add(demanded.get(fragment))
            if chosen.fragments.agrees:
                self._agreeing[fragment] = chosen.variant

    def disagreements(self) -> dict[str, str]:
        """The variants whose demands on a fragment's layout disagree."""
        return {
            variant: f"other uses of {fragment.name} hold it in another layout"
            for fragment, variant in self._agreeing.items()
            if len(self._demands[fragment]) > 1
        }


def _chosen(
    op: TileOp, context: LoweringContext, refused: Mapping[str, str]
) -> tuple[TileOp, str | None]:
    """An operator with its implementation, and what to warn of."""
    if op.impl is not None:
        if _still_fits(op, context):
            return op, None
        op = replace(op, impl=None)
    chosen = select(op, context, refused)
    if chosen is None:
        return op, None
    slowness = _slowness(op, chosen, context, refused)
    if slowness is None and implementation_of(op, context.kind) is chosen:
        return op, None  # the only one
    return replace(op, impl=chosen.variant), slowness


def _still_fits(op: TileOp, context: LoweringContext) -> bool:
    """Tell whether the implementation that an operator names fits.

    One that was chosen before the layouts of fragments were known may turn out not to; one that the
    user asks for has to.
    """
    chosen = implementation_of(op, context.kind)
    if chosen is None:
        raise refusal(op, context)
    have_layouts = [layout_of(fragment) is not None for fragment in fragments_of(op)]
    try:
        chosen.check(op, context)
        if all(have_layouts):
            chosen.check_layouts(op, context)
    except Decline:
        if chosen.fits_layouts is None and any(have_layouts):
            return False
        raise refusal(op, context) from None
    return True


def _slowness(
    op: TileOp, chosen: Lowering, context: LoweringContext, refused: Mapping[str, str]
) -> str | None:
    slow = chosen.slow(op) if chosen.slow is not None else None
    if slow is None:
        return None
    declined = declined_before(op, context, chosen, refused)
    reasons = "; ".join(dict.fromkeys(reason.splitlines()[0] for _, reason in declined))
    return f"{op.name}: {describe(op.writes()[0])} {slow}" + (f": {reasons}" if reasons else "")


def with_implementation(op: TileOp, context: LoweringContext) -> TileOp:
    """An operator whose operands have moved to another memory, with an implementation that fits."""
    if not op.is_tile or (op.impl is None and fragments_of(op)):
        return op  # the layouts of its fragments decide
    chosen = implementation_of(op, context.kind)
    try:
        if chosen is None:
            raise Decline("the choice is open")
        chosen.check(op, context)
    except Decline:
        op, message = _chosen(replace(op, impl=None), context, {})
        if message is not None:
            warn(message, context.location)
    return op


# What was chosen -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImplementationChoice:
    """The implementation of an operator of a kernel."""

    location: SourceLocation | None
    """The user's line."""
    operator: str
    """Name of the operator."""
    operand: str
    """The operand that it writes."""
    chosen: str
    """The variant."""
    declined: tuple[tuple[str, str], ...] = ()
    """The better variants that the target has, and why they do not fit."""

    def __str__(self) -> str:
        line = str(self.location) if self.location is not None else "?"
        head = f"{line}: {self.operator} of {self.operand}: {self.chosen}"
        return "\n".join([head, *(f"    not {v}: {reason}" for v, reason in self.declined)])


class Choices(tuple[ImplementationChoice, ...]):
    """The choices of a kernel in the order of its program; printed, a table."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The text that a notebook shows."""
        del cycle
        printer.text(str(self))


def choices_of(func: tirx.PrimFunc) -> Choices:
    """The implementations of a function's tile operators, and why nothing better is."""
    collector = _Collect(target_of(func))
    collector.rewrite(func.body)
    return Choices(dict.fromkeys(collector.found))


class _Collect(TileOperators):
    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.found: list[ImplementationChoice] = []

    def rewritten(self, op: TileOp, context: LoweringContext, node: tirx.Evaluate) -> tirx.Stmt:
        chosen = implementation_of(op, context.kind)
        written = op.writes()
        if chosen is not None and written:
            declined = declined_before(op, context, chosen, lacking=False)
            operand = buffer_of(written[0]).name
            choice = ImplementationChoice(
                context.location, op.name, operand, chosen.variant, tuple(declined)
            )
            self.found.append(choice)
        return node
