"""LowerParallelOnCpu: nests become serial loops, which LLVM vectorises."""

from __future__ import annotations

import math

from tvm import tirx

from tvmtile.ir.kernels import is_parallel
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, replace_loop
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.passes.cpu.unknown_zeros import Zeros, with_unknown_zeros


@prim_func_pass(
    "LowerParallelOnCpu",
    requires=(Property.NO_TILE_OPERATORS,),
    establishes=(Property.NO_PARALLEL,),
)
def LowerParallelOnCpu(func: tirx.PrimFunc) -> tirx.PrimFunc:
    r"""Run the iterations of elementwise nests one after the other.

    LLVM vectorises such loops by itself; vector loops written by us were measured to be no faster. So
    a vector of the user's is an unrolled loop. The parallelism of a CPU is that of the blocks. A
    pipelined loop is a loop here.

    LLVM would unroll the outer loops of a large nest, a copy of 16 x 64 elements to a megabyte of code,
    so it is not told their extents. The innermost loop is the one that becomes vectors. But a short one
    with branches is unrolled before LLVM looks for vectors, and it then makes them of the loop around,
    whose elements are no neighbours, and takes seconds to compile. So it is not
    told that extent either.
    """
    return with_unknown_zeros(func, lambda body, zeros: _LowerNests(zeros).rewrite(body))


_UNROLLED = 128
"""Iterations of a nest that may all be unrolled."""
_SHORT = 32
"""Iterations of a loop that LLVM unrolls before it looks for vectors, or more."""


class _LowerNests(ScopedRewriter):
    def __init__(self, zeros: Zeros) -> None:
        super().__init__()
        self._zeros = zeros
        self._is_large = False  # the nest around, if there is one

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        if loop.kind == tirx.ForKind.PARALLEL:
            return self._visit_nest(loop)
        result = self.descend_loop(loop)
        if result.kind == tirx.ForKind.VECTORIZED:
            is_known = constant(result.extent) is not None
            kind = tirx.ForKind.UNROLLED if is_known else tirx.ForKind.SERIAL
            return replace_loop(result, kind=kind, annotations={})
        # What asked for a pipeline has done its work: ordinary TIR has no notes of ours.
        notes = {
            key: note for key, note in result.annotations.items() if not key.startswith("tvmtile.")
        }
        if len(notes) == len(result.annotations):
            return result
        return replace_loop(result, annotations=notes)

    def _visit_nest(self, loop: tirx.For) -> tirx.Stmt:
        outer, extent = self._is_large, loop.extent
        self._is_large = outer or _iterations(loop) > _UNROLLED
        if constant(extent) is not None and self._is_hidden(loop):
            extent = self._zeros.of(str(extent.ty.dtype)) + extent
        result = self.descend_loop(loop)
        self._is_large = outer
        return replace_loop(result, extent=extent, kind=tirx.ForKind.SERIAL, annotations={})

    def _is_hidden(self, loop: tirx.For) -> bool:
        """Tell whether LLVM is not to know an extent, which is constant."""
        count = _iterations(loop)
        if is_parallel(loop.body):
            return count > _UNROLLED
        return self._is_large and count <= _SHORT and contains(loop.body, tirx.IfThenElse)


def _iterations(stmt: tirx.Stmt) -> float:
    """The number of iterations of a nest; infinite where an extent is dynamic."""
    if not is_parallel(stmt):
        return 1
    extent = constant(stmt.extent)
    return math.inf if extent is None else extent * _iterations(stmt.body)
