"""NormalizeSignature and DeclareInKernel: parameters as passes, and kernels, take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tvm import DataType, ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import (
    buffer_of,
    buffer_var,
    indices_of,
    is_buffer_var,
    mapped,
    nodes_in,
    ranges_of,
)
from tvmtile.analysis.aliases import Aliases, may_share
from tvmtile.analysis.effects import effects_of
from tvmtile.errors import InvalidOperand
from tvmtile.ir.annotations import MAY_ALIAS
from tvmtile.ir.extents import linear_in
from tvmtile.ir.kernels import Launch, with_kernels, with_launch_body
from tvmtile.ir.operands import constant, describe
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import retyped, seq, statements_in, substitute, variables_of


@prim_func_pass("NormalizeSignature")
def NormalizeSignature(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Give tensors an axis, bind the variables of their shapes, and declare their views in kernels.

    An element without an index becomes the first of an axis, of extent 1: every tile has an axis from
    here on. A parameter keeps its shape, by which a call is checked, and gets a view.

    TVM binds a variable that is an extent, a stride or a parameter by itself. Of the others, one that
    occurs in a linear expression is what the argument's extent or stride says it is; where no whole
    number fits, the call is an error. A stride of another dtype than TVM reads it in is such an
    expression, too.

    The views of a tensor are declared in a kernel that writes it and uses it by several names: a view
    in front of `T.Kernel` would not tell an analysis of the kernel that two of its tensors are one.
    Where a kernel uses one of the names, or only reads, the view stays outside: the tensor memory
    accelerator takes tensors whose address no kernel computes. Tensors that
    `T.annotate_restrict_buffers` names may be one memory, too: all but the first that a kernel uses
    become views of that one, which begin anywhere (`T.tvmtile.may_share`).
    """
    return _with_views(_with_bound_extents(_with_axes(func)))


# Axes ---------------------------------------------------------------------------------------------


def _with_axes(func: tirx.PrimFunc) -> tirx.PrimFunc:
    params = [param for param in func.params if is_buffer_var(param) and not param.ty.shape]
    allocated = [
        buffer_of(alloc) for alloc in nodes_in(func.body, (tirx.AllocBuffer, tirx.DeclBuffer))
    ]
    without = [*params, *(buffer for buffer in allocated if not buffer.ty.shape)]
    if not without:
        return func
    instead: dict[ir.Var, Any] = {buffer: retyped(buffer, shape=[1]) for buffer in without}
    origin = [tirx.const(0, "int32")]
    whole = [ir.Range.from_min_extent(origin[0], tirx.const(1, "int32"))]

    def load(node: ir.TensorLoad) -> ir.Expr:
        return (
            node if indices_of(node) else tirx.BufferLoad(buffer_of(node), origin, span=node.span)
        )

    def store(node: tirx.BufferStore) -> tirx.Stmt:
        indices = indices_of(node) or origin
        return tirx.BufferStore(buffer_of(node), node.value, indices, span=node.span)

    def region(node: ir.TensorRegion) -> ir.Expr:
        return node if ranges_of(node) else tirx.BufferRegion(buffer_of(node), whole)

    body = mapped(
        func.body,
        (ir.Var, lambda var: instead.get(var, var)),
        (ir.TensorLoad, load),
        (tirx.BufferStore, store),
        (ir.TensorRegion, region),
    )
    views = [tirx.DeclBuffer(instead[param], data=param.data) for param in params]
    return func.with_body(seq([*views, body]))


# Extents ------------------------------------------------------------------------------------------


def _with_bound_extents(func: tirx.PrimFunc) -> tirx.PrimFunc:
    solver = _Solver(func.params)
    views: list[tirx.Stmt] = []
    params = []
    for param in func.params:
        given = solver.as_given(param) if is_buffer_var(param) else param
        params.append(given)
        if not given.same_as(param):
            views.append(tirx.DeclBuffer(param, data=given.data))
    if not views:
        return func
    body = seq([*solver.statements, *views, func.body])
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs, func.span)


