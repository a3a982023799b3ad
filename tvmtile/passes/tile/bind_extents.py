"""BindExtents: bind dynamic extents that parameters have in expressions only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import InvalidOperand
from tvmtile.ir.extents import linear_in
from tvmtile.ir.operands import constant, describe
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import retyped, seq, variables_of


@prim_func_pass("BindExtents")
def BindExtents(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Solve the parameters' shapes for dynamic extents that are no extent by themselves.

    TVM binds a variable that is an extent, a stride or a parameter by itself. Of the others, one that
    occurs in a linear expression is what the argument's extent or stride says it is; where no whole
    number fits, the call is an error. A stride of another dtype than TVM reads it in is such an
    expression, too.
    """
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


class _Place(NamedTuple):
    """An extent or a stride of a parameter, and the dtype in which TVM reads the argument's."""

    buffer: ir.Var
    axis: int
    value: ir.Expr
    dtype: str
    is_stride: bool

    def __str__(self) -> str:
        return f"{'the stride of ' * self.is_stride}axis {self.axis} of {self.buffer.name}"

    @property
    def is_read_by_tvm(self) -> bool:
        return isinstance(self.value, ir.Var) and str(self.value.ty.dtype) == self.dtype

    def variable(self) -> ir.Var:
        name = f"{self.buffer.name}_{'stride_' * self.is_stride}{self.axis}"
        return tirx.Var(name, self.dtype)


def _places(buffer: ir.Var) -> list[_Place]:
    """TVM reads a stride in the widest dtype of the axis's extent and those behind it.

    (A stride that is not there is their product.) The dtype of a constant is chosen to suit.
    """
    extents, strides, widest = [], [], "int32"
    for axis, extent in reversed(list(enumerate(buffer.ty.shape))):
        dtype = str(extent.ty.dtype)
        if buffer.ty.strides:
            stride = buffer.ty.strides[axis]
            dtype = str(stride.ty.dtype) if constant(extent) is not None else dtype
            widest = max(widest, dtype)
            strides.append(_Place(buffer, axis, stride, widest, True))
        extents.append(_Place(buffer, axis, extent, dtype, False))
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
        places = [place for buffer in buffers for place in _places(buffer)]
        self._known: set[ir.Expr] = {param for param in params if not is_buffer_var(param)}
        self._known.update(place.value for place in places if place.is_read_by_tvm)
        # A variable in place of each extent that holds what TVM does not bind.
        self._given = {place: place.variable() for place in places if self._is_to_solve(place)}
        self.statements: list[tirx.Stmt] = []
        while any(map(self._solve, self._given)):
            pass
        self.statements += map(self._check, self._given)

    def _is_to_solve(self, place: _Place) -> bool:
        is_other = str(place.value.ty.dtype) != place.dtype and constant(place.value) is None
        return is_other or bool(self._unknown(place.value))

    def _unknown(self, extent: ir.Expr) -> list[ir.Var]:
        return [var for var in variables_of(extent) if var not in self._known]

    def _solve(self, place: _Place) -> bool:
        """Find a variable, the only one of an extent that is not known yet."""
        unknown = self._unknown(place.value)
        solution = linear_in(place.value, unknown[0]) if len(unknown) == 1 else None
        if solution is None:
            return False
        coefficient, rest = solution
        given = tirx.Cast(str(unknown[0].ty.dtype), self._given[place])
        distance = given - rest if coefficient > 0 else rest - given
        value = Analyzer().simplify(tirx.floordiv(distance, abs(coefficient)))
        self.statements.append(tirx.Bind(unknown[0], value))
        self._known.add(unknown[0])
        return True

    def _check(self, place: _Place) -> tirx.Stmt:
        unknown = self._unknown(place.value)
        if unknown:
            raise InvalidOperand(
                f"{describe(place.buffer)}: axis {place.axis} does not tell what {unknown[0].name} is",
                help=f"use {unknown[0].name} as an extent by itself, or pass it as a parameter",
            )
        message = ir.StringImm(f"{place} must be {place.value}")
        value: Any = place.value
        holds = value.equal(self._given[place])
        return tirx.AssertStmt(holds, ir.StringImm("ValueError"), [message])

    def as_given(self, buffer: ir.Var) -> ir.Var:
        """The parameter by whose extents and strides TVM can bind the variables."""
        places = _places(buffer)
        items: list[Any] = [self._given[p] if p in self._given else _typed(p) for p in places]
        if all(item.same_as(place.value) for item, place in zip(items, places, strict=True)):
            return buffer
        rank = len(buffer.ty.shape)
        return retyped(buffer, shape=items[:rank], strides=items[rank:])


def _typed(place: _Place) -> ir.Expr:
    """A constant in the dtype in which TVM reads it; what TVM binds as it is."""
    known = constant(place.value)
    is_other = known is not None and str(place.value.ty.dtype) != place.dtype
    return tirx.const(known, place.dtype) if is_other else place.value
