"""What a program does in all: operations of its products, bytes that it moves from and to tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm import DataType, tirx

from tvmtile.analysis.accesses import Access, accesses_of
from tvmtile.errors import InvalidValue
from tvmtile.ir.operands import buffer_of, constant, extents_of
from tvmtile.ir.operators import TileOp

__all__ = ["Counts", "counts_of"]

_GLOBAL = ("", "global")


@dataclass(frozen=True)
class Counts:
    """What a program does.

    Attributes
    ----------
    flops : int
        Multiplications and additions of its products of matrices.
    global_bytes : int
        Bytes of tensors that blocks read and write; what two of them read counts twice.
    """

    flops: int
    global_bytes: int


def counts_of(program: tirx.PrimFunc) -> Counts:
    """Count what all blocks do; branches count as if they were taken.

    Parameters
    ----------
    program : tvm.tirx.PrimFunc
        A tile program.

    Raises
    ------
    InvalidValue
        If the extent of a loop or of a tile is not known before it runs.
    """
    flops = moved = 0
    products: set[int] = set()
    for access in accesses_of(program.body):
        op = access.operator
        if op is not None and op.is_product and id(op) not in products:
            products.add(id(op))
            flops += _flops(op) * _times(access)
        if access.buffer.ty.storage_scope in _GLOBAL:
            bits = int(DataType(str(access.buffer.ty.dtype)).bits)
            moved += _elements(access) * bits * _times(access)
    return Counts(flops, moved // 8)


def _times(access: Access) -> int:
    """How often all blocks do it; tile operators and loops of `T.Parallel` are a block's."""
    return math.prod(
        _known(loop.extent)
        for loop in access.loops
        if loop.thread_binding is None or not _is_thread(loop)
    )


def _is_thread(loop: tirx.For) -> bool:
    return str(loop.thread_binding.thread_tag).startswith("threadIdx")


def _flops(op: Any) -> int:
    m, n = (_known(extent) for extent in _extents(op.C)[-2:])
    inner = _extents(op.A)[-2 if op.transpose_A else -1]
    return 2 * m * n * _known(inner)


def _elements(access: Access) -> int:
    if access.operator is None or not access.operator.is_tile:
        return 1
    return math.prod(map(_known, _moved(access.operator, access.buffer)))


def _moved(op: TileOp, buffer: Any) -> list[Any]:
    """The extents of an operand in a tensor; one that is named by an element has the other's."""
    operands = [*op.reads(), *op.writes()]
    own = [extents_of(x) for x in operands if buffer_of(x).same_as(buffer)]
    others = [_extents(x) for x in operands if not buffer_of(x).same_as(buffer)]
    return own[0] if own and own[0] is not None else others[0] if others else [1]


def _extents(operand: Any) -> list[Any]:
    return extents_of(operand) or list(buffer_of(operand).ty.shape)


def _known(extent: Any) -> int:
    value = constant(extent)
    if value is None:
        raise InvalidValue(
            f"the extent {extent} is not known before the kernel runs",
            help="count a program whose loops and tiles have constant extents",
        )
    return value
