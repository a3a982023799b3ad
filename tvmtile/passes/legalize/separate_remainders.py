"""SeparateRemainders: indices keep the remainders and quotients that are written in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvmtile._tvm import Replacement, buffer_of, indices_of, nodes_in
from tvmtile.ir.kernels import with_body
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import reads_no_memory, substitute, variables_of
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.types import COMPARISONS, Binary

_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)
_BITWISE = (tirx.BitwiseAnd, tirx.BitwiseOr, tirx.BitwiseXor)


@prim_func_pass("SeparateRemainders")
def SeparateRemainders(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Hide indices in which a loop variable is divided with different offsets, or counted down.

    TVM's FlattenBuffer pads a loop variable for the offset of one division, and takes the padded one
    in the other divisions too: `A[i % 16, (i + 2) % 16]` becomes `A_1[(i + 2) % 16 * 17]`. A sign it
    takes out of a division, which rounds the other way: `A[(159 - i) // 32]` becomes
    `A_1[i // -32 + 4]`. It leaves an index alone that holds a bitwise operator of what a loop changes,
    and the code generators' compilers fold this one. Where a term is taken off again, `A[i - j + j]`,
    it divides by its factor of 0: such an index is simplified, and such a condition, which it looks
    into for what the indices may be.
    """
    return with_body(func, _Keeper().rewrite(func.body))


class _Keeper(ScopedRewriter):
    def __init__(self) -> None:
        super().__init__()
        self._loops: set[ir.Var] = set()
        self._values: dict[ir.Var, ir.Expr] = {}  # of names, which TVM writes out

    def others(self) -> list[Replacement]:
        return [(COMPARISONS, self.visit_comparison)]

    def visit_comparison(self, node: Binary) -> ir.Expr:
        """`i - j + j < n`, as a guard has it of an index."""
        result: Any = self.descend(node)
        if "int" not in str(result.a.ty.dtype):
            return result
        a, b = (substitute(side, self._values) for side in (result.a, result.b))
        if not _cancels(a - b):
            return result
        return self.analyzer.canonical_simplify(type(result)(a, b))

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        self._loops.add(loop.loop_var)
        return super().visit_for(loop)

    def visit_bind(self, bind: tirx.Bind) -> tirx.Stmt:
        result = self.descend_bind(bind)
        if ir.is_prim_expr(result.value) and reads_no_memory(result.value):
            self._values[result.var] = substitute(result.value, self._values)
        return result

    def visit_load(self, node: ir.TensorLoad) -> ir.Expr:
        load = self.descend(node)
        kept = self._kept(indices_of(load))
        return load if kept is None else tirx.BufferLoad(buffer_of(load), kept, load.span)

    def visit_store(self, node: tirx.BufferStore) -> tirx.Stmt:
        store = self.descend(node)
        kept = self._kept(indices_of(store))
        if kept is None:
            return store
        return tirx.BufferStore(buffer_of(store), store.value, kept, span=store.span)

    def _kept(self, indices: Sequence[ir.Expr]) -> list[Any] | None:
        """The indices simplified where terms cancel, and one of them hidden; None as they are."""
        inlined = [substitute(index, self._values) for index in indices]
        if all(map(_is_plain, inlined)):
            return None
        kept = None
        if any(map(_cancels, inlined)):
            kept = indices = inlined = [
                self.analyzer.canonical_simplify(index) for index in inlined
            ]
        divisions = _divisions(inlined)
        if not self._differ(divisions) and not (
            any(self._counts_down(division.a) for division in divisions)
            and not self._is_left_alone(indices)
        ):
            return kept
        # What no loop changes TVM takes for a constant, hidden or not, and so a name that it
        # does not write out, such as one of a value with a cast.
        chosen = self._dividing(indices)[:1] or self._dividing(inlined)
        return [_hidden(index) if n in chosen else index for n, index in enumerate(indices)]

    def _dividing(self, indices: Sequence[ir.Expr]) -> list[int]:
        """Which of the indices divide what loops change."""
        return [n for n, index in enumerate(indices) if any(map(self._varies, _divisions(index)))]

    def _is_left_alone(self, indices: Sequence[ir.Expr]) -> bool:
        """Tell whether a bitwise operator is there already, of what loops change."""
        return any(map(self._varies, nodes_in(indices, _BITWISE)))

    def _varies(self, node: Any) -> bool:
        """Tell whether loops change it."""
        return bool(self._changing(node))

    def _changing(self, node: Any) -> set[ir.Var]:
        """The loop variables in it, without those of one value only, as `k` under `if k < 1`.

        TVM takes these for constants.
        """
        known = {
            var: self.analyzer.const_int_bound(var) for var in self._loops & {*variables_of(node)}
        }
        return {var for var, bound in known.items() if bound.min_value < bound.max_value}

    def _differ(self, divisions: list[Any]) -> bool:
        """Tell whether two divisions share a loop variable, and one has an offset of its own."""
        return any(
            not tvm_ffi.structural_equal(a.a, b.a) and self._changing(a.a) & self._changing(b.a)
            for a in filter(self._has_offset, divisions)
            for b in divisions
        )

    def _counts_down(self, value: ir.Expr) -> bool:
        """Tell whether a term that loops change is subtracted, or multiplied by less than zero."""
        return any(factor < 0 and self._varies(term) for term, factor in _multiples(value))

    def _has_offset(self, division: Binary) -> bool:
        """Tell whether the dividend is a sum, and a term that no loop changes leaves a remainder."""
        return any(
            not self._varies(term)
            and not self.analyzer.can_prove_equal(tirx.floormod(term, division.b), 0)
            for term in _terms(division.a)
        )


