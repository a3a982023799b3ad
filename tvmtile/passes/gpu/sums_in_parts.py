"""The sums that threads can keep in parts, and put together behind a loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, indices_of, mutated, nodes_in
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.nests import Nest
from tvmtile.ir.combiners import accumulator_dtype
from tvmtile.ir.kernels import is_parallel
from tvmtile.ir.operands import constant, dtype_of, is_whole
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import mentions
from tvmtile.ir.scopes import FRAGMENT_SCOPE, is_fragment
from tvmtile.layout.fragment import FragmentLayout, compact_registers, layout_of

_SUMS = ("sum", "abssum")


@dataclass(frozen=True)
class SumGroup:
    """Buffers whose elements are sums over the same axis of the same layout."""

    dim: int
    """The axis."""
    parts: dict[ir.Var, ir.Var]
    """For each of the buffers, the one with an element for each thread along the axis."""

    def mentioned_in(self, stmt: tirx.Stmt) -> bool:
        """Tell whether a statement uses one of the buffers."""
        return any(mentions(stmt, buffer) for buffer in self.parts)


def next_group(kernel: tirx.For, tried: set[ir.Var]) -> SumGroup | None:
    """The buffers around a sum that was not looked at yet."""
    aliased = Aliases(kernel).aliased
    for op in sums_in(kernel):
        result = buffer_of(op.dst)
        if result in tried:
            continue
        tried.add(result)
        layout = layout_of_parts(op)
        if layout is None or result in aliased:
            continue
        found = [result]
        for total in _accumulators(kernel, result):
            is_alike = layout_of(total) == layout_of(result) and dtype_of(total) == dtype_of(result)
            if is_alike and total not in aliased:
                found.append(total)
        tried.update(found)
        return SumGroup(op.dim, {buffer: _part_of(buffer, layout) for buffer in found})
    return None


def sums_in(stmt: tirx.Stmt) -> list[Any]:
    """The reductions in a statement that are sums."""
    return [op for op in map(sum_of, nodes_in(stmt, tirx.Evaluate)) if op is not None]


def sum_of(stmt: tirx.Stmt) -> Any:
    """The reduction that a statement is, if it is a sum."""
    op: Any = operator_of(stmt)
    return op if op is not None and op.role == "reduction" and op.kind in _SUMS else None


def layout_of_parts(op: Any) -> FragmentLayout | None:
    """The layout of the parts of sums; None where they stay as they are."""
    source, result = buffer_of(op.src), buffer_of(op.dst)
    if not (is_fragment(source) and is_fragment(result) and is_whole(op.src) and is_whole(op.dst)):
        return None
    layout = layout_of(source)
    if layout is None or layout.shape != tuple(constant(e) for e in source.ty.shape):
        return None
    if dtype_of(op.dst) != accumulator_dtype(dtype_of(op.src), dtype_of(op.dst)):
        return None
    if layout_of(result) != layout.without_axis(op.dim):
        return None
    threads = tuple(digit for digit in layout.axes[op.dim] if digit.is_thread)
    if not threads:
        return None
    axes = (*layout.axes[: op.dim], threads, *layout.axes[op.dim + 1 :])
    return compact_registers(replace(layout, axes=axes))


def _part_of(buffer: ir.Var, layout: FragmentLayout) -> ir.Var:
    return tirx.decl_buffer(
        layout.shape,
        dtype_of(buffer),
        name=f"{buffer.name}_part",
        scope=FRAGMENT_SCOPE,
        layout=layout.to_tvm(),
    )


def _accumulators(kernel: tirx.For, result: ir.Var) -> list[ir.Var]:
    """The fragments that nests add a sum to."""
    found: dict[ir.Var, None] = {}

    def note(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        store = store_of(loop)
        if store is None:
            return loop if is_parallel(loop) else mutator.default_mutate(loop)
        total = buffer_of(store)
        if is_fragment(total) and all(mentions(store.value, each) for each in (total, result)):
            found[total] = None
        return loop

    mutated(kernel, (tirx.For, note))
    return [total for total in found if not total.same_as(result)]


def store_of(loop: tirx.For) -> tirx.BufferStore | None:
    """The only statement of a nest, if it stores one element an iteration, in order."""
    nest_ = Nest(loop) if is_parallel(loop) else None
    if nest_ is None or not isinstance(nest_.body, tirx.BufferStore):
        return None
    store = nest_.body
    shape = [constant(extent) for extent in buffer_of(store).ty.shape]
    at_zero = all(constant(each.min) == 0 for each in nest_.loops)
    if not at_zero or nest_.extents != shape or len(indices_of(store)) != len(shape):
        return None
    pairs = zip(indices_of(store), nest_.variables, strict=True)
    return store if all(index.same_as(variable) for index, variable in pairs) else None
