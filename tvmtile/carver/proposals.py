"""`configs="auto"`: what a model proposes for a function, by the names of its parameters."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tvm import ir, tirx

from tvmtile.analysis.effects import Effect, effects_of
from tvmtile.carver.templates import (
    BaseTemplate,
    ElementwiseTemplate,
    FlashAttentionTemplate,
    GeneralReductionTemplate,
    Hint,
    MatmulTemplate,
    NoRasterization,
)
from tvmtile.errors import InvalidValue
from tvmtile.ir.kernels import is_parallel
from tvmtile.ir.operands import constant, dtype_of, shape_of
from tvmtile.ir.scopes import is_tensor
from tvmtile.target.devices import TileDevice

__all__ = ["proposals", "template_of", "tunable"]

_BLOCK = r"(block|blk|tile|b)_?"
_ROLES = {
    "M": _BLOCK + r"(m|q|rows?)",
    "N": _BLOCK + r"(n|kv|cols?|columns?)",
    "K": _BLOCK + r"k",
    "size": r"(block|blk|tile)(_?size)?",
    "stages": r"(num_?|n_?)?(pipeline_)?stages?",
    "threads": r"(num_?|n_?)?threads?(_num|_count)?",
    "panels": r"enable_raster\w*|(use_|enable_)?swizzle",
}
"""The roles of parameters, by their names in any case."""
_PROBE = {"M": 64, "N": 64, "K": 32, "size": 64, "stages": 2, "threads": 128, "panels": False}


def tunable(parameters: Iterable[str]) -> dict[str, object]:
    """The parameters that a model can choose, by name, with values that most kernels take."""
    return {name: _PROBE[role] for name, role in _roles(parameters).items()}


def proposals(
    trace: Callable[[Mapping[str, Any]], tirx.PrimFunc],
    parameters: Iterable[str],
    device: TileDevice,
    topk: int = 20,
) -> list[dict[str, Any]]:
    """The best guesses for a function, the best first.

    Parameters
    ----------
    trace : callable
        Makes the program of a configuration.
    parameters : iterable of str
        Those of the function that have no value yet.
    device : TileDevice
        Where it runs.
    topk : int
        How many, at most.

    Raises
    ------
    InvalidValue
        If none of the parameters is one that a model can choose.
    """
    roles = _roles(parameters)
    if not roles:
        raise InvalidValue("configs='auto' finds nothing to choose", help=_KNOWN)
    template = template_of(trace(tunable(roles))).with_arch(device)
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for hint in template.recommend_hints(topk=1 << 16):
        config = {name: _value(role, hint, device) for name, role in roles.items()}
        found.setdefault(tuple(config.values()), config)
        if len(found) == topk:
            break
    return list(found.values())


_KNOWN = (
    "it knows parameters by names like block_M, block_N, block_K, block, num_stages, threads and "
    "enable_rasterization"
)


def _roles(parameters: Iterable[str]) -> dict[str, str]:
    found = {name: _role_of(name) for name in parameters}
    return {name: role for name, role in found.items() if role is not None}


def _role_of(name: str) -> str | None:
    return next(
        (role for role, names in _ROLES.items() if re.fullmatch(names, name, re.IGNORECASE)), None
    )


def _value(role: str, hint: Hint, device: TileDevice) -> Any:
    if role == "threads":
        return hint.threads
    if role == "panels":
        return not isinstance(hint.rasterization_plan, NoRasterization)
    if role == "stages":
        return 0 if device.platform == "CPU" or hint.pipeline_stage == 1 else hint.pipeline_stage
    if role == "K":
        return hint.rstep[0] if hint.rstep else hint.block[-1]
    if role == "N":
        return hint.block[1] if len(hint.block) > 1 else (hint.rstep or hint.block)[0]
    return hint.block[-1 if role == "size" and not hint.rstep else 0]


# The template that a program is a case of ----------------------------------------------------------


def template_of(program: tirx.PrimFunc) -> BaseTemplate:
    """The computation of a program.

    One product of matrices makes it a gemm, two attention; else a reduction makes it one, and what has
    neither is elementwise. The program may be in any cut into blocks.

    Raises
    ------
    InvalidValue
        If an extent of its tensors is not known before it runs.
    """
    accesses = effects_of(program.body)
    products = _operators(accesses, lambda op: op.role == "product")
    reductions = _operators(accesses, lambda op: op.role == "reduction")
    if len(products) > 1:
        return _attention(program, products[0], accesses)
    if products:
        return _matmul(products[0], _written(program, accesses))
    if reductions:
        return _reduction(program, reductions[0], _written(program, accesses))
    shape = _shape(_written(program, accesses))
    tensors = sum(map(is_tensor, program.params))
    dtype = str(_written(program, accesses).ty.dtype)
    return ElementwiseTemplate([math.prod(shape[:-1]), shape[-1]], dtype, tensors)


def _operators(accesses: Sequence[Effect], wanted: Any) -> list[Effect]:
    """The first access of each operator that is wanted."""
    found: dict[int, Effect] = {}
    for access in accesses:
        if access.operator is not None and wanted(access.operator):
            found.setdefault(id(access.operator), access)
    return list(found.values())


def _written(program: tirx.PrimFunc, accesses: Sequence[Effect]) -> ir.Var:
    """The largest tensor that the program writes."""
    written = [
        param
        for param in program.params
        if any(access.writes and access.root.same_as(param) for access in accesses)
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
    return [constant(extent) or 1 for extent in shape_of(operand)[-2:]]


def _steps(access: Effect) -> int | None:
    """The number of times that a block does it; None where that is not known."""
    steps = 1
    for loop in access.around:
        if loop.thread_binding is None and not is_parallel(loop):
            extent = constant(loop.extent)
            if extent is None:
                return None
            steps *= extent
    return steps


def _matmul(product: Effect, result: ir.Var) -> MatmulTemplate:
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
    program: tirx.PrimFunc, scores: Effect, accesses: Sequence[Effect]
) -> FlashAttentionTemplate:
    op: Any = scores.operator
    dim = _known(op.A)[0 if op.transpose_A else 1]
    result = _written(program, accesses)
    queries = math.prod(_shape(result)) // dim
    read = [param for param in program.params if is_tensor(param) and not param.same_as(result)]
    # The longest axis of the queries, and of what they are compared with.
    length = max(_shape(result)[:-1], default=1)
    keys = max(max(_shape(tensor)[:-1], default=1) for tensor in read[1:2] or [result])
    return FlashAttentionTemplate(
        1, max(1, queries // length), dim, length, keys, _steps(scores) is None,
        dtype_of(op.A), str(result.ty.dtype), dtype_of(op.C),
    )  # fmt: skip


def _reduction(
    program: tirx.PrimFunc, reduction: Effect, result: ir.Var
) -> GeneralReductionTemplate:
    tensors = [param for param in program.params if is_tensor(param)]
    source = max(tensors, key=lambda tensor: math.prod(_shape(tensor)))
    op: Any = reduction.operator
    columns = _known(op.reads()[0])[-1] * (_steps(reduction) or 1)
    total = math.prod(_shape(source))
    keeps = math.prod(_shape(result)) == total
    rows = max(1, total // columns)
    return GeneralReductionTemplate("SR", [rows, columns], str(source.ty.dtype), keeps)
