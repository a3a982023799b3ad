"""EncodeTensorMaps and CacheTensorMaps: the host makes the tensor maps that a kernel takes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import is_buffer_var, mapped, nodes_in
from tvmtile.codegen.kept_maps import keep_name, kept_maps, recall_name
from tvmtile.codegen.names import in_c
from tvmtile.errors import InvalidOperand, SourceLocation
from tvmtile.ir.alignment import failure_without_elements, origins
from tvmtile.ir.conditions import conjuncts
from tvmtile.ir.divisions import DIVISIONS, is_division
from tvmtile.ir.kernels import importing_llvm, is_kernel, statements_of, with_body
from tvmtile.ir.operands import constant
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import defined_in, reads_no_memory, seq, variables_of
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.spans import location_of
from tvmtile.ir.tensor_maps import ENCODER, TensorMap, is_encoder, tensor_map_of


@prim_func_pass("EncodeTensorMaps", requires=(Property.NO_TILE_OPERATORS,))
def EncodeTensorMaps(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Bind each tensor map of a kernel in front of it, once, and give the kernel its address.

    TVM passes it to the kernel by value, as a `__grid_constant__` parameter. A tensor without elements
    has none, which the driver refuses: a kernel that would copy boxes of it is not launched.

    Raises
    ------
    InvalidOperand
        If a map is made of something that only the kernel knows.
    """
    encoder = _Encoder(func)
    body = encoder.rewrite(func.body)
    return with_body(func, seq([*encoder.checks, body]))  # before the first launch


class _Encoder(ScopedRewriter):
    """Makes the maps of kernels.

    Attributes
    ----------
    checks : list of Stmt
        That nothing is copied of tensors without elements.
    """

    def __init__(self, func: tirx.PrimFunc) -> None:
        super().__init__()
        self.checks: list[tirx.Stmt] = []
        self._tensors = {tensor: param.name for tensor, (param, _) in origins(func).items()}
        shapes = [param.ty.shape for param in func.params if is_buffer_var(param)]
        self._given = frozenset([*func.params, *variables_of(shapes)])

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
                tensor = self._tensor_of(made_of)
                maps[key], statements = _encoded(made_of, tensor or "tensor", len(maps))
                encoded.extend(statements)
                if tensor is not None:
                    self._check(made_of, tensor, call, loop)
            return T.address_of(maps[key])

        kernel = mapped(loop, (ir.Call, address))
        return seq([*encoded, kernel]) if maps else loop

    def _tensor_of(self, made_of: TensorMap) -> str | None:
        """The name of the parameter that a map is of."""
        used = variables_of(made_of.data)
        return next((self._tensors[var] for var in used if var in self._tensors), None)

    def _check(self, made_of: TensorMap, tensor: str, call: ir.Call, kernel: tirx.For) -> None:
        has_elements = _has_elements(made_of)
        if has_elements is None or not self._given.issuperset(variables_of(has_elements)):
            return
        copies = _copies(kernel, self._given)
        is_copied = tirx.any(
            *(tirx.all(*holds, True) for c, holds in copies if tvm_ffi.structural_equal(c, call))
        )
        message = ir.StringImm(failure_without_elements(tensor))
        is_right = tirx.any(has_elements, tirx.Not(is_copied))
        self.checks.append(tirx.AssertStmt(is_right, ir.StringImm("ValueError"), [message]))


def _copies(
    stmt: tirx.Stmt, given: frozenset[ir.Var], holds: tuple[ir.Expr, ...] = ()
) -> Iterator[tuple[ir.Call, tuple[ir.Expr, ...]]]:
    """The tensor maps that a statement names, and what holds there, of what a call has `given`."""
    children = statements_of(stmt)
    if not children:
        yield from ((c, holds) for c in nodes_in(stmt, ir.Call) if tensor_map_of(c) is not None)
    conditions: list[ir.Expr] = []
    if isinstance(stmt, tirx.For):
        conditions = [stmt.extent > 0]
    elif isinstance(stmt, tirx.IfThenElse):
        conditions = [stmt.condition, tirx.Not(stmt.condition)]
    for child, condition in itertools.zip_longest(children, conditions[: len(children)]):
        parts = [] if condition is None else conjuncts(condition)
        known = [part for part in parts if _is_known(part, given)]
        yield from _copies(child, given, (*holds, *known))


def _is_known(condition: ir.Expr, given: frozenset[ir.Var]) -> bool:
    """Tell whether the host can evaluate a condition: it does so where others don't hold, too."""
    is_given = given.issuperset(variables_of(condition)) and reads_no_memory(condition)
    return is_given and not any(map(is_division, nodes_in(condition, DIVISIONS)))


def _has_elements(made_of: TensorMap) -> ir.Expr | None:
    unknown = [extent > 0 for extent in made_of.extents if constant(extent) is None]
    return tirx.all(*unknown) if unknown else None


def _check_known(call: ir.Call, inside: frozenset[ir.Var], location: SourceLocation | None) -> None:
    unknown = next((var for var in variables_of(call) if var in inside), None)
    if unknown is not None:
        raise InvalidOperand(
            f"T.create_tma_descriptor: {unknown.name} has its value in the kernel; the host makes the "
            "descriptor before it launches it",
            help="use the tensors and the numbers that the kernel is called with",
            location=location,
        )


def _encoded(made_of: TensorMap, tensor: str, number: int) -> tuple[ir.Var, list[tirx.Stmt]]:
    memory = tirx.tvm_stack_alloca("tensormap", 1)
    var = ir.Var(f"{tensor}_map{number or ''}", memory.ty)
    arguments = (
        *(made_of.extents, made_of.strides, made_of.box, made_of.steps),
        made_of.options,
    )
    numbers = [number for part in arguments for number in part]
    rank = len(made_of.extents)
    call = tirx.call_packed(ENCODER, var, made_of.dtype, rank, made_of.data, *numbers)
    encode: tirx.Stmt = tirx.Evaluate(call)
    has_elements = _has_elements(made_of)
    if has_elements is not None:
        encode = tirx.IfThenElse(has_elements, encode, None)
    return var, [tirx.Bind(var, memory), encode]


@prim_func_pass("CacheTensorMaps", requires=(Property.NO_TILE_OPERATORS,))
def CacheTensorMaps(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Look for a map that an earlier launch has encoded before it is encoded.

    What the map is made of is compared: the tensor's address and all numbers that differ between calls.
    A kernel gets its maps by value, so that a launch that waits in a stream or a graph has its own.
    """
    texts: list[str] = []
    name = in_c(str(func.attrs["global_symbol"]))

    def kept(stmt: tirx.Evaluate) -> tirx.Stmt:
        call = stmt.value
        if not is_encoder(call):
            return stmt
        _, memory, _, _, data, *numbers = call.args
        unknown = [number.astype("int64") for number in numbers if constant(number) is None]
        site = f"{name}_{len(texts)}"
        texts.append(kept_maps(site, len(unknown)))
        found = tirx.call_extern("int32", recall_name(site), memory, data, *unknown)
        keep = tirx.call_extern("int32", keep_name(site), memory, data, *unknown)
        return tirx.IfThenElse(found == 0, seq([stmt, tirx.Evaluate(keep)]), None)

    body = mapped(func.body, (tirx.Evaluate, kept))
    return with_body(func, importing_llvm(body, texts)) if texts else func
