"""HoistGatherIndices: indices of asynchronous copies stay in registers over a loop."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, mapped, mutated, nodes_in
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.effects import effects_of
from tvmtile.ir.asynchronous import CP_ASYNC, issued, kind_of
from tvmtile.ir.calls import op_name
from tvmtile.ir.kernels import flattened, with_kernels
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import defined_in, replace_loop, seq, variables_of, with_fresh_variables
from tvmtile.ir.scopes import is_shared
from tvmtile.ir.threads import group_of_region

_MOST_HELD = 16
"""Registers of a thread for the indices of a loop."""
_Index = tuple[ir.TensorLoad, tuple[tirx.For, ...]]
"""The load of an index, and the unrolled loops around it."""


@prim_func_pass("HoistGatherIndices", requires=(Property.NO_PARALLEL,))
def HoistGatherIndices(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Load the indices by which a loop copies from shared memory once, in front of the loop.

    The instructions of asynchronous copies are barriers to the compiler of CUDA: it loads an index from
    shared memory for each of them, and computes the address behind it, one copy after the other
    (`benchmarks/h200/decisions.md`).

    An index is held if its place depends on nothing that the loop changes, no condition stands before
    the copy, and only the threads of the loop write the tile of indices, outside of the loop.
    """
    return with_kernels(func, _with_indices_held)


def _with_indices_held(kernel: tirx.For) -> tirx.For:
    regions: list[Any] = [kernel]
    root = Aliases(kernel).root

    def times_written(stmt: tirx.Stmt) -> Counter[ir.Var]:
        """The number of times that a statement writes each buffer, by whichever of its names."""
        return Counter(root(access.buffer) for access in effects_of(stmt) if access.writes)

    def is_fixed(index: _Index, changing: set[ir.Var]) -> bool:
        load, around = index
        own = {each.loop_var for each in around}
        return (changing - own).isdisjoint(map(root, variables_of(load)))

    def region(node: tirx.AttrStmt, mutator: Mutator) -> tirx.Stmt:
        if group_of_region(node) is None:
            return mutator.default_mutate(node)
        regions.append(node)
        try:
            return mutator.default_mutate(node)
        finally:
            regions.pop()

    def visit(loop: tirx.For, mutator: Mutator) -> tirx.Stmt:
        if loop.kind != tirx.ForKind.SERIAL or loop.thread_binding is not None:
            return mutator.default_mutate(loop)
        inner = mutator.default_mutate(loop)
        indices = [(i, around) for c, around in _copies_in(inner.body, ()) for i in _indices_of(c)]
        if not indices:
            return inner
        others = times_written(kernel) - times_written(regions[-1])
        changing = {*others, *times_written(inner), *defined_in(inner)}
        return _held(inner, [each for each in indices if is_fixed(each, changing)])

    return mutated(kernel, (tirx.AttrStmt, region), (tirx.For, visit))


def _held(loop: tirx.For, indices: list[_Index]) -> tirx.Stmt:
    """A loop, behind the loads of indices that it does not change."""
    held: dict[Any, ir.TensorLoad] = {}
    before: list[tirx.Stmt] = []
    left = _MOST_HELD
    for load, around in indices:
        key = tvm_ffi.StructuralKey(load)
        count = math.prod(constant(each.extent) or left + 1 for each in around)
        if key in held or count > left:
            continue
        left -= count
        held[key], loads = _registers_for(load, around)
        before += loads
    if not held:
        return loop

    def replaced(load: ir.TensorLoad) -> ir.Expr:
        return held.get(tvm_ffi.StructuralKey(load), load)

    return seq([*before, mapped(loop, (ir.TensorLoad, replaced))])


def _copies_in(
    stmt: tirx.Stmt, around: tuple[tirx.For, ...]
) -> Iterator[tuple[ir.Call, tuple[tirx.For, ...]]]:
    """The copies that each iteration begins, with the unrolled loops around them."""
    for child in flattened(stmt):
        if isinstance(child, tirx.For) and child.kind == tirx.ForKind.UNROLLED:
            yield from _copies_in(child.body, (*around, child))
        elif isinstance(child, tirx.Evaluate) and isinstance(child.value, ir.Call):
            work = issued(child.value)
            if work is not None and work.operands and kind_of(work.token) is CP_ASYNC:
                yield child.value, around


def _indices_of(copy: ir.Call) -> list[ir.TensorLoad]:
    """The loads from shared memory by which a copy knows from where it copies."""
    addressed = [call.args[0] for call in nodes_in(copy, ir.Call) if op_name(call) == _ADDRESS]
    return [
        load
        for load in nodes_in(copy, ir.TensorLoad)
        if is_shared(buffer_of(load)) and not any(map(load.same_as, addressed))
    ]


_ADDRESS = "tirx.address_of"


def _registers_for(
    load: ir.TensorLoad, around: tuple[tirx.For, ...]
) -> tuple[ir.TensorLoad, list[tirx.Stmt]]:
    """The load from registers that replaces a load, and the statements that fill them."""
    shape = [each.extent for each in around] or [tirx.const(1, "int32")]
    name, dtype = f"{buffer_of(load).name}_held", str(buffer_of(load).ty.dtype)
    registers = tirx.decl_buffer(shape, dtype, name=name, scope="local")
    place: list[ir.Expr] = [each.loop_var - each.min for each in around] or [tirx.const(0, "int32")]
    body: tirx.Stmt = tirx.BufferStore(registers, load, place)
    for each in reversed(around):
        body = replace_loop(each, body=body)
    return tirx.BufferLoad(registers, place), [
        tirx.AllocBuffer(registers),
        with_fresh_variables(body),
    ]
