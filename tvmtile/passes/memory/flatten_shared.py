"""FlattenShared: where the elements of shared tiles lie becomes arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, tirx

from tvmtile._tvm import Replacement, buffer_of, indices_of, is_buffer_var
from tvmtile.ir.kernels import with_kernels
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import retyped
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.scopes import is_shared
from tvmtile.layout.shared import contiguous_run, has_plain_rows, span


@prim_func_pass(
    "FlattenShared",
    requires=(Property.BARRIERS_INSERTED,),
    establishes=(Property.FLAT_TILES,),
)
def FlattenShared(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make tiles with a layout arrays of one axis, and their indices places in memory.

    It comes after the passes that ask which elements are accessed.
    """
    return with_kernels(func, lambda kernel: _Flattener().rewrite(kernel))


class _Flattener(ScopedRewriter):
    def __init__(self) -> None:
        super().__init__()
        self._flat: dict[int, tuple[ir.Var, ir.Var]] = {}  # by address

    def others(self) -> list[Replacement]:
        return [(ir.Var, self._array)]

    def _array(self, var: ir.Var) -> ir.Var:
        """The array that a tile becomes; anything else stays what it is."""
        if hash(var) not in self._flat:
            stays = not is_buffer_var(var) or not is_shared(var) or has_plain_rows(var)
            self._flat[hash(var)] = var, var if stays else retyped(var, shape=(span(var),))
        return self._flat[hash(var)][1]

    def visit_store(self, store: tirx.BufferStore) -> tirx.Stmt:
        array = self._array(buffer_of(store))
        if array.same_as(buffer_of(store)):
            return self.descend(store)
        indices = [self.mutate(index) for index in indices_of(store)]
        place = self._place(buffer_of(store), indices)
        return tirx.BufferStore(array, self.mutate(store.value), [place], span=store.span)

    def visit_load(self, load: ir.TensorLoad) -> ir.Expr:
        array = self._array(buffer_of(load))
        if array.same_as(buffer_of(load)):
            return self.descend(load)
        indices = [self.mutate(index) for index in indices_of(load)]
        return tirx.BufferLoad(array, [self._place(buffer_of(load), indices)], load.span)

    def _place(self, tile: ir.Var, indices: Sequence[ir.Expr]) -> ir.Expr:
        """The place of an element, or of the contiguous elements of a vector."""
        *outer, last = indices
        vector = last if isinstance(last, tirx.Ramp) else None
        first = last if vector is None else vector.base
        # Neighbours differ in what is added last, so that nvcc sees that they can be accessed at once.
        run = contiguous_run(tile) or 1
        within = self.analyzer.simplify(tirx.floormod(first, run))
        start = self.analyzer.simplify(tirx.floordiv(first, run) * run)
        place = tile.ty.layout.apply(*outer, start, shape=tile.ty.shape)["m"]
        place = self.analyzer.simplify(place) + within
        return place if vector is None else tirx.Ramp(place, vector.stride, vector.lanes)