class _Dimension(NamedTuple):
    """An extent or a stride of a parameter, and the dtype in which TVM reads the argument's."""

    buffer: ir.Var
    axis: int
    value: ir.Expr
    dtype: str
    is_stride: bool

    @property
    def words(self) -> str:
        return f"{'the stride of ' * self.is_stride}axis {self.axis}"

    def __str__(self) -> str:
        return f"{self.words} of {self.buffer.name}"

    @property
    def is_read_by_tvm(self) -> bool:
        return isinstance(self.value, ir.Var) and str(self.value.ty.dtype) == self.dtype

    def variable(self) -> ir.Var:
        name = f"{self.buffer.name}_{'stride_' * self.is_stride}{self.axis}"
        return tirx.Var(name, self.dtype)


def _dimensions(buffer: ir.Var) -> list[_Dimension]:
    """The extents and strides of a tensor, each with the dtype in which TVM reads it of an argument.

    TVM reads a stride in the widest dtype of the extents of its axis and those behind, whose product it
    is where it is not given. A constant extent has the dtype of its stride.
    """
    extents, strides, widest = [], [], "int32"
    for axis, extent in reversed(list(enumerate(buffer.ty.shape))):
        dtype = str(extent.ty.dtype)
        if buffer.ty.strides:
            stride = buffer.ty.strides[axis]
            dtype = str(stride.ty.dtype) if constant(extent) is not None else dtype
            widest = max(widest, dtype, key=lambda dtype: DataType(dtype).bits)
            strides.append(_Dimension(buffer, axis, stride, widest, True))
        extents.append(_Dimension(buffer, axis, extent, dtype, False))
    return [*reversed(extents), *reversed(strides)]


class _Solver:
    """Solves one extent after the other, until there is nothing left to find.

    Attributes
    ----------
    statements : list of Stmt
        What binds the variables found, and checks the extents that hold them.
    """

    def __init__(self, params: Sequence[ir.Var]) -> None:
        buffers = [param for param in params if is_buffer_var(param)]
        dimensions = [dimension for buffer in buffers for dimension in _dimensions(buffer)]
        self._known: set[ir.Expr] = {param for param in params if not is_buffer_var(param)}
        self._known.update(dimension.value for dimension in dimensions if dimension.is_read_by_tvm)
        # A variable in place of each extent that holds what TVM does not bind.
        self._given = {
            dimension: dimension.variable()
            for dimension in dimensions
            if self._is_to_solve(dimension)
        }
        self.statements: list[tirx.Stmt] = []
        while any(map(self._solve, self._given)):
            pass
        self.statements += map(self._check, self._given)

    def _is_to_solve(self, dimension: _Dimension) -> bool:
        is_other = (
            str(dimension.value.ty.dtype) != dimension.dtype and constant(dimension.value) is None
        )
        return is_other or bool(self._unknown(dimension.value))

    def _unknown(self, extent: ir.Expr) -> list[ir.Var]:
        return [var for var in variables_of(extent) if var not in self._known]

    def _solve(self, dimension: _Dimension) -> bool:
        """Find a variable, the only one of an extent that is not known yet."""
        unknown = self._unknown(dimension.value)
        solution = linear_in(dimension.value, unknown[0]) if len(unknown) == 1 else None
        if solution is None:
            return False
        coefficient, rest = solution
        given = tirx.Cast(str(unknown[0].ty.dtype), self._given[dimension])
        distance = given - rest if coefficient > 0 else rest - given
        value = Analyzer().simplify(tirx.floordiv(distance, abs(coefficient)))
        self.statements.append(tirx.Bind(unknown[0], value))
        self._known.add(unknown[0])
        return True

    def _check(self, dimension: _Dimension) -> tirx.Stmt:
        unknown = self._unknown(dimension.value)
        if unknown:
            raise InvalidOperand(
                f"{describe(dimension.buffer)}: {dimension.words} does not tell what "
                f"{unknown[0].name} is",
                help=f"use {unknown[0].name} as an extent by itself, or pass it as a parameter",
            )
        message = ir.StringImm(f"{dimension} must be {dimension.value}")
        value: Any = dimension.value
        holds = value.equal(self._given[dimension])
        return tirx.AssertStmt(holds, ir.StringImm("ValueError"), [message])

    def as_given(self, buffer: ir.Var) -> ir.Var:
        """The parameter by whose extents and strides TVM can bind the variables."""
        dimensions = _dimensions(buffer)
        items: list[Any] = [self._given[p] if p in self._given else _typed(p) for p in dimensions]
        if all(
            item.same_as(dimension.value) for item, dimension in zip(items, dimensions, strict=True)
        ):
            return buffer
        rank = len(buffer.ty.shape)
        return retyped(buffer, shape=items[:rank], strides=items[rank:])


