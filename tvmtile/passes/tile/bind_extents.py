"""BindExtents: bind dynamic extents that parameters have in expressions only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, tirx
from tvm.sym import Analyzer

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import InvalidOperand
from tvmtile.ir.extents import linear_in
from tvmtile.ir.operands import describe
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import seq, variables_of
from tvmtile.ir.types import Index


@prim_func_pass("BindExtents")
def BindExtents(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Solve the parameters' shapes for dynamic extents that are no extent by themselves.

    TVM binds a variable that is an extent, a stride or a parameter by itself. Of the others, one that
    occurs in a linear expression is what the argument's extent says it is; where no whole number
    fits, the call is an error.
    """
    solver = _Solver(func.params)
    if not solver.given:
        return func
    views: list[tirx.Stmt] = []
    params = []
    for param in func.params:
        shape = solver.shape_of(param) if is_buffer_var(param) else None
        params.append(param if shape is None else _with_shape(param, shape))
        if shape is not None:
            views.append(tirx.DeclBuffer(param, data=params[-1].data))
    body = seq([*solver.statements, *views, func.body])
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs, func.span)


class _Solver:
    """Solves one extent after the other, until there is nothing left to find.

    Attributes
    ----------
    given : dict of (buffer, axis) to Var
        A variable in place of each extent that holds what TVM does not bind.
    statements : list of Stmt
        What binds the variables found, and checks the extents that hold them.
    """

    def __init__(self, params: Sequence[ir.Var]) -> None:
        self._known = _bound_by_tvm(params)
        self.given = {
            (param, axis): tirx.Var(f"{param.name}_{axis}", str(extent.ty.dtype))
            for param in params
            if is_buffer_var(param)
            for axis, extent in enumerate(param.ty.shape)
            if self._unknown(extent)
        }
        self.statements: list[tirx.Stmt] = []
        while any(self._solve(*place) for place in self.given):
            pass
        self.statements += [self._check(*place) for place in self.given]

    def _unknown(self, extent: ir.Expr) -> list[ir.Var]:
        return [var for var in variables_of(extent) if var not in self._known]

    def _solve(self, buffer: ir.Var, axis: int) -> bool:
        """Find a variable, the only one of an extent that is not known yet."""
        extent, given = buffer.ty.shape[axis], self.given[buffer, axis]
        unknown = self._unknown(extent)
        solution = linear_in(extent, unknown[0]) if len(unknown) == 1 else None
        if solution is None:
            return False
        coefficient, rest = solution
        distance = given - rest if coefficient > 0 else rest - given
        value = Analyzer().simplify(tirx.floordiv(distance, abs(coefficient)))
        self.statements.append(tirx.Bind(unknown[0], value))
        self._known.add(unknown[0])
        return True

    def _check(self, buffer: ir.Var, axis: int) -> tirx.Stmt:
        extent = buffer.ty.shape[axis]
        unknown = self._unknown(extent)
        if unknown:
            raise InvalidOperand(
                f"{describe(buffer)}: axis {axis} does not tell what {unknown[0].name} is",
                help=f"use {unknown[0].name} as an extent by itself, or pass it as a parameter",
            )
        message = ir.StringImm(f"axis {axis} of {buffer.name} must be {extent}")
        condition = extent.equal(self.given[buffer, axis])
        return tirx.AssertStmt(condition, ir.StringImm("ValueError"), [message])

    def shape_of(self, buffer: ir.Var) -> list[Any] | None:
        """The extents by which TVM can bind the variables; None where they are the buffer's own."""
        if not any(owner.same_as(buffer) for owner, _ in self.given):
            return None
        return [self.given.get((buffer, i), extent) for i, extent in enumerate(buffer.ty.shape)]


def _bound_by_tvm(params: Sequence[ir.Var]) -> set[ir.Var]:
    known: set[ir.Var] = set()
    for param in params:
        items = [*param.ty.shape, *param.ty.strides] if is_buffer_var(param) else [param]
        known.update(item for item in items if isinstance(item, ir.Var))
    return known


def _with_shape(buffer: ir.Var, shape: Sequence[Index]) -> ir.Var:
    ty = buffer.ty
    return tirx.decl_buffer(
        shape,
        str(ty.dtype),
        name=buffer.name,
        strides=ty.strides,
        scope=ty.storage_scope,
        data_alignment=ty.data_alignment,
        span=buffer.span,
    )
