"""ExpandPrivateTiles: every thread does the operators on its own tiles by itself."""

from __future__ import annotations

from tvm import tirx
from tvm.target import Target

from tvmtile._tvm import Mutator, mutated
from tvmtile.ir.kernels import is_parallel
from tvmtile.ir.operands import constant
from tvmtile.ir.operators import operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import replace_loop
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.scopes import is_private
from tvmtile.ir.spans import location_of
from tvmtile.tileop.registry import LoweringContext, buffers_of, candidates_of

_MOST_TOGETHER = 64
"""Elements of a row that move as vectors."""


@prim_func_pass("ExpandPrivateTiles", requires=(Property.REGIONS,))
def ExpandPrivateTiles(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write operators on tiles of `T.alloc_local` and `T.alloc_var` out as loops of each thread.

    The threads of a block share the work on other tiles; here each has all of it. The loops are those
    that the operator is on a CPU where it is done element by element.
    """
    return func.with_body(_Expand().rewrite(func.body))


class _Expand(ScopedRewriter):
    def visit_evaluate(self, node: tirx.Evaluate) -> tirx.Stmt:
        op = operator_of(node)
        if op is None or not op.is_tile or not op.writes():
            return node
        if not any(map(is_private, buffers_of(op))):
            return node
        context = LoweringContext(Target("llvm"), self.analyzer, location_of(node.value))
        plainest = candidates_of(op, "llvm")[-1]
        return mutated(plainest.code(op, context), (tirx.For, _by_one_thread))


def _by_one_thread(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
    result = mutator.default_mutate(loop)
    if not is_parallel(loop):
        return result
    extent = constant(loop.extent)
    is_row = extent is not None and extent <= _MOST_TOGETHER
    moves = is_row and isinstance(loop.body, tirx.BufferStore)
    return replace_loop(result, kind=tirx.ForKind.VECTORIZED if moves else tirx.ForKind.SERIAL)
