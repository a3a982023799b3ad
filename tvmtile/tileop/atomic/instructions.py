"""Atomic operations as instructions of a target, or loops around them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.codegen import cuda_atomics, metal_atomics
from tvmtile.codegen.cuda import function_call
from tvmtile.codegen.llvm_atomics import atomic_function, carrier_dtype
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
    name = cuda_atomics.vector_name_of(
        dtype, lanes, is_global=is_global, order=op.order, aligned=op.aligned
    )
    values = [_lane(op.value, lane) for lane in range(lanes)]
    return function_call("void", name, tirx.address_of(lane_of(op.dst, 0)), *values)


def _has_instruction(op: Atomic | AtomicLoad, context: LoweringContext) -> None:
    place = op.src if isinstance(op, AtomicLoad) else op.dst
    dtype, scope = str(buffer_of(place).ty.dtype), _scope_of(place)
    target = _TARGETS[context.kind]
    if not target.has_dtype(dtype):
        raise Decline(f"{target.name} has no atomic operations on {dtype}")
    if target.scopes is not None and scope not in target.scopes:
        raise Decline(f"{target.name} updates {target.memory} memory atomically, not {scope}")


@lowering(Atomic, target=("llvm", "metal", "cuda"), variant="instruction", fits=_has_instruction)
def atomic_instruction(op: Atomic, context: LoweringContext) -> Any:
    """An atomic instruction, or a loop around one, for each element.

    See `tvmtile.codegen.llvm_atomics`, `tvmtile.codegen.metal_atomics` and
    `tvmtile.codegen.cuda_atomics`.
    """
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
    kind: str, order: str, place: ir.TensorLoad, value: ir.Expr | None, context: LoweringContext
) -> ir.Expr:
    return _TARGETS[context.kind].call(kind, order, place, value, context)


def _llvm_call(
    kind: str, order: str, place: ir.TensorLoad, value: ir.Expr, context: LoweringContext
) -> ir.Expr:
    dtype = dtype_of(place)
    function, text = atomic_function(kind, dtype, order)
    context.imports.append(text)
    carrier = carrier_dtype(dtype)
    operands = [tirx.address_of(place)]
    if value is not None:
        operands.append(converted(value, carrier))
    return converted(tirx.call_extern(carrier, function, *operands), dtype)


def _cuda_call(
    kind: str, order: str, place: ir.TensorLoad, value: Any, _: LoweringContext
) -> ir.Expr:
    dtype = dtype_of(place)
    operands = [] if value is None else [value]
    name = cuda_atomics.name_of(kind, dtype, order)
    return function_call(dtype, name, tirx.address_of(place), *operands)


def _scope_of(place: ir.TensorLoad) -> str:
    return str(buffer_of(place).ty.storage_scope)


def _metal_call(
    kind: str, order: str, place: ir.TensorLoad, value: ir.Expr | None, _: LoweringContext
) -> ir.Expr:
    dtype, scope = dtype_of(place), _scope_of(place)
    function = metal_atomics.name_of(kind, dtype, metal_atomics.SPACES[scope], order)
    operands = [] if value is None else [value]
    return tirx.call_extern(dtype, function, tirx.address_of(place), *operands)


@dataclass(frozen=True)
class _Target:
    """What a kind of target updates atomically, and how.

    Attributes
    ----------
    name, memory : str
        It, and the memory that it does so in, as messages show them.
    call : callable
        `(kind, order, place, value, context) -> Expr`, one update or load.
    scopes : collection of str or None
        Those of the memory; None: all.
    has_dtype : callable
        `(dtype) -> bool`.
    """

    name: str
    call: Callable[[str, str, ir.TensorLoad, Any, LoweringContext], ir.Expr]
    memory: str = ""
    scopes: Collection[str] | None = None
    has_dtype: Callable[[str], bool] = lambda _: True


_TARGETS = {
    "llvm": _Target("a CPU", _llvm_call),
    "metal": _Target(
        "Metal",
        _metal_call,
        "device and threadgroup",
        metal_atomics.SPACES,
        metal_atomics.has_atomic,
    ),
    "cuda": _Target(
        "an NVIDIA GPU", _cuda_call, "global and shared", ("global", "shared", "shared.dyn")
    ),
}
