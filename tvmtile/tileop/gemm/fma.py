"""`T.gemm` on GPUs by the multiply-adds of each thread: no matrix unit, products of any dtype.

A thread holds elements of several rows and columns of the accumulator. In each step along K it loads an
element of A for each of these rows and one of B for each column, and multiplies all pairs:

```
for k in range(K):
    a[0:rows], b[0:columns] = A[my rows, k], B[k, my columns]
    sums[i, j] += a[i] * b[j]
```

Rows and columns of neighbouring threads are neighbours. Each sum is rounded as the dtype of the
accumulator says, in the order of K. Operands in registers go through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, indices_of, ranges_of
from tvmtile.ir.operands import as_region, describe, dtype_of
from tvmtile.ir.rewriting import for_loop, seq
from tvmtile.ir.scopes import SHARED_SCOPE, is_fragment
from tvmtile.layout.fragment import REGISTER, THREAD, Digit, FragmentLayout
from tvmtile.tileop.elementwise import converted, moved
from tvmtile.tileop.gemm import Gemm, GemmWarpPolicy
from tvmtile.tileop.gemm.mma import SWIZZLED
from tvmtile.tileop.gemm.partition import Axis, Partition, check_fragments, constant_extents
from tvmtile.tileop.matrices import PADDED, SUMMED_IN, element_of
from tvmtile.tileop.registry import (
    Decline,
    LoweringContext,
    SharedTile,
    as_loops,
    lowering,
    of_shared_operands,
)

_COLUMNS_OF_WHOLE_ROWS = 8
"""Threads beside each other along a row, where a warp has whole rows."""
_MOST_SUMS = 128
"""Elements of the accumulator that a thread holds: it has 255 registers."""


def _share(op: Gemm, context: LoweringContext) -> Partition:
    """The threads' shares of the accumulator; `row_matrices` are the rows of one's elements."""
    m, n, _ = constant_extents(op)
    if not is_fragment(buffer_of(op.C)):
        raise Decline(f"{describe(op.C)} is not a fragment")
    check_fragments(op.C)
    threads = context.threads
    share = _whole_rows(m, n, threads) if op.policy == GemmWarpPolicy.FullRow else None
    share = share or _least_loads(m, n, threads)
    if share is None:
        raise Decline(f"{threads} threads can't share {describe(op.C)} evenly")
    if share.row_matrices * share.column_matrices > _MOST_SUMS:
        raise Decline(f"{threads} threads would hold more than {_MOST_SUMS} of its sums each")
    return share


def _whole_rows(m: int, n: int, threads: int) -> Partition | None:
    """A share whose rows do not depend on N: those of products with one M lie in the same threads."""
    rows, columns = threads // _COLUMNS_OF_WHOLE_ROWS, _COLUMNS_OF_WHOLE_ROWS
    if threads % columns or m % rows or n % columns:
        return None
    return Partition(rows, columns, m // rows, n // columns, unit=1)


def _least_loads(m: int, n: int, threads: int) -> Partition | None:
    ways = [
        Partition(rows, threads // rows, m // rows, n * rows // threads, unit=1)
        for rows in range(1, threads + 1)
        if threads % rows == 0 and m % rows == 0 and n % (threads // rows) == 0
    ]
    return min(ways, key=lambda way: way.row_matrices + way.column_matrices, default=None)


def _axes(share: Partition) -> tuple[Axis, Axis]:
    """The layouts of rows and columns."""
    rows = Digit(share.row_matrices, REGISTER, share.column_matrices)
    columns = Digit(share.column_matrices, REGISTER, 1)
    return (
        (rows, Digit(share.rows, THREAD, share.columns)),
        (columns, Digit(share.columns, THREAD, 1)),
    )


def _layouts(op: Gemm, context: LoweringContext) -> dict[ir.Var, FragmentLayout]:
    kept = [tuple(d for d in digits if d.extent > 1) for digits in _axes(_share(op, context))]
    units = [()] * (len(ranges_of(op.C)) - 2)
    return {buffer_of(op.C): FragmentLayout(context.threads, (*units, *kept))}


def _tiles(op: Gemm, context: LoweringContext) -> dict[ir.Var, SharedTile]:
    """Neighbouring threads read elements of several rows, which should lie in different banks."""
    return of_shared_operands(PADDED if context.kind == "metal" else SWIZZLED)(op, context)


def slow(op: Gemm) -> str | None:
    """The warning where no matrix unit multiplies, unless that is known, or was asked for."""
    if not op.has_related_dtypes() or op.excludes_tf32():
        return None
    return "is computed element by element, which is slow"


@lowering(
    Gemm,
    target=("metal", "cuda"),
    variant="fma",
    priority=4,
    fits=_layouts,
    fragments=_layouts,
    shared=_tiles,
    slow=slow,
)
def gemm_fma(op: Gemm, context: LoweringContext) -> tirx.Stmt:
    """Loops of one thread over its rows and columns, within one along K that is not unrolled."""
    share = _share(op, context)
    dtype = SUMMED_IN.get(dtype_of(op.C), dtype_of(op.C))
    staged: list[tirx.Stmt] = []

    def in_memory(operand: ir.TensorRegion) -> ir.TensorRegion:
        if not is_fragment(buffer_of(operand)):
            return operand
        held = tirx.decl_buffer(
            [r.extent for r in ranges_of(operand)],
            dtype_of(operand),
            name=f"{buffer_of(operand).name}_staged",
            scope=SHARED_SCOPE,
        )
        staged.extend([tirx.AllocBuffer(held), moved(operand, as_region(held))])
        return as_region(held)

    A, B = in_memory(op.A), in_memory(op.B)
    a, b, sums = (
        tirx.decl_buffer((size,), dtype, name=name, scope="local")
        for name, size in (
            ("a", share.row_matrices),
            ("b", share.column_matrices),
            ("sums", share.row_matrices * share.column_matrices),
        )
    )
    first_row, first_column = share.place(context.thread_index)

    def row(i: Any) -> ir.Expr:
        return i * share.rows + first_row

    def column(j: Any) -> ir.Expr:
        return j * share.columns + first_column

    def each(body: Callable[[Any, Any], tirx.Stmt]) -> tirx.Stmt:
        """A statement for each element of the accumulator that the thread holds."""
        return _over(
            share.row_matrices, lambda i: _over(share.column_matrices, lambda j: body(i, j))
        )

    def number(i: Any, j: Any) -> list[Any]:
        return [i * share.column_matrices + j]

    def begin(i: Any, j: Any) -> tirx.Stmt:
        held = element_of(op.C, False, row(i), column(j))
        value = tirx.const(0, dtype) if op.clear_accum else converted(held, dtype)
        return tirx.BufferStore(sums, value, number(i, j))

    def add(i: Any, j: Any) -> tirx.Stmt:
        product = tirx.BufferLoad(a, [i]) * tirx.BufferLoad(b, [j])
        total = tirx.BufferLoad(sums, number(i, j)) + product
        return tirx.BufferStore(sums, total, number(i, j))

    def end(i: Any, j: Any) -> tirx.Stmt:
        target = element_of(op.C, False, row(i), column(j))
        total = converted(tirx.BufferLoad(sums, number(i, j)), dtype_of(op.C))
        return tirx.BufferStore(buffer_of(target), total, indices_of(target))

    def load(held: ir.Var, element: Callable[[Any], ir.Expr]) -> tirx.Stmt:
        extent = held.ty.shape[0]
        return _over(extent, lambda i: tirx.BufferStore(held, converted(element(i), dtype), [i]))

    k = tirx.Var("k", "int32")
    step = [
        load(a, lambda i: element_of(A, op.transpose_A, row(i), k)),
        load(b, lambda j: element_of(B, op.transpose_B, k, column(j))),
        each(add),
    ]
    allocations = [tirx.AllocBuffer(buffer) for buffer in (a, b, sums)]
    return seq([*staged, *allocations, each(begin), for_loop(k, op.k, seq(step)), each(end)])


def _over(extent: Any, body: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
    variable = tirx.Var("i", "int32")
    return for_loop(variable, extent, body(variable), tirx.ForKind.UNROLLED)


# `C[i, j] += A[i, k] * B[k, j]`, the elements shared out over the threads.
lowering(Gemm, target=("metal", "cuda"), variant="elements", slow=slow)(as_loops)
