"""Reducers: totals that the iterations of T.Parallel contribute to, read once all have.

A reducer is a tile whose scope names how contributions are combined, `local.reducer.sum`. On a CPU it
is an array; on a GPU each thread may have totals of its own until the reducer is finalized.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import ir, tirx

from tvmtile.errors import InvalidOperand, ShapeMismatch, UnsupportedDtype
from tvmtile.rewriting import seq
from tvmtile.tileop.combine import COMBINERS, Combiner, is_integer
from tvmtile.tileop.elementwise import converted, element, matching_offsets, over_region
from tvmtile.tileop.operands import (
    as_region,
    buffer_of,
    check_operand,
    describe,
    dtype_of,
    match_extents,
)
from tvmtile.tileop.registry import LoweringContext, TileOp, emit, lowering, tile_operator

__all__ = [
    "FinalizeReducer",
    "ReducerInit",
    "ReducerUpdate",
    "alloc_reducer",
    "finalize_reducer",
    "reducer_init",
    "reducer_update",
]

_SCOPE = "local.reducer."
_KINDS = ("sum", "max", "min", "bitand", "bitor", "bitxor")


def alloc_reducer(
    shape: Any, dtype: Any, op: str = "sum", replication: str | None = None
) -> ir.Var:
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
        Accepted for TileLang's kernels.

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
    from tvmtile.language.allocate import alloc_fragment
    from tvmtile.language.dtypes import as_dtype

    del replication
    if op not in _KINDS:
        raise InvalidOperand(
            f"alloc_reducer: there is no way to combine called {op!r}",
            help=f"the ways are {', '.join(_KINDS)}",
        )
    name = as_dtype(dtype)
    if COMBINERS[op].integers_only and not is_integer(name):
        raise UnsupportedDtype(
            f"alloc_reducer: {name} has no bits to combine by {op}", help="use an integer dtype"
        )
    return alloc_fragment(shape, name, scope=_SCOPE + op)


def reducer_init(reducer: Any, init: Any = None) -> None:
    """Begin: set the totals to what changes nothing, or to `init`.

    Parameters
    ----------
    reducer : buffer
        Of `alloc_reducer`.
    init : number or Expr, optional
        A contribution to every total, made once.
    """
    from tvmtile.language.math import as_expr

    combiner = _combiner_of("reducer_init", reducer)
    dtype = dtype_of(reducer)
    if init is None:
        start = combiner.identity(dtype)
    elif isinstance(init, bool | int | float):
        start = tirx.const(init, dtype)
    else:
        start = converted(as_expr(init), dtype)
    emit(ReducerInit(reducer, start))


def reducer_update(target: Any, value: Any) -> None:
    """Contribute a value to one total; this may stand in T.Parallel.

    Parameters
    ----------
    target : element
        `total[i]`, of a buffer made by `alloc_reducer`.
    value : number or Expr
        Converted to the totals' dtype.
    """
    from tvmtile.language.math import as_expr

    target = check_operand("reducer_update", "target", target)
    if not isinstance(target, ir.TensorLoad):
        raise InvalidOperand(
            f"reducer_update: {describe(target)} is not an element",
            help="name the total that the value contributes to, `total[i]`",
        )
    _combiner_of("reducer_update", target)
    emit(ReducerUpdate(target, converted(as_expr(value, target), dtype_of(target))))


def finalize_reducer(
    reducer: Any,
    dst: Any = None,
    batch: int = 1,
    annotations: dict[str, Any] | None = None,
) -> None:
    """End: all contributions are made, and the totals may be read.

    Parameters
    ----------
    reducer : buffer
        Of `alloc_reducer`.
    dst : buffer or region, optional
        Of the same extents: where the totals go. Without it they stay in `reducer`, which is then an
        ordinary tile.
    batch, annotations
        Accepted for TileLang's kernels.

    Raises
    ------
    ShapeMismatch
        If `dst` has other extents.
    """
    del annotations
    if batch < 1:
        raise InvalidOperand(
            f"finalize_reducer: batch={batch!r}", help="batch is a positive integer"
        )
    _combiner_of("finalize_reducer", reducer)
    target = reducer if dst is None else check_operand("finalize_reducer", "dst", dst)
    emit(FinalizeReducer(reducer, target))


def _combiner_of(name: str, operand: Any) -> Combiner:
    scope = str(buffer_of(check_operand(name, "reducer", operand)).ty.storage_scope)
    if not scope.startswith(_SCOPE):
        raise InvalidOperand(
            f"{name}: {describe(operand)} is not a reducer", help="allocate it by T.alloc_reducer"
        )
    return COMBINERS[scope.removeprefix(_SCOPE)]


@tile_operator
@dataclass(frozen=True, eq=False)
class ReducerInit(TileOp):
    """Set all totals of a reducer."""

    name = "reducer_init"

    dst: Any
    value: Any

    def reads(self) -> list[Any]:
        return []

    def writes(self) -> list[Any]:
        return [self.dst]

    def normalized(self) -> ReducerInit:
        return ReducerInit(as_region(self.dst), self.value)


@tile_operator
@dataclass(frozen=True, eq=False)
class ReducerUpdate(TileOp):
    """Combine a value with one total; `dst` is a load that names it."""

    name = "reducer_update"
    is_tile = False
    once = True

    dst: Any
    value: Any

    def reads(self) -> list[Any]:
        return [self.dst]

    def writes(self) -> list[Any]:
        return [self.dst]

    def normalized(self) -> ReducerUpdate:
        return self


@tile_operator
@dataclass(frozen=True, eq=False)
class FinalizeReducer(TileOp):
    """Put the totals of a reducer where they can be read."""

    name = "finalize_reducer"

    src: Any
    dst: Any

    def reads(self) -> list[Any]:
        return [self.src]

    def writes(self) -> list[Any]:
        return [self.dst]

    def check(self) -> None:
        if match_extents(self.src, self.dst) is None:
            raise ShapeMismatch(
                f"finalize_reducer: {describe(self.src)} and {describe(self.dst)} are tiles of "
                "different shapes",
                help="give dst the reducer's shape",
            )

    def normalized(self) -> FinalizeReducer:
        return FinalizeReducer(as_region(self.src), as_region(self.dst))


@lowering(ReducerInit, target="llvm", variant="elements")
def reducer_init_elements(op: ReducerInit, context: LoweringContext) -> tirx.Stmt:
    """The only copy of the totals starts from the given value."""
    del context
    return over_region(
        op.dst, lambda offsets: tirx.BufferStore(op.dst.source, op.value, element(op.dst, offsets))
    )


@lowering(ReducerUpdate, target="llvm", variant="store")
def reducer_update_store(op: ReducerUpdate, context: LoweringContext) -> tirx.Stmt:
    """Iterations run one after the other, so a total is an ordinary element."""
    del context
    combiner = _combiner_of(op.name, op.dst)
    return tirx.BufferStore(op.dst.source, combiner.combine(op.value, op.dst), op.dst.indices)


@lowering(FinalizeReducer, target="llvm", variant="elements")
def finalize_reducer_elements(op: FinalizeReducer, context: LoweringContext) -> tirx.Stmt:
    """The totals are complete; they only may have to move."""
    del context
    if op.src.source.same_as(op.dst.source):
        return seq([])

    def body(offsets: list[Any]) -> tirx.Stmt:
        source = element(op.src, matching_offsets(op.dst, op.src, offsets))
        value = converted(tirx.BufferLoad(op.src.source, source), dtype_of(op.dst))
        return tirx.BufferStore(op.dst.source, value, element(op.dst, offsets))

    return over_region(op.dst, body)
