"""`T.gemm` by Metal 4's `matmul2d`, for the matrix units of Apple's GPUs from M5 on.

A simdgroup multiplies 16x16 by 16x32 at once, from cooperative tensors: its threads hold the elements
of both factors and of the accumulator in registers. Here all three are fragments, whose layouts are
those of the cooperative tensors, so that epilogues and reductions work on an accumulator as on any
fragment. For each 16 of K, A and B are copied from threadgroup or device memory to fragments.

The layouts are not Apple's to promise: see `ROW`. Nothing here has run on such a GPU.
"""

from __future__ import annotations

from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import buffer_of, ranges_of
from tvmtile.codegen.metal import matmul2d
from tvmtile.ir.operands import as_region, constant, describe, dtype_of, is_whole
from tvmtile.ir.rewriting import for_loop, nest, seq
from tvmtile.ir.scopes import FRAGMENT_SCOPE, is_by_elements, is_fragment
from tvmtile.ir.threads import WARP_SIZE
from tvmtile.ir.types import Index
from tvmtile.layout.fragment import REGISTER, THREAD, Digit, FragmentLayout
from tvmtile.tileop.gemm import Gemm
from tvmtile.tileop.gemm.partition import (
    Partition,
    along_k,
    constant_extents,
    layout_of_matrices,
    partition,
    readers,
)
from tvmtile.tileop.matrices import PADDED
from tvmtile.tileop.registry import (
    Decline,
    FragmentDemand,
    Lacking,
    LoweringContext,
    lowering,
    of_shared_operands,
)

BLOCK = 16
"""Rows and columns of a block, of which cooperative tensors consist: one of A, two of B and of C."""
_PAIR = (BLOCK, 2 * BLOCK)
_ELEMENTS = BLOCK * BLOCK // WARP_SIZE

# Which lane holds which element of a block: row = 8 a + 4 b + c and column = 8 d + 4 e + f for lane
# 16 b + 8 d + 2 c + e and register 4 a + f. Apple's interface asks a tensor for it at run time; MLX
# (mlx/backend/metal/kernels/steel/gemm/nax.h, BaseNAXFrag::get_coord) relies on this map, for this
# descriptor, on the GPUs that this lowering is for.
ROW = (Digit(2, REGISTER, 4), Digit(2, THREAD, 16), Digit(4, THREAD, 2))
COLUMN = (Digit(2, THREAD, 8), Digit(2, THREAD, 1), Digit(4, REGISTER, 1))
"""The digits of the row and of the column of a block's element: its lane, and one of 8 registers."""


