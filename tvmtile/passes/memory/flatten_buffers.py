"""FlattenBuffers: an element's indices become its number in memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from tvm import ir, tirx

from tvmtile._tvm import Replacement, buffer_of, indices_of, is_buffer_var
from tvmtile.ir.extents import count_of, is_large, widened
from tvmtile.ir.kernels import with_body
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import retyped, seq
from tvmtile.ir.scoped_rewriter import ScopedRewriter


@prim_func_pass("FlattenBuffers", everywhere=True)
def FlattenBuffers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make all buffers arrays of one axis; parameters are viewed as such.

    Elements are numbered in 64 bits where an int32 may not hold their numbers. TVM's passes for this
    number them in the dtype of their indices, wherever the sum fits there or not; they find wrong
    remainders where an index has several divisions of one variable; and they compute in 32 bits what
    fits in them, also what is shifted by more, or whose bits are taken.
    """
    rewriter = _BufferFlattener(func)
    body = rewriter.rewrite(func.body)
    views = [
        tirx.DeclBuffer(rewriter.array_of(param), data=param.data)
        for param in func.params
        if rewriter.has_flattened(param)
    ]
    return with_body(func, seq([*views, body]))


class Flattener(ScopedRewriter):
    """Makes arrays of one axis of buffers, and of indices the places of elements in them."""

    def array_of(self, buffer: ir.Var) -> ir.Var:
        """The array that a buffer becomes; the buffer itself, if it stays."""
        raise NotImplementedError

    def place_of(self, buffer: ir.Var, indices: Sequence[ir.Expr]) -> ir.Expr:
        """The place of an element, or of the elements of a vector, by indices that are rewritten."""
        raise NotImplementedError

    def visit_store(self, store: tirx.BufferStore) -> tirx.Stmt:
        array = self.array_of(buffer_of(store))
        if array.same_as(buffer_of(store)):
            return self.descend(store)
        place = self._place(store)
        return tirx.BufferStore(array, self.mutate(store.value), [place], span=store.span)

    def visit_load(self, load: ir.TensorLoad) -> ir.Expr:
        array = self.array_of(buffer_of(load))
        if array.same_as(buffer_of(load)):
            return self.descend(load)
        return tirx.BufferLoad(array, [self._place(load)], load.span)

    def _place(self, access: ir.TensorLoad | tirx.BufferStore) -> ir.Expr:
        indices = [self.mutate(index) for index in indices_of(access)]
        return self.place_of(buffer_of(access), indices)


class _BufferFlattener(Flattener):
    def __init__(self, func: tirx.PrimFunc) -> None:
        super().__init__()
        self._params = set(func.params)
        # By address: variables are slow to compare.
        self._flat: dict[int, tuple[ir.Var, ir.Var]] = {}
        self._strides: dict[int, list[ir.Expr]] = {}

    def others(self) -> list[Replacement]:
        return [(ir.Var, self._named)]

    def _named(self, var: ir.Var) -> ir.Var:
        """A variable where it is declared, or its address is taken."""
        return var if var in self._params or not is_buffer_var(var) else self.array_of(var)

    def array_of(self, buffer: ir.Var) -> ir.Var:
        if hash(buffer) not in self._flat:
            shape, strides = buffer.ty.shape, buffer.ty.strides
            extents = [shape[0], strides[0]] if strides else shape or [_ONE]
            size = self.analyzer.simplify(count_of(extents))
            self._flat[hash(buffer)] = buffer, retyped(buffer, shape=(size,), layout=None)
        return self._flat[hash(buffer)][1]

    def has_flattened(self, param: ir.Var) -> bool:
        """Tell whether a parameter has been accessed."""
        return hash(param) in self._flat

    def place_of(self, buffer: ir.Var, indices: Sequence[ir.Expr]) -> ir.Expr:
        """The number of an element, or of each one of a vector."""
        places = list(indices) or [_ZERO]
        if is_large(buffer):
            places = [widened(place) for place in places]
        strides = self._strides_of(buffer)
        if len(places) == 1 and strides[0].same_as(_ONE):
            return places[0]
        *outer, last = places
        vector = last if isinstance(last, tirx.Ramp) else None
        firsts = [*outer, last if vector is None else vector.base]
        first = sum((place * n for place, n in zip(firsts, strides, strict=True)), _ZERO)
        first = self.analyzer.simplify(first)
        if vector is None:
            return first
        step = self.analyzer.simplify(tirx.Cast(first.ty.dtype, vector.stride * strides[-1]))
        return tirx.Ramp(first, step, vector.lanes)

    def _strides_of(self, buffer: ir.Var) -> list[ir.Expr]:
        if hash(buffer) not in self._strides:
            extents, strides = list(buffer.ty.shape[1:]), list(buffer.ty.strides)
            if is_large(buffer):
                extents, strides = [*map(widened, extents)], [*map(widened, strides)]
            inner = accumulate(reversed(extents), mul, initial=_ONE)
            self._strides[hash(buffer)] = strides or [*inner][::-1]
        return self._strides[hash(buffer)]


_ZERO, _ONE = tirx.const(0, "int32"), tirx.const(1, "int32")
