"""Adding an operator to the kernel that is being written: its operands are checked."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import IRBuilder, buffer_of, is_buffer_var, ranges_of
from tvmtile.errors import InvalidOperand, NestingError
from tvmtile.frontend.kernel import current_kernel, kernel_of
from tvmtile.frontend.proxy import Unusable, raise_unusable
from tvmtile.frontend.tracer import current_tracer
from tvmtile.ir.operands import constant, describe, literal, region
from tvmtile.ir.operators import TileOp
from tvmtile.ir.spans import current_span


def check_operand(operator: str, name: str, value: object) -> Any:
    """Accept what can be an operand; a variable's value or a number is an error.

    Raises
    ------
    InvalidOperand
        If `value` is neither a buffer, a region nor an element, or is a region without elements.
    """
    if isinstance(value, ir.TensorRegion):
        known = _with_known_extents(value)
        _check_elements(operator, known)
        return known
    if isinstance(value, ir.TensorLoad) or is_buffer_var(value):
        return value
    if isinstance(value, Unusable):
        raise_unusable(value)
    raise InvalidOperand(
        f"{operator}: {name} is {_kind(value)}, not a tile",
        help="a tile is a buffer, a region `A[i0:i1, j0:j1]`, or an element `A[i, j]` at its origin",
    )


def _with_known_extents(operand: ir.TensorRegion) -> ir.TensorRegion:
    """Make extents constants that are so only by the values of names: `A[start:stop]`."""
    tracer = current_tracer()
    if tracer is None or all(constant(r.extent) is not None for r in ranges_of(operand)):
        return operand
    origin = [r.min for r in ranges_of(operand)]
    extents = [tracer.analyzer.simplify(r.extent) for r in ranges_of(operand)]
    known = [
        new if isinstance(new, tirx.IntImm) else r.extent
        for new, r in zip(extents, ranges_of(operand), strict=True)
    ]
    return region(buffer_of(operand), origin, known)


def _check_elements(operator: str, operand: ir.TensorRegion) -> None:
    """Refuse a region that lies in a buffer with elements and has none, in a kernel that may run."""
    kernel = current_kernel()
    if kernel is not None and any(constant(extent) == 0 for extent in kernel.block_extents):
        return
    for axis, (taken, whole) in enumerate(
        zip(ranges_of(operand), buffer_of(operand).ty.shape, strict=True)
    ):
        extent = constant(taken.extent)
        if extent is not None and extent <= 0 and constant(whole) != 0:
            raise InvalidOperand(
                f"{operator}: {describe(operand)} has no elements along axis {axis}",
                help=f"the axis has {whole} elements, and the slice ends before its first one",
            )


def _kind(value: object) -> str:
    if isinstance(value, ir.Expr):
        return f"the expression `{value}`"
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def require_program(name: str) -> None:
    """Raise an error outside of a program, where no statement can be written."""
    if not IRBuilder.is_in_scope():
        raise NestingError(
            f"T.{name} stands outside T.Kernel",
            help="move it into the body of `with T.Kernel(...) as ...:`",
        )


def emit(op: TileOp, function: str = "") -> None:
    """Check an operator that a kernel uses and add it to the program being written.

    One of tiles without elements does nothing and is left out. `function` is the user's name for it,
    where that is not the operator's.

    Raises
    ------
    NestingError
        Outside `T.Kernel`; a tile operator also inside `T.Parallel`.
    """
    call = checked_call(op, function)
    if not _is_of_nothing(op):
        T.evaluate(call)


def _is_of_nothing(op: TileOp) -> bool:
    """Tell whether an operator, which signals nobody, writes tiles and none of them has an element."""
    written = op.normalized().writes() if op.is_tile and op.effects().arrives_at is None else []
    return bool(written) and all(
        any(literal(r.extent) == 0 for r in ranges_of(operand)) for operand in written
    )


def checked_call(op: TileOp, function: str = "") -> ir.Call:
    """The call of an operator that a kernel uses, checked as `emit` does.

    The call of an element operator with a result is an expression; it happens where, and as often
    as, that is evaluated.
    """
    outside = "tile operators are the work of a block: use them inside `with T.Kernel(...)`"
    function = function or op.name
    kernel = kernel_of(f"T.{function}", outside)
    if kernel.parallel_depth and op.is_tile:
        raise NestingError(
            f"T.{function} stands inside T.Parallel",
            help="T.Parallel is for elements; a tile operator already works on the whole tile, so move "
            "it out of the loop, or make the loop T.serial",
        )
    op.check()
    return op.to_call(current_span())