def _typed(dimension: _Dimension) -> ir.Expr:
    """A constant in the dtype in which TVM reads it; what TVM binds as it is."""
    known = constant(dimension.value)
    is_other = known is not None and str(dimension.value.ty.dtype) != dimension.dtype
    return tirx.const(known, dimension.dtype) if is_other else dimension.value


# Views of tensors ---------------------------------------------------------------------------------


def _with_views(func: tirx.PrimFunc) -> tirx.PrimFunc:
    aliases = Aliases(func.body)
    sharing = _sharing(func)
    if not aliases.views and not sharing:
        return func
    return with_kernels(func, lambda kernel: _with_views_in(kernel, aliases, sharing))


def _sharing(func: tirx.PrimFunc) -> list[ir.Var]:
    """The tensors that may share memory; all, where what the user named is one, or none of them."""
    if func.attrs is None or MAY_ALIAS not in func.attrs:
        return []
    tensors = [param for param in func.params if is_buffer_var(param)]
    names = set(map(str, func.attrs[MAY_ALIAS]))
    named = [tensor for tensor in tensors if tensor.name in names]
    return named if len(named) == len(names) > 1 else tensors


def _with_views_in(kernel: tirx.For, aliases: Aliases, sharing: list[ir.Var]) -> tirx.For:
    accesses = effects_of(kernel)
    names = {access.root for access in accesses}
    used = {aliases.root(name) for name in names}
    shared = [tensor for tensor in sharing if tensor in used]

    def memory(buffer: ir.Var) -> ir.Var:
        root = aliases.root(buffer)
        return shared[0] if root in {*shared} else root

    written = {memory(access.root) for access in accesses if access.writes}
    inside = Aliases(kernel).views
    new: dict[ir.Var, ir.Var] = {}
    declarations: list[tirx.Stmt] = []

    def declare(buffer: ir.Var, data: ir.Expr) -> None:
        new[buffer] = buffer_var(buffer.name, buffer.ty)
        declarations.append(tirx.DeclBuffer(new[buffer], data=data))

    if shared and shared[0] in written:
        for tensor in shared[1:]:
            declare(tensor, may_share(tensor, shared[0]))
    for view, declaration in aliases.views.items():
        root = memory(view)
        several = sum(memory(name).same_as(root) for name in names) > 1
        if view not in inside and root in written and several:
            declare(view, substitute(declaration.data, new))
    if not new:
        return kernel
    body = substitute(Launch(kernel).body, new)
    return with_launch_body(kernel, seq([*declarations, body]))


@prim_func_pass("DeclareInKernel")
def DeclareInKernel(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Declare tensors that are accessed directly and through views again, in the kernel.

    FlattenBuffers makes a flat tensor of what is accessed directly, outside of the kernel, which then
    has two arguments for one tensor: the flat tensor for the direct accesses, the tensor itself for the
    views. But compilers for GPUs take the arguments of a kernel to be different memory, and may move a
    load through the one in front of a store through the other.
    """
    return with_kernels(func, _with_declarations)


def _with_declarations(kernel: tirx.For) -> tirx.For:
    body = Launch(kernel).body
    new: dict[ir.Var, ir.Var] = {
        tensor: buffer_var(tensor.name, tensor.ty) for tensor in _accessed_in_two_ways(body)
    }
    if not new:
        return kernel
    declarations = [tirx.DeclBuffer(new[tensor], data=tensor.data) for tensor in new]
    return with_launch_body(kernel, seq([*declarations, substitute(body, new)]))


def _accessed_in_two_ways(body: tirx.Stmt) -> list[ir.Var]:
    """The tensors from outside that a body accesses both directly and through views."""
    aliases = Aliases(body)
    declared = {
        *aliases.views,
        *(buffer_of(each) for each in statements_in(body, tirx.AllocBuffer)),
    }
    outside = aliases.aliased - declared
    accesses = nodes_in(body, (tirx.BufferStore, ir.TensorLoad)) if outside else []
    return [buffer for buffer in dict.fromkeys(map(buffer_of, accesses)) if buffer in outside]
