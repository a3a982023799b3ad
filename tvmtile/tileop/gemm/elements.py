"""`T.gemm` without a matrix unit: every element of the accumulator is a sum of products."""

from __future__ import annotations

from tvm import tirx

from tvmtile.errors import warn
from tvmtile.ir.operands import describe
from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.registry import Decline, LoweringContext, lowering

__all__ = ["gemm_elements"]


@lowering(Gemm, target="metal", variant="elements")
def gemm_elements(op: Gemm, context: LoweringContext) -> tirx.Stmt:
    """`C[i, j] += A[i, k] * B[k, j]`, the elements shared out over the threads."""
    if op.matrix_operands():
        raise Decline("the matrix unit has these dtypes, so that it should be used")
    return _as_loops(op, context, slow=op.has_matrix_dtypes())


@lowering(Gemm, target="cuda", variant="elements")
def gemm_elements_cuda(op: Gemm, context: LoweringContext) -> tirx.Stmt:
    """The same for what no instruction takes; a warning says why, where other extents would do."""
    return _as_loops(op, context, slow=bool(op.matrix_operands(context.target)))


def _as_loops(op: Gemm, context: LoweringContext, *, slow: bool) -> tirx.Stmt:
    if slow and op.has_related_dtypes():  # what differs was said when the call was written
        reasons = "; ".join(reason.splitlines()[0] for _, reason in context.declined)
        warn(
            f"gemm: {describe(op.C)} is computed element by element, which is slow: {reasons}",
            context.location,
        )
    return op.as_loops()