def _is_plain(index: Any) -> bool:
    """Tell whether an index is made of sums and products of names and of numbers from 0 on."""
    kind = type(index)
    if kind is tirx.Add or kind is tirx.Mul:
        return _is_plain(index.a) and _is_plain(index.b)
    if kind is tirx.IntImm:
        return bool(index.value >= 0)
    return kind is ir.Var


def _cancels(index: ir.Expr) -> bool:
    """Tell whether a sum in an index adds what it subtracts."""
    sums = [index, *(division.a for division in _divisions(index))]
    return any(_has_zero(list(_multiples(value))) for value in sums)


def _has_zero(multiples: list[tuple[ir.Expr, int]]) -> bool:
    return any(
        sum(count for other, count in multiples if tvm_ffi.structural_equal(term, other)) == 0
        for term, own in multiples
        if own < 0
    )


def _multiples(value: ir.Expr, factor: int = 1) -> Iterator[tuple[ir.Expr, int]]:
    """The terms of a sum that are no constants, each with how often it counts."""
    if isinstance(value, tirx.Add | tirx.Sub):
        yield from _multiples(value.a, factor)
        yield from _multiples(value.b, -factor if isinstance(value, tirx.Sub) else factor)
        return
    if isinstance(value, tirx.Mul):
        for count, rest in ((constant(value.a), value.b), (constant(value.b), value.a)):
            if count is not None:
                yield from _multiples(rest, factor * count)
                return
    if constant(value) is None:
        yield value, factor


def _divisions(node: Any) -> list[Any]:
    return nodes_in(node, _DIVISIONS)


def _terms(value: ir.Expr) -> Iterator[Any]:
    if not isinstance(value, tirx.Add | tirx.Sub):
        yield value
        return
    yield from _terms(value.a)
    yield from _terms(value.b)


def _hidden(index: ir.Expr) -> ir.Expr:
    if isinstance(index, tirx.Ramp):
        return tirx.Ramp(_hidden(index.base), index.stride, index.lanes)
    return tirx.bitwise_or(index, tirx.const(0, str(index.ty.dtype)))
