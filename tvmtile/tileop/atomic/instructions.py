"""Atomic operations as instructions of a target, or loops around them."""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.codegen import atomics
from tvmtile.codegen.cuda import function_call
from tvmtile.ir.operands import dtype_of
from tvmtile.ir.rewriting import nest, seq
from tvmtile.ir.types import Index
from tvmtile.tileop.atomic import (
    VECTORS,
    Atomic,
    AtomicLoad,
    AtomicTile,
    cast_like,
    lanes_of,
    names_tile,
)
from tvmtile.tileop.elementwise import (
    converted,
    element,
    matching_offsets,
    moving_axes,
    over_region,
)
from tvmtile.tileop.registry import Decline, LoweringContext, lowering
from tvmtile.tileop.vectors import lane_of


@lowering(AtomicTile, target=("llvm", "metal", "cuda"), variant="elements")
def atomic_tile_elements(op: AtomicTile, _: LoweringContext) -> tirx.Stmt:
    """An atomic update of each element; edges are guarded by InsertBoundsGuards."""

    def body(offsets: list[Index]) -> tirx.Stmt:
        target = tirx.BufferLoad(buffer_of(op.dst), element(op.dst, offsets))
        value = op.src
        if names_tile(value):
            source = element(value, matching_offsets(op.dst, value, offsets))
            value = cast_like(tirx.BufferLoad(buffer_of(value), source), target)
        return tirx.Evaluate(Atomic(target, value, op.kind, op.order).to_call())

    if moving_axes(op.dst):
        return over_region(op.dst, body)
    # One iteration is one thread's; a statement outside of loops would be every thread's.
    return nest([1], lambda _: body([0] * len(ranges_of(op.dst))))


def _updates_vectors(op: Atomic, context: LoweringContext) -> None:
    lanes, dtype = lanes_of(op.dst), dtype_of(op.dst)
    if lanes not in (2, 4) or op.kind != "add" or dtype not in VECTORS or not context.is_statement:
        raise Decline("single elements are updated, or there is no vector of them")


@lowering(Atomic, target="cuda", variant="vector", priority=10, fits=_updates_vectors)
def atomic_vector(op: Atomic, _: LoweringContext) -> ir.Expr:
    """Vector additions of two or four contiguous elements, whose former values nobody uses."""
    lanes, dtype = lanes_of(op.dst), dtype_of(op.dst)
    is_global = _scope_of(op.dst) == "global"
    name = atomics.vector_name_of(
        dtype, lanes, is_global=is_global, order=op.order, aligned=op.aligned
    )
    values = [_lane(op.value, lane) for lane in range(lanes)]
    return function_call("void", name, tirx.address_of(lane_of(op.dst, 0)), *values)


def _has_instruction(op: Atomic | AtomicLoad, context: LoweringContext) -> None:
    place = op.src if isinstance(op, AtomicLoad) else op.dst
    dtype, scope = str(buffer_of(place).ty.dtype), _scope_of(place)
    if context.kind == "metal" and not atomics.is_on_metal(dtype):
        raise Decline(f"Metal has no atomic operations on {dtype}")
    if context.kind in _UPDATES and scope not in atomics.SPACES:
        raise Decline(f"{_UPDATES[context.kind]} memory atomically, not {scope}")


_UPDATES = {
    "metal": "Metal updates device and threadgroup",
    "cuda": "an NVIDIA GPU updates global and shared",
}


@lowering(Atomic, target=("llvm", "metal", "cuda"), variant="instruction", fits=_has_instruction)
def atomic_instruction(op: Atomic, context: LoweringContext) -> Any:
    """An atomic instruction, or a loop around one, for each element: see `tvmtile.codegen.atomics`."""
    lanes = lanes_of(op.dst)
    if lanes == 1:
        return _call(op.kind, op.order, op.dst, op.value, context)
    results = []
    for lane in range(lanes):
        value = _lane(op.value, lane)
        results.append(_call(op.kind, op.order, lane_of(op.dst, lane), value, context))
    if context.is_statement:
        return seq([tirx.Evaluate(result) for result in results])
    return tirx.Shuffle(results, list(range(lanes)))


def _lane(vector: ir.Expr, lane: int) -> ir.Expr:
    """One lane of a vector; of one that is made of scalars, the scalar."""
    if isinstance(vector, tirx.Shuffle) and len(vector.vectors) == lanes_of(vector):
        number = vector.indices[lane]
        assert isinstance(number, tirx.IntImm)
        return vector.vectors[number.value]
    return tirx.Shuffle([vector], [lane])


@lowering(
    AtomicLoad, target=("llvm", "metal", "cuda"), variant="instruction", fits=_has_instruction
)
def atomic_load_instruction(op: AtomicLoad, context: LoweringContext) -> ir.Expr:
    """An atomic load."""
    return _call("load", op.order, op.src, None, context)


def _call(
    kind: str, order: str, place: ir.TensorLoad, value: Any, context: LoweringContext
) -> ir.Expr:
    """The call of the function that updates or loads an element."""
    dtype, operands = dtype_of(place), [] if value is None else [value]
    if context.kind == "cuda":
        name = atomics.name_of(kind, dtype, order)
        return function_call(dtype, name, tirx.address_of(place), *operands)
    if context.kind == "metal":
        name = atomics.name_of(kind, dtype, order, atomics.SPACES[_scope_of(place)])
        return tirx.call_extern(dtype, name, tirx.address_of(place), *operands)
    name, text = atomics.llvm_function(kind, dtype, order)
    context.imports.append(text)
    carrier = atomics.carrier_dtype(dtype)
    carried = [converted(operand, carrier) for operand in operands]
    return converted(tirx.call_extern(carrier, name, tirx.address_of(place), *carried), dtype)


def _scope_of(place: ir.TensorLoad) -> str:
    return str(buffer_of(place).ty.storage_scope)
