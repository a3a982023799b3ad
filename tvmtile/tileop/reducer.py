"""Reducers: totals that the iterations of T.Parallel contribute to, read once all have.

A reducer is a tile whose scope names how contributions are combined, `local.reducer.sum`. On a CPU it
is an array; on a GPU a fragment, or each thread has totals of its own until the reducer is finalized
(see `tvmtile.passes.tile.split_reducers`), and the operators name the way to combine themselves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, indices_of
from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import (
    InvalidOperand,
    InvalidValue,
    UnsupportedDtype,
)
from tvmtile.frontend.dtypes import DTypeLike, Shape, as_dtype
from tvmtile.frontend.emit import check_operand, emit
from tvmtile.frontend.kernel import Tile, allocate
from tvmtile.frontend.values import as_expr
from tvmtile.ir.combiners import COMBINERS, Combiner, has_bit_operations
from tvmtile.ir.operands import describe, dtype_of, matched_regions, static_shape
from tvmtile.ir.operators import TileOp, tile_operator
from tvmtile.ir.rewriting import seq
from tvmtile.ir.scopes import REDUCER_SCOPE
from tvmtile.ir.types import TileOperand, Value
from tvmtile.tileop.across_threads import all_reduce_over_block, per_thread
from tvmtile.tileop.elementwise import converted, element, moved, over_region
from tvmtile.tileop.registry import LoweringContext, lowering

_KINDS = ("sum", "max", "min", "bitand", "bitor", "bitxor")


def alloc_reducer(
    shape: Shape, dtype: DTypeLike, op: str = "sum", replication: str | None = None
) -> Tile:
    """Allocate totals for contributions from the iterations of T.Parallel.

    Parameters
    ----------
    shape : int or sequence of int
        Extents.
    dtype : dtype
        Of the totals; contributions are converted to it.
    op : {"sum", "max", "min", "bitand", "bitor", "bitxor"}
        How contributions are combined.
    replication : {"all", "none"}, optional
        Accepted with a warning.

    Returns
    -------
    buffer
        For `reducer_init`, `reducer_update` and `finalize_reducer`.

    Raises
    ------
    InvalidOperand
        If there is no such way to combine.
    UnsupportedDtype
        If bits of floats would be combined.

    Examples
    --------
    ```
    total = T.alloc_reducer((block_M,), "float32", op="sum")
    T.reducer_init(total)
    for i, j in T.Parallel(block_M, block_N):
        T.reducer_update(total[i], tile[i, j] * tile[i, j])
    T.finalize_reducer(total, result)
    ```
    """
    warn_ignored("T.alloc_reducer", replication=replication)
    if op not in _KINDS:
        raise InvalidOperand(
            f"alloc_reducer: there is no way to combine called {op!r}",
            help=f"the ways are {', '.join(_KINDS)}",
        )
    name = as_dtype(dtype)
    if COMBINERS[op].integers_only and not has_bit_operations(name):
        raise UnsupportedDtype(
            f"alloc_reducer: {name} has no bits to combine by {op}", help="use an integer dtype"
        )
    return allocate("T.alloc_fragment", shape, name, REDUCER_SCOPE + op)


def reducer_init(reducer: TileOperand, init: Value | None = None) -> None:
    """Begin: set the totals to what changes nothing, or to `init`.

    Parameters
    ----------
    reducer : buffer
        Of `alloc_reducer`.
    init : number or Expr, optional
        A contribution to every total, made once; an expression has the totals' dtype.

    Raises
    ------
    UnsupportedDtype
        If it has another.
    """
    combiner = _combiner_of("reducer_init", reducer)
    dtype = dtype_of(reducer)
    if init is None:
        start = combiner.identity(dtype)
    elif isinstance(init, bool | int | float):
        start = tirx.const(init, dtype)
    else:
        start = as_expr(init)
        if str(start.ty.dtype) != dtype:
            raise UnsupportedDtype(
                f"reducer_init: a value of {start.ty.dtype} does not match reducer {describe(reducer)}",
                help=f'convert it, T.cast(value, "{dtype}"), if that is meant',
            )
    emit(ReducerInit(reducer, start))


def reducer_update(target: Any, value: Value) -> None:
    """Contribute a value to one total; this may stand in T.Parallel.

    Parameters
    ----------
    target : element
        `total[i]`, of a buffer made by `alloc_reducer`.
    value : number or Expr
        Converted to the totals' dtype.
    """
    target = check_operand("reducer_update", "target", target)
    if not isinstance(target, ir.TensorLoad):
        raise InvalidOperand(
            f"reducer_update: {describe(target)} is not an element",
            help="name the total that the value contributes to, `total[i]`",
        )
    _combiner_of("reducer_update", target)
    emit(ReducerUpdate(target, converted(as_expr(value, target), dtype_of(target))))


def finalize_reducer(
    reducer: TileOperand,
    dst: TileOperand | None = None,
    batch: int = 1,
    annotations: Mapping[str, object] | None = None,
) -> None:
    """End: all contributions are made, and the totals may be read.

    Parameters
    ----------
    reducer : buffer
        Of `alloc_reducer`.
    dst : buffer or region, optional
        Of the same extents: where the totals go. Without it they stay in `reducer`, which is then an
        ordinary tile.
    batch : int
        How many totals are exchanged between two barriers, a divisor of their number. Accepted with a
        warning: the compiler decides it.
    annotations
        Accepted with a warning.

    Raises
    ------
    ShapeMismatch
        If `dst` has other extents.
    InvalidValue
        If `batch` is none.
    """
    _combiner_of("finalize_reducer", reducer)
    _check_batch(batch, reducer)
    given = None if batch == 1 else batch
    warn_ignored("T.finalize_reducer", batch=given, annotations=annotations)
    target = reducer if dst is None else check_operand("finalize_reducer", "dst", dst)
    emit(FinalizeReducer(reducer, target))


def _check_batch(batch: int, reducer: object) -> None:
    totals = math.prod(static_shape(buffer_of(reducer)))
    if batch < 1:
        problem = "batch must be >= 1"
    elif totals and batch > totals:
        problem = f"batch exceeds total output elements, {totals} of {describe(reducer)}"
    elif totals % batch:
        problem = f"batch must evenly divide the {totals} totals of {describe(reducer)}"
    else:
        return
    raise InvalidValue(
        f"finalize_reducer: {problem}, and is {batch}", help="leave it out: the compiler decides"
    )


def _combiner_of(name: str, operand: ir.Expr) -> Combiner:
    scope = str(buffer_of(check_operand(name, "reducer", operand)).ty.storage_scope)
    if not scope.startswith(REDUCER_SCOPE):
        raise InvalidOperand(
            f"{name}: {describe(operand)} is not a reducer", help="allocate it by T.alloc_reducer"
        )
    return COMBINERS[scope.removeprefix(REDUCER_SCOPE)]


@tile_operator
class ReducerInit(TileOp):
    """Set all totals of a reducer."""

    name = "reducer_init"
    outputs = ("dst",)
    role = "begin"

    dst: Any
    value: ir.Expr
    kind: str = ""


@tile_operator
class ReducerUpdate(TileOp):
    """Combine a value with one total; `dst` is a load that names it."""

    name = "reducer_update"
    inputs = ("dst",)
    outputs = ("dst",)
    role = "contribute"
    is_tile = False
    by = "block"

    dst: ir.TensorLoad
    value: ir.Expr
    kind: str = ""


@tile_operator
class FinalizeReducer(TileOp):
    """Put the totals of a reducer where they can be read."""

    name = "finalize_reducer"
    inputs = ("src",)
    outputs = ("dst",)
    role = "end"

    src: Any
    dst: Any
    kind: str = ""

    def check(self) -> None:
        matched_regions(self.name, self.src, self.dst, "give dst the reducer's shape")

    def as_loops(self) -> tirx.Stmt:
        return moved(self.src, self.dst)


@lowering(ReducerInit, target="llvm", variant="elements")
def reducer_init_elements(op: ReducerInit, _: LoweringContext) -> tirx.Stmt:
    """The only copy of the totals starts from the given value."""
    return over_region(
        op.dst,
        lambda offsets: tirx.BufferStore(buffer_of(op.dst), op.value, element(op.dst, offsets)),
    )


@lowering(ReducerUpdate, target=("llvm", "metal", "cuda"), variant="store")
def reducer_update_store(op: ReducerUpdate, _: LoweringContext) -> tirx.Stmt:
    """The update of a total: iterations of a CPU follow each other, a GPU's thread has its own."""
    combiner = COMBINERS[op.kind] if op.kind else _combiner_of(op.name, op.dst)
    return tirx.BufferStore(
        buffer_of(op.dst), combiner.combine(op.value, op.dst), indices_of(op.dst)
    )


