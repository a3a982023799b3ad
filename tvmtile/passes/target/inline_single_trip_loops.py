"""InlineSingleTripLoops: a loop of one iteration becomes its body, and one of none nothing."""

from __future__ import annotations

from tvm import tirx

from tvmtile.ir.kernels import leaves_loop, with_kernels
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import seq, substitute
from tvmtile.ir.scoped_rewriter import ScopedRewriter


@prim_func_pass("InlineSingleTripLoops", requires=(Property.NO_PARALLEL,))
def InlineSingleTripLoops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace serial loops of one iteration by their body, and leave out those of none.

    TVM unrolls a loop of one iteration, and its analyzer then knows two ranges of the variable, if the
    start of the loop is not constant; it takes that for a contradiction and fails. In a loop of none
    the variable has no value, and TVM divides by zero as it looks for what its values have in common.
    """
    return with_kernels(func, lambda kernel: _Runner().rewrite(kernel))


class _Runner(ScopedRewriter):
    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        is_plain = loop.kind in (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED)
        trips = constant(self.analyzer.simplify(loop.extent))
        if is_plain and trips is not None and trips <= 0:
            return seq([])
        if not is_plain or trips != 1 or leaves_loop(loop.body):
            return super().visit_for(loop)
        return self.mutate(substitute(loop.body, {loop.loop_var: loop.min}))
