"""What a tile program computes, as far as a model needs to know: the template that it is a case of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, is_buffer_var
from tvmtile.analysis.accesses import Access, accesses_of
from tvmtile.carver.template import (
    BaseTemplate,
    ElementwiseTemplate,
    FlashAttentionTemplate,
    GeneralReductionTemplate,
    MatmulTemplate,
)
from tvmtile.errors import InvalidValue
from tvmtile.ir.kernels import is_parallel
from tvmtile.ir.operands import constant, dtype_of, extents_of


def template_of(program: tirx.PrimFunc) -> BaseTemplate:
    """The computation of a program.

    One product of matrices makes it a gemm, two attention; else a reduction makes it one, and what has
    neither is elementwise. The program may be in any cut into blocks.

    Raises
    ------
    InvalidValue
        If an extent of its tensors is not known before it runs.
    """
    accesses = accesses_of(program.body)
    products = _operators(accesses, lambda op: op.is_product)
    reductions = _operators(accesses, lambda op: op.role == "reduction")
    if len(products) > 1:
        return _attention(program, products[0], accesses)
    if products:
        return _matmul(products[0], _written(program, accesses))
    if reductions:
        return _reduction(program, reductions[0], _written(program, accesses))
    shape = _shape(_written(program, accesses))
    tensors = sum(map(is_buffer_var, program.params))
    dtype = str(_written(program, accesses).ty.dtype)
    return ElementwiseTemplate([math.prod(shape[:-1]), shape[-1]], dtype, tensors)


def _operators(accesses: Sequence[Access], wanted: Any) -> list[Access]:
    """The first access of each operator that is wanted."""
    found: dict[int, Access] = {}
    for access in accesses:
        if access.operator is not None and wanted(access.operator):
            found.setdefault(id(access.operator), access)
    return list(found.values())


def _written(program: tirx.PrimFunc, accesses: Sequence[Access]) -> ir.Var:
    """The largest tensor that the program writes."""
    written = [
        param
        for param in program.params
        if any(access.writes and access.buffer.same_as(param) for access in accesses)
    ]
    if not written:
        raise InvalidValue("the program writes no tensor", help="give the configurations")
    return max(written, key=lambda tensor: math.prod(_shape(tensor)))


def _shape(tensor: ir.Var) -> list[int]:
    extents = [constant(extent) for extent in tensor.ty.shape]
    if any(extent is None for extent in extents):
        raise InvalidValue(
            f"the extents of {tensor.name} are not known before the kernel runs",
            help="give the configurations: configs='auto' is for programs of one size",
        )
    return [extent for extent in extents if extent is not None]


def _known(operand: Any) -> list[int]:
    extents = extents_of(operand) or buffer_of(operand).ty.shape
    return [constant(extent) or 1 for extent in extents][-2:]


def _steps(access: Access) -> int | None:
    """How often a block does it; None where that is not known."""
    steps = 1
    for loop in access.loops:
        if loop.thread_binding is None and not is_parallel(loop):
            extent = constant(loop.extent)
            if extent is None:
                return None
            steps *= extent
    return steps


def _matmul(product: Access, result: ir.Var) -> MatmulTemplate:
    op: Any = product.operator
    *rows, columns = _shape(result)
    inner = _known(op.A)[0 if op.transpose_A else 1]
    return MatmulTemplate(
        math.prod(rows),
        columns,
        inner * (_steps(product) or 1),
        bool(op.transpose_A),
        bool(op.transpose_B),
        dtype_of(op.A),
        str(result.ty.dtype),
        dtype_of(op.C),
    )


def _attention(
    program: tirx.PrimFunc, scores: Access, accesses: Sequence[Access]
) -> FlashAttentionTemplate:
    op: Any = scores.operator
    dim = _known(op.A)[0 if op.transpose_A else 1]
    result = _written(program, accesses)
    queries = math.prod(_shape(result)) // dim
    read = [param for param in program.params if is_buffer_var(param) and not param.same_as(result)]
    # The longest axis of the queries, and of what they are compared with.
    length = max(_shape(result)[:-1], default=1)
    keys = max(max(_shape(tensor)[:-1], default=1) for tensor in read[1:2] or [result])
    return FlashAttentionTemplate(
        1, max(1, queries // length), dim, length, keys, _steps(scores) is None,
        dtype_of(op.A), str(result.ty.dtype), dtype_of(op.C),
    )  # fmt: skip


def _reduction(
    program: tirx.PrimFunc, reduction: Access, result: ir.Var
) -> GeneralReductionTemplate:
    tensors = [param for param in program.params if is_buffer_var(param)]
    source = max(tensors, key=lambda tensor: math.prod(_shape(tensor)))
    op: Any = reduction.operator
    columns = _known(op.reads()[0])[-1] * (_steps(reduction) or 1)
    total = math.prod(_shape(source))
    keeps = math.prod(_shape(result)) == total
    rows = max(1, total // columns)
    return GeneralReductionTemplate("SR", [rows, columns], str(source.ty.dtype), keeps)