@lowering(FinalizeReducer, target="llvm", variant="elements")
def finalize_reducer_elements(op: FinalizeReducer, _: LoweringContext) -> tirx.Stmt:
    """The totals are complete; they only may have to move."""
    return seq([]) if buffer_of(op.src).same_as(buffer_of(op.dst)) else op.as_loops()


@lowering(ReducerInit, target=("metal", "cuda"), variant="threads")
def reducer_init_threads(op: ReducerInit, context: LoweringContext) -> tirx.Stmt:
    """One thread's totals start from the given value, those of the others from nothing."""
    nothing = COMBINERS[op.kind].identity(dtype_of(op.dst))
    start = tirx.Select(context.thread_index == 0, op.value, nothing)

    def body(indices: list[ir.Var]) -> tirx.Stmt:
        return tirx.BufferStore(buffer_of(op.dst), start, indices)

    return per_thread(buffer_of(op.dst).ty.shape, body)


@lowering(FinalizeReducer, target=("metal", "cuda"), variant="threads")
def finalize_reducer_threads(op: FinalizeReducer, context: LoweringContext) -> tirx.Stmt:
    """Combine the totals of all threads; then each thread has them."""
    totals = buffer_of(op.src)
    return seq([all_reduce_over_block(totals, COMBINERS[op.kind], context), op.as_loops()])
