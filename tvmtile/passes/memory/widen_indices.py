"""WidenIndices: elements of large tensors are numbered in 64 bits."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile.ir.index_width import is_large, widened
from tvmtile.ir.kernels import with_body
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.scopes import is_global


@prim_func_pass("WidenIndices")
def WidenIndices(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Compute in 64 bits where an element of a tensor lies, if 31 bits may not hold it.

    That is so where a tensor has more than 2^31 elements, or may have: a product with a dynamic
    extent. An index along an axis fits into the axis's dtype; what wraps is the sum of the indices,
    each times the elements before it. TVM computes that sum in the dtype of the indices. All other
    tensors, and all tiles, keep theirs.
    """
    return with_body(func, _Widen().rewrite(func.body))


class _Widen(ScopedRewriter):
    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, bool] = {}  # by address

    def visit_load(self, node: ir.TensorLoad) -> ir.Expr:
        load = self.descend(node)
        if not self._is_large(load.source):
            return load
        return tirx.BufferLoad(load.source, [widened(index) for index in load.indices], load.span)

    def visit_store(self, node: tirx.BufferStore) -> tirx.Stmt:
        store = self.descend(node)
        if not self._is_large(store.buffer):
            return store
        indices = [widened(index) for index in store.indices]
        return tirx.BufferStore(store.buffer, store.value, indices, span=store.span)

    def _is_large(self, buffer: ir.Var) -> bool:
        if hash(buffer) not in self._known:
            self._known[hash(buffer)] = is_global(buffer) and is_large(buffer)
        return self._known[hash(buffer)]
