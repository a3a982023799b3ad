"""LowerThreadLocalTileOps: every thread does the operators on its own tiles by itself."""

from __future__ import annotations

from tvm import tirx
from tvm.target import Target

from tvmtile._tvm import Mutator, mutated
from tvmtile.analysis.kernel_info import info_of
from tvmtile.analysis.uniformity import VarianceOfGroups
from tvmtile.ir.kernels import is_kernel, is_parallel
from tvmtile.ir.operands import constant
from tvmtile.ir.operators import TileOp, operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import replace_loop
from tvmtile.ir.scopes import is_private
from tvmtile.ir.spans import location_of
from tvmtile.ir.threads import GroupRewriter
from tvmtile.tileop.registry import LoweringContext, buffers_of, candidates_of

_MOST_TOGETHER = 64
"""Elements of a row that move as vectors."""


@prim_func_pass("LowerThreadLocalTileOps", requires=(Property.REGIONS,))
def LowerThreadLocalTileOps(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write operators that each thread does for itself out as loops.

    These are the ones on tiles of `T.alloc_local` and `T.alloc_var`, and those whose operands depend on
    which thread of a group comes, as in `T.copy(A[tx, 0:4], s[tx, 0:4])`. The threads share the work of
    others; here each has all of it. The loops are those that the operator is on a CPU where it is done
    element by element.
    """
    return func.with_body(_Expand().rewrite(func.body))


class _Expand(GroupRewriter):
    def __init__(self) -> None:
        super().__init__()
        self._variance: VarianceOfGroups | None = None

    def enter_loop(self, loop: tirx.For) -> None:
        super().enter_loop(loop)
        if is_kernel(loop):
            info = info_of(loop)
            self._variance = VarianceOfGroups(info.launch) if info.names_threads else None

    def visit_evaluate(self, node: tirx.Evaluate) -> tirx.Stmt:
        op = operator_of(node)
        if op is None or not op.is_tile or not op.writes():
            return node
        if not any(map(is_private, buffers_of(op))) and not self._depends_on_thread(op, node):
            return node
        context = LoweringContext(Target("llvm"), self.analyzer, location_of(node.value))
        plainest = candidates_of(op, "llvm")[-1]
        return mutated(plainest.code(op, context), (tirx.For, _by_one_thread))

    def _depends_on_thread(self, op: TileOp, node: tirx.Evaluate) -> bool:
        if self._variance is None or self.group is None:
            return False
        if op.by == "thread" or op.role == "product":
            return False
        if not candidates_of(
            op, "llvm"
        ):  # an instruction of GPUs, which says what thread begins it
            return False
        return self._variance.between(self.group).depends(node.value)


def _by_one_thread(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
    result = mutator.default_mutate(loop)
    if not is_parallel(loop):
        return result
    extent = constant(loop.extent)
    is_row = extent is not None and extent <= _MOST_TOGETHER
    moves = is_row and isinstance(loop.body, tirx.BufferStore)
    return replace_loop(result, kind=tirx.ForKind.VECTORIZED if moves else tirx.ForKind.SERIAL)
