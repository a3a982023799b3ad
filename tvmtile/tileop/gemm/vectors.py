"""`T.gemm` of few rows on Apple GPUs, of floats of 8 bits: dot products by the lanes of a simdgroup.

A matrix of 8 rows leaves most of a matrix unit idle, which takes no floats of 8 bits besides. Here a
simdgroup computes whole columns: its lanes take four neighbours along K at once, 4 bytes, of a row of B
and of each row of A, and `simd_sum` adds up what they have. B is read once, so it can stay in device
memory.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.frontend.dtypes import cast
from tvmtile.ir.operands import describe, dtype_of, is_whole
from tvmtile.ir.rewriting import for_loop, seq
from tvmtile.ir.scopes import is_by_elements
from tvmtile.ir.threads import WARP_SIZE
from tvmtile.layout.fragment import REGISTER, THREAD, Digit, FragmentLayout, compact_registers
from tvmtile.tileop.elementwise import element
from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.gemm.partition import constant_extents
from tvmtile.tileop.registry import Decline, LoweringContext, lowering

MOST_ROWS = 8
"""Of A: from there on simdgroup matrices are full."""
_WORD = 4
"""Elements of 8 bits in what a lane loads at once."""


def _fits(op: Gemm, context: LoweringContext) -> None:
    m, n, k = constant_extents(op)
    groups = context.threads // WARP_SIZE
    if n % groups:
        raise Decline(f"N = {op.n} is not a multiple of the {groups} simdgroups")
    if m > MOST_ROWS:
        raise Decline(f"M = {op.m} is more than {MOST_ROWS} rows")
    if k % _WORD or op.transpose_A or not op.transpose_B:
        raise Decline(f"rows of A and B are no words of {_WORD} elements along K")
    for operand in (op.A, op.B):
        if not dtype_of(operand).startswith("float8_"):
            raise Decline(f"{describe(operand)} has no elements of 8 bits")
    if not is_by_elements(buffer_of(op.C)) or not is_whole(op.C):
        raise Decline(f"{describe(op.C)} is no whole fragment")
    if dtype_of(op.C) != "float32":
        raise Decline(f"float32 sums are not kept in {dtype_of(op.C)}")


def _layouts(op: Gemm, context: LoweringContext) -> dict[ir.Var, FragmentLayout]:
    """All lanes of a simdgroup hold its columns of the accumulator, every so many of them."""
    groups = context.threads // WARP_SIZE
    m, n, _ = constant_extents(op)
    of_column = (Digit(n // groups, REGISTER, 1), Digit(groups, THREAD, WARP_SIZE))
    axes = ((Digit(m, REGISTER, 1),), of_column)
    kept = [tuple(digit for digit in digits if digit.extent > 1) for digits in axes]
    units = [()] * (len(ranges_of(op.C)) - 2)
    return {buffer_of(op.C): compact_registers(FragmentLayout(context.threads, (*units, *kept)))}


@lowering(
    Gemm,
    target="metal",
    variant="vectors",
    priority=5,
    fits=_fits,
    unit=WARP_SIZE,
    fragments=_layouts,
    direct=lambda _op, _context: {"B": 1},
)
def gemm_vectors(op: Gemm, context: LoweringContext) -> tirx.Stmt:
    """Each simdgroup takes the columns that it holds, one after the other."""
    m, n, k = constant_extents(op)
    groups = context.threads // WARP_SIZE
    lane = tirx.floormod(context.thread_index, WARP_SIZE)
    group = tirx.floordiv(context.thread_index, WARP_SIZE)
    sums = tirx.decl_buffer((m,), "float32", name="sums", scope="local")
    words = [
        tirx.decl_buffer((_WORD,), dtype_of(operand), name=f"{name}_word", scope="local")
        for name, operand in (("a", op.A), ("b", op.B))
    ]

    def multiply(column: ir.Expr, first: ir.Expr) -> tirx.Stmt:
        """Add the products of a word of B and one of each row of A."""
        a, b = words
        factors = [tirx.Var(f"b{e}", "float32") for e in range(_WORD)]

        def of_row(i: ir.Expr) -> tirx.Stmt:
            total = tirx.BufferLoad(sums, [i])
            for e, factor in enumerate(factors):
                total = total + cast(tirx.BufferLoad(a, [e]), "float32") * factor
            return seq([_load_word(a, op.A, i, first), tirx.BufferStore(sums, total, [i])])

        decoded = [
            tirx.Bind(factor, cast(tirx.BufferLoad(b, [e]), "float32"))
            for e, factor in enumerate(factors)
        ]
        return seq([_load_word(b, op.B, column, first), *decoded, _over("i", m, of_row)])

    def column(number: ir.Expr) -> tirx.Stmt:
        place = number * groups + group
        step = WARP_SIZE * _WORD
        full, rest = divmod(k, step)
        steps = [_over("s", full, lambda s: multiply(place, s * step + lane * _WORD), unroll=False)]
        if rest:
            last = multiply(place, full * step + lane * _WORD)
            steps.append(tirx.IfThenElse(lane * _WORD < rest, last, None))
        zero = tirx.const(0, "float32")
        return seq(
            [
                _over("i", m, lambda i: tirx.BufferStore(sums, zero, [i])),
                *(steps if full else steps[1:]),
                _over("i", m, lambda i: _add_up(op, sums, i, place)),
            ]
        )

    allocations = [tirx.AllocBuffer(buffer) for buffer in (sums, *words)]
    return seq([*allocations, _over("c", n // groups, column)])


def _over(
    name: str, extent: int, body: Callable[[ir.Var], tirx.Stmt], unroll: bool = True
) -> tirx.Stmt:
    kind = tirx.ForKind.UNROLLED if unroll else tirx.ForKind.SERIAL
    var = tirx.Var(name, "int32")
    return for_loop(var, extent, body(var), kind)


def _load_word(word: ir.Var, operand: ir.TensorRegion, row: ir.Expr, first: ir.Expr) -> tirx.Stmt:
    """Four neighbours of a row of an operand."""
    e = tirx.Var("e", "int32")
    units = [0] * (len(ranges_of(operand)) - 2)
    value = tirx.BufferLoad(buffer_of(operand), element(operand, [*units, row, first + e]))
    return for_loop(e, _WORD, tirx.BufferStore(word, value, [e]), tirx.ForKind.VECTORIZED)


def _add_up(op: Gemm, sums: ir.Var, row: ir.Expr, column: ir.Expr) -> tirx.Stmt:
    """Add the sums of all lanes to an element of the accumulator, which all of them hold."""
    units = [0] * (len(ranges_of(op.C)) - 2)
    place = element(op.C, [*units, row, column])
    total = T.call_pure_extern("float32", "simd_sum", tirx.BufferLoad(sums, [row]))
    if not op.clear_accum:
        total = tirx.BufferLoad(buffer_of(op.C), place) + total
    return tirx.BufferStore(buffer_of(op.C), total, place)
