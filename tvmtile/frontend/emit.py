"""How a kernel that is being written gets an operator."""

from __future__ import annotations

from tvm import ir
from tvm.tirx.script import builder as T

from tvmtile._tvm import IRBuilder, ranges_of
from tvmtile.errors import NestingError
from tvmtile.frontend.kernel import kernel_of
from tvmtile.ir.operands import literal
from tvmtile.ir.operators import TileOp
from tvmtile.ir.spans import current_span


def require_program(name: str) -> None:
    """Raise an error outside of a program, where no statement can be written."""
    if not IRBuilder.is_in_scope():
        raise NestingError(
            f"T.{name} stands outside T.Kernel",
            help="move it into the body of `with T.Kernel(...) as ...:`",
        )


def emit(op: TileOp) -> None:
    """Check an operator that a kernel uses and add it to the program being written.

    One of tiles without elements does nothing and is left out.

    Raises
    ------
    NestingError
        Outside `T.Kernel`; a tile operator also inside `T.Parallel`.
    """
    call = checked_call(op)
    if not _is_of_nothing(op):
        T.evaluate(call)


def _is_of_nothing(op: TileOp) -> bool:
    """Tell whether an operator, which signals nobody, writes tiles and none of them has an element."""
    written = op.normalized().writes() if op.is_tile and op.releases() is None else []
    return bool(written) and all(
        any(literal(r.extent) == 0 for r in ranges_of(operand)) for operand in written
    )


def checked_call(op: TileOp) -> ir.Call:
    """The call of an operator that a kernel uses, checked as `emit` does.

    The call of an element operator with a result is an expression; it happens where, and as often
    as, that is evaluated.
    """
    outside = "tile operators are the work of a block: use them inside `with T.Kernel(...)`"
    function = (op.spelled or op.name).format_map(vars(op))
    kernel = kernel_of(f"T.{function}", outside)
    if kernel.parallel_depth and op.is_tile:
        raise NestingError(
            f"T.{function} stands inside T.Parallel",
            help="T.Parallel is for elements; a tile operator already works on the whole tile, so move "
            "it out of the loop, or make the loop T.serial",
        )
    op.check()
    return op.to_call(current_span())
