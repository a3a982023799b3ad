"""The selection of an operator's implementation: those that fit, and why others do not."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

from tvmtile.errors import NoLowering, TileError, VerifyError
from tvmtile.ir.operands import describe
from tvmtile.ir.operators import TileOp
from tvmtile.layout.fragment import layout_of
from tvmtile.tileop.registry import (
    Decline,
    Lacking,
    Lowering,
    LoweringContext,
    candidates_of,
    fragments_of,
)


def select(
    op: TileOp, context: LoweringContext, refused: Mapping[str, str] | None = None
) -> Lowering | None:
    """The most specific implementation that fits an operator.

    Returns
    -------
    Lowering or None
        None where that depends on layouts that are not known yet.

    Raises
    ------
    NoLowering
        If every one declines; the message is the table of their reasons.
    """
    for candidate in candidates_of(op, context.kind):
        try:
            _check(candidate, op, context, refused)
            if candidate.fits_layouts is not None and not _has_layouts(op):
                return None
            candidate.check_layouts(op, context)
        except Decline:
            continue
        return candidate
    raise refusal(op, context, refused)


def _check(
    candidate: Lowering, op: TileOp, context: LoweringContext, refused: Mapping[str, str] | None
) -> None:
    if refused and candidate.variant in refused:
        raise Decline(refused[candidate.variant])
    candidate.check(op, context)


def _has_layouts(op: TileOp) -> bool:
    return all(layout_of(fragment) is not None for fragment in fragments_of(op))


def declined_before(
    op: TileOp,
    context: LoweringContext,
    chosen: Lowering | None = None,
    refused: Mapping[str, str] | None = None,
    *,
    lacking: bool = True,
) -> list[tuple[str, str]]:
    """The implementations that are more specific than the chosen one, and why they do not fit.

    Parameters
    ----------
    op : TileOp
        The operator.
    context : LoweringContext
        Where it stands.
    chosen : Lowering, optional
        Where absent, all are asked.
    refused : mapping of str to str, optional
        Variants that the kernel can't use, with the reasons.
    lacking : bool
        Name those too whose instructions the target has not.
    """
    reasons = []
    for candidate in candidates_of(op, context.kind):
        if candidate is chosen:
            break
        try:
            _check(candidate, op, context, refused)
            if _has_layouts(op):
                candidate.check_layouts(op, context)
        except Decline as decline:
            if lacking or not isinstance(decline, Lacking):
                reasons.append((candidate.variant, str(decline)))
        else:
            reasons.append((candidate.variant, "fits"))
    return reasons


def refusal(
    op: TileOp, context: LoweringContext, refused: Mapping[str, str] | None = None
) -> NoLowering:
    """The error that an operator has no implementation that fits, or not the one it asks for."""
    kind = context.kind
    reasons = declined_before(op, context, refused=refused)
    table = [f"  {variant}: {reason}" for variant, reason in reasons]
    operands = ", ".join(describe(operand) for operand in [*op.writes(), *op.reads()])
    if op.impl is None:
        message = f"{op.name}: no implementation for {kind}" + (operands and f" fits {operands}")
        remedy = "change what a reason names"
    else:
        message = (
            f"{op.name}: impl={op.impl!r} is no implementation for {kind} that fits {operands}"
        )
        remedy = "leave impl out, or give one that fits"
    return NoLowering(
        "\n".join([message, *table]),
        help=remedy if table else f"the target {kind!r} does not implement {op.name}",
        location=context.location,
    )


def emit(chosen: Lowering, op: TileOp, context: LoweringContext) -> Any:
    """The statement, or the expression, that implements an operator.

    Raises
    ------
    VerifyError
        If the implementation fails.
    """
    try:
        return chosen.code(op, context)
    except TileError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise VerifyError(
            f"{op.name}: the implementation {chosen.variant!r} failed: "
            f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})",
            help="this is a defect of tvmtile, not of the kernel: please report it",
            location=context.location,
        ) from error
