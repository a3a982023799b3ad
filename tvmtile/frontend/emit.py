"""How a kernel that is being written gets an operator."""

from __future__ import annotations

from tvm import ir
from tvm.tirx.script import builder as T

from tvmtile._tvm import IRBuilder
from tvmtile.errors import NestingError
from tvmtile.frontend.kernel import kernel_of
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

    Raises
    ------
    NestingError
        Outside `T.Kernel`; a tile operator also inside `T.Parallel`.
    """
    T.evaluate(checked_call(op))


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
