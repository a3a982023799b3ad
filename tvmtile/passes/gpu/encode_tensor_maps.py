"""EncodeTensorMaps: the host makes the tensor maps that a kernel uses, before it launches it."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import mapped
from tvmtile.errors import InvalidOperand, SourceLocation
from tvmtile.ir.kernels import is_kernel, with_body
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import defined_in, seq, variables_of
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.spans import location_of
from tvmtile.ir.tensor_maps import ENCODER, TensorMap, tensor_map_of


@prim_func_pass("EncodeTensorMaps", requires=(Property.NO_TILE_OPERATORS,))
def EncodeTensorMaps(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind each tensor map of a kernel in front of it, once, and give the kernel its address.

    TVM passes it to the kernel by value, as a `__grid_constant__` parameter. A tensor without elements
    has none: the kernel has no blocks then, or reads nothing of it.

    Raises
    ------
    InvalidOperand
        If a map is made of something that only the kernel knows.
    """
    return with_body(func, _Encoder().rewrite(func.body))


class _Encoder(ScopedRewriter):
    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        if not is_kernel(loop):
            return super().visit_for(loop)
        maps: dict[Any, ir.Var] = {}
        encoded: list[tirx.Stmt] = []
        inside = defined_in(loop)

        def address(call: ir.Call) -> ir.Expr:
            made_of = tensor_map_of(call)
            if made_of is None:
                return call
            key = tvm_ffi.StructuralKey(call)
            if key not in maps:
                _check_known(call, inside, location_of(call) or location_of(loop))
                maps[key], statements = _encoded(made_of, len(maps))
                encoded.extend(statements)
            return T.address_of(maps[key])

        kernel = mapped(loop, (ir.Call, address))
        return seq([*encoded, kernel]) if maps else loop


def _check_known(call: ir.Call, inside: frozenset[ir.Var], location: SourceLocation | None) -> None:
    unknown = next((var for var in variables_of(call) if var in inside), None)
    if unknown is not None:
        raise InvalidOperand(
            f"T.create_tma_descriptor: {unknown.name} has its value in the kernel; the host makes the "
            "descriptor before it launches it",
            help="use the tensors and the numbers that the kernel is called with",
            location=location,
        )


def _encoded(made_of: TensorMap, number: int) -> tuple[ir.Var, list[tirx.Stmt]]:
    names = [var.name for var in variables_of(made_of.data)]
    memory = tirx.tvm_stack_alloca("tensormap", 1)
    var = ir.Var(f"{names[0] if names else 'tensor'}_map{number or ''}", memory.ty)
    arguments = (
        *(made_of.extents, made_of.strides, made_of.box, made_of.steps),
        made_of.options,
    )
    numbers = [number for part in arguments for number in part]
    rank = len(made_of.extents)
    call = tirx.call_packed(ENCODER, var, made_of.dtype, rank, made_of.data, *numbers)
    encode: tirx.Stmt = tirx.Evaluate(call)
    unknown = [extent > 0 for extent in made_of.extents if constant(extent) is None]
    if unknown:
        encode = tirx.IfThenElse(tirx.all(*unknown), encode, None)
    return var, [tirx.Bind(var, memory), encode]
