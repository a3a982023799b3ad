"""VectorizeParallel: elementwise loops become vector loops of the CPU."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvmtile.passes.kernels import prim_func_pass
from tvmtile.rewriting import ScopedRewriter, with_children

__all__ = ["VectorizeParallel"]


@prim_func_pass("VectorizeParallel")
def VectorizeParallel(func: tirx.PrimFunc, context: Any) -> tirx.PrimFunc:
    """Turn the loops of elementwise nests into serial ones."""
    del context
    return func.with_body(_Vectorize().rewrite(func.body))


class _Vectorize(ScopedRewriter):
    def visit_for(self, loop: tirx.For) -> Any:
        result = super().visit_for(loop)
        if result.kind == tirx.ForKind.PARALLEL:
            return with_children(result, kind=tirx.ForKind.SERIAL, annotations={})
        return result