def _share(op: Gemm, context: LoweringContext) -> Partition:
    """The simdgroups' shares of the accumulator, in units of 16x32."""
    if not context.gpu.has_matmul2d:
        raise Lacking("the target is not Metal 4")
    _check_dtypes(op)
    m, n, k = (constant(extent) for extent in (op.m, op.n, op.k))
    if m is None or n is None or k is None:
        raise Decline(f"an extent of [{op.m}, {op.n}, {op.k}] is not a constant")
    if k % BLOCK:
        raise Decline(f"K = {k} is not a multiple of {BLOCK}")
    return partition(m, n, context.threads // WARP_SIZE, op.policy, _PAIR, "simdgroups")


def _check_dtypes(op: Gemm) -> None:
    factors = {dtype_of(op.A), dtype_of(op.B)}
    if len(factors) > 1 or not factors <= {"float16", "bfloat16"} or dtype_of(op.C) != "float32":
        raise Decline(
            f"{describe(op.A)} x {describe(op.B)} into {describe(op.C)}: it multiplies two float16 or "
            "two bfloat16 tiles into a float32 one"
        )


def _layouts(op: Gemm, share: Partition, k: int, threads: int) -> dict[str, FragmentLayout]:
    """The layouts of the operands as they are stored, with `k` blocks along K."""
    rows, columns, steps = share.along_m(), share.along_n(per_matrix=2), along_k(k)
    stored = {
        "C": (rows, columns),
        "A": (steps, rows) if op.transpose_A else (rows, steps),
        "B": (columns, steps) if op.transpose_B else (steps, columns),
    }
    return {
        name: layout_of_matrices(numbers, (ROW, COLUMN), threads)
        for name, numbers in stored.items()
    }


def matmul2d_layouts(op: Gemm, context: LoweringContext) -> dict[ir.Var, FragmentLayout]:
    """The layouts of operands in registers."""
    share = _share(op, context)
    layouts = _layouts(op, share, constant_extents(op)[2] // BLOCK, context.threads)
    found = {}
    for name, layout in layouts.items():
        operand = getattr(op, name)
        _check_place(name, operand)
        if is_fragment(buffer_of(operand)):
            found[buffer_of(operand)] = layout
    return found


def _check_place(name: str, operand: ir.TensorRegion) -> None:
    buffer = buffer_of(operand)
    if not is_fragment(buffer):
        if name == "C":
            raise Decline(f"C is {describe(operand)}, which is not held in registers")
        return
    if not is_by_elements(buffer):
        raise Decline(f"{name} is {describe(operand)}, which is held in simdgroup matrices")
    if len(buffer.ty.shape) != 2 or not is_whole(operand):
        raise Decline(f"{name} is {describe(operand)}, a part of a fragment")


@lowering(
    Gemm,
    target="metal",
    variant="matmul2d",
    priority=30,
    fits=matmul2d_layouts,
    unit=WARP_SIZE,
    fragments=FragmentDemand(matmul2d_layouts, agrees=True),
    shared=of_shared_operands(PADDED),
    direct=readers(_share),
)
def gemm_matmul2d(op: Gemm, context: LoweringContext) -> tirx.Stmt:
    """Multiply 16x16 by 16x32; what a simdgroup copies of A and B is used for its whole share."""
    return _Matmul2dProduct(op, _share(op, context), context).statement()


class _Matmul2dProduct:
    """The code of one product."""

    def __init__(self, op: Gemm, share: Partition, context: LoweringContext) -> None:
        self._op = op
        self._share = share
        self._step = tirx.Var("k", "int32")
        layouts = _layouts(op, share, 1, context.threads)
        self._copied = {
            name: tirx.decl_buffer(
                layouts[name].shape,
                dtype_of(operand),
                name=name.lower(),
                scope=FRAGMENT_SCOPE,
                layout=layouts[name].to_tvm(),
            )
            for name, operand in (("A", op.A), ("B", op.B))
            if not is_fragment(buffer_of(operand))
        }

    def statement(self) -> tirx.Stmt:
        op, step = self._op, self._step
        body = [self._copy(name) for name in self._copied]
        body += [
            self._multiply(m, n)
            for m in range(self._share.row_matrices)
            for n in range(self._share.column_matrices)
        ]
        steps = constant_extents(op)[2] // BLOCK
        loop = for_loop(step, steps, seq(body), tirx.ForKind.UNROLLED)
        begin = [self._clear()] if op.clear_accum else []
        return seq([*map(tirx.AllocBuffer, self._copied.values()), *begin, loop])

    def _clear(self) -> tirx.Stmt:
        c = as_region(self._op.C)
        zero = tirx.const(0, dtype_of(c))
        return nest([self._op.m, self._op.n], lambda at: tirx.BufferStore(buffer_of(c), zero, at))

    def _copy(self, name: str) -> tirx.Stmt:
        """Copy what is needed of A or B for one step along K, as it is stored."""
        into, operand = self._copied[name], as_region(getattr(self._op, name))
        *outer, rows, columns = ranges_of(operand)
        along_k = self._axis_of_k(name)

        def body(at: list[Any]) -> tirx.Stmt:
            offsets = list(at)
            offsets[along_k] = offsets[along_k] + self._step * BLOCK
            indices = [rows.min + offsets[0], columns.min + offsets[1]]
            load = tirx.BufferLoad(buffer_of(operand), [*(r.min for r in outer), *indices])
            return tirx.BufferStore(into, load, at)

        return nest(list(into.ty.shape), body)

    def _axis_of_k(self, name: str) -> int:
        """The axis, of two, that an operand is stored along K in."""
        transposed = self._op.transpose_A if name == "A" else self._op.transpose_B
        return int(transposed) if name == "B" else 1 - int(transposed)

    def _multiply(self, m: int, n: int) -> tirx.Stmt:
        """Multiply a block of A with two of B; indices are those of the first simdgroup's share."""
        c = T.address_of(tirx.BufferLoad(buffer_of(self._op.C), [BLOCK * m, 2 * BLOCK * n]))
        factors = [self._block("A", m), self._block("B", 2 * n), self._block("B", 2 * n + 1)]
        return matmul2d(self._op.transpose_A, self._op.transpose_B, c, *factors)

    def _block(self, name: str, number: int) -> ir.Call:
        """The address of the registers of a block, the `number`th along M or N."""
        operand = self._copied.get(name)
        place: list[Index] = [BLOCK * number, BLOCK * number]
        place[self._axis_of_k(name)] = self._step * BLOCK if operand is None else 0
        buffer = operand if operand is not None else buffer_of(getattr(self._op, name))
        return T.address_of(tirx.BufferLoad(buffer, place))
