"""PackFloats: floats of 4 bits lie in pairs in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import Replacement, buffer_of, indices_of, is_buffer_var, ranges_of
from tvmtile.analysis.nests import Nest
from tvmtile.errors import InvalidOperand, UnsupportedDtype
from tvmtile.ir.calls import takes_address
from tvmtile.ir.extents import linear_in
from tvmtile.ir.kernels import Launch, bound_target, flattened, is_kernel, is_parallel
from tvmtile.ir.operands import constant, describe, region
from tvmtile.ir.operators import TileOp, copied, operator_for, operator_of
from tvmtile.ir.packed import FLOAT4, has_float4, in_bytes, is_packed, params_in_bytes
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import (
    contains,
    mentions,
    replace_loop,
    seq,
    substitute,
    variables_of,
    with_fresh_variables,
)
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.scopes import is_shared
from tvmtile.ir.spans import first_location, location_of
from tvmtile.target import gpu

_BYTE = "uint8"
_LOW, _HIGH = 0x0F, 0xF0


@prim_func_pass("PackFloats", requires=(Property.REGIONS,))
def PackFloats(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Keep floats of 4 bits as bytes: two in one in memory, one in one in registers.

    A copy of whole bytes becomes one of bytes. Loops that store single elements take two of them an
    iteration, so that no byte is written by two threads; on a CPU those that load them do too, so that
    LLVM can vectorise.

    Raises
    ------
    UnsupportedDtype
        If a row of a tensor is no whole number of bytes, or an operator has no rule for such floats.
    InvalidOperand
        If two threads may store to one byte.
    """
    if not any(map(has_float4, (*func.params, *variables_of(func.body)))):
        return func
    params, values = params_in_bytes(func.params)
    target = bound_target(func)
    is_cpu = target is not None and gpu(target) is None
    body = _Pack(values, splits_loads=is_cpu).rewrite(func.body)
    return tirx.PrimFunc(params, body, func.ret_type, func.attrs, func.span)


class _Pack(ScopedRewriter):
    def __init__(self, values: dict[ir.Var, ir.Expr], splits_loads: bool) -> None:
        super().__init__()
        self._values = values
        self._splits_loads = splits_loads
        self._blocks: list[ir.Var] = []
        self._threads: list[ir.Var] = []

    def others(self) -> list[Replacement]:
        return [(ir.Var, self._variable), (tirx.DeclBuffer, self._view)]

    def _variable(self, var: ir.Var) -> Any:
        if var not in self._values and has_float4(var):
            self._values[var] = in_bytes(var)
        return self._values.get(var, var)

    def _view(self, node: tirx.DeclBuffer) -> Any:
        buffer = buffer_of(node)
        others = [var for var in _buffers_in(node.data) if has_float4(var) != has_float4(buffer)]
        if others and not is_packed(buffer if has_float4(buffer) else others[0]):
            raise UnsupportedDtype(
                f"{describe(buffer)} is a view of {describe(others[0])}, which is in registers",
                help=f"elements of {FLOAT4} have a byte each there; view shared memory instead",
            )
        return self.descend(node)

    # Loops ---------------------------------------------------------------------------------------

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        if is_kernel(loop):
            launch = Launch(loop)
            self._blocks = [block.loop_var for block in launch.blocks]
            self._threads = [thread.loop_var for thread in launch.threads]
        if is_parallel(loop):
            nest = Nest(loop)
            var = self._along_rows(nest)
            if var is not None:
                return self.mutate(self._in_pairs(nest, var))
        return super().visit_for(loop)

    def _along_rows(self, nest: Nest) -> ir.Var | None:
        """The variable whose neighbouring iterations store to one byte; None where there is none."""
        found = {
            var: access
            for access in nest.accesses
            if access.writes and is_packed(access.buffer)
            for var in nest.variables
            if not _is_even_in(access.indices[-1], var)
        }
        if not found:
            return self._along_loads(nest) if self._splits_loads else None
        (var, access), *others = found.items()
        place = linear_in(access.indices[-1], var)
        if others or place is None or place[0] != 1 or not self._is_even(place[1]):
            self._refuse_store(access.buffer, access.indices, nest.loops[0])
        return var

    def _along_loads(self, nest: Nest) -> ir.Var | None:
        """The variable whose neighbouring iterations load the two halves of a byte."""
        for access in nest.accesses:
            if not is_packed(access.buffer):
                continue
            for var, extent in zip(nest.variables, nest.extents, strict=True):
                place = linear_in(access.indices[-1], var)
                if place is not None and place[0] == 1 and extent is not None and extent % 2 == 0:
                    return var if self._is_even(place[1]) else None
        return None

    def _in_pairs(self, nest: Nest, var: ir.Var) -> tirx.Stmt:
        """The nest with two iterations of a variable in one."""
        pair = tirx.Var(var.name, str(var.ty.dtype))
        first, second = (
            with_fresh_variables(substitute(nest.body, {var: pair * 2 + which})) for which in (0, 1)
        )
        loops = {loop.loop_var: loop for loop in nest.loops}
        extent = loops[var].extent
        if not self._is_even(extent):
            body = seq([first, tirx.IfThenElse(pair * 2 + 1 < extent, second, None)])
        else:
            body = self._joined(first, second) or seq([first, second])
        for loop in reversed(nest.loops):
            if not loop.loop_var.same_as(var):
                body = replace_loop(loop, body=body)
                continue
            pairs = self.analyzer.simplify(tirx.floordiv(extent + 1, 2))
            body = replace_loop(loop, loop_var=pair, extent=pairs, body=body)
        return body

    def _joined(self, first: tirx.Stmt, second: tirx.Stmt) -> tirx.Stmt | None:
        """Two iterations that store each byte once; None where it is not known that they may."""
        halves: list[list[Any]] = [list(flattened(half)) for half in (first, second)]
        stored = [buffer_of(s) for s in halves[0] if _stores_half(s)]
        if _reads_any(first, stored) or not all(
            _stores_half(s) or not contains(s, tirx.BufferStore, _stores_half) for s in halves[0]
        ):
            return None
        statements: list[tirx.Stmt] = []
        low: dict[int, Any] = {}
        for place, statement in enumerate(halves[0]):
            if not _stores_half(statement):
                statements.append(statement)
                continue
            low[place] = _code(statement.value)
            if place < len(halves[0]) - 1:
                name = tirx.Var("low", _BYTE)
                statements.append(tirx.Bind(name, low[place]))
                low[place] = name
        for place, statement in enumerate(halves[1]):
            is_pair = place in low
            statements.append(
                self._byte_store(halves[0][place], low[place], statement) if is_pair else statement
            )
        return seq(statements)

    def _byte_store(
        self, first: tirx.BufferStore, low: ir.Expr, second: tirx.BufferStore
    ) -> tirx.Stmt:
        """The store of both halves of a byte, whose low one has a code already."""
        value = self._moved_byte(first.value, second.value)
        if value is None:
            value = low | (_code(second.value) << tirx.const(4, _BYTE))
        return tirx.BufferStore(
            self._variable(buffer_of(first)), value, self._place(indices_of(first)), second.span
        )

    def _moved_byte(self, low: Any, high: Any) -> Any:
        """The byte that two elements are, if they lie in one already."""
        if not all(isinstance(x, ir.TensorLoad) and is_packed(buffer_of(x)) for x in (low, high)):
            return None
        same = buffer_of(low).same_as(buffer_of(high)) and all(
            map(self.analyzer.can_prove_equal, indices_of(low)[:-1], indices_of(high)[:-1])
        )
        distance = indices_of(high)[-1] - indices_of(low)[-1]
        if not same or constant(distance) != 1 or not self._is_even(indices_of(low)[-1]):
            return None
        return tirx.BufferLoad(self._variable(buffer_of(low)), self._place(indices_of(low)))

    def _is_even(self, value: ir.Expr) -> bool:
        return self.analyzer.can_prove_equal(tirx.floormod(value, 2), 0)

    def _place(self, indices: Sequence[ir.Expr]) -> list[ir.Expr]:
        """The place of an element's byte."""
        *outer, last = indices
        return [*outer, self.analyzer.simplify(tirx.floordiv(last, 2))]

    # Elements --------------------------------------------------------------------------------------

    def visit_load(self, node: ir.TensorLoad) -> ir.Expr:
        if not has_float4(buffer_of(node)):
            return self.descend(node)
        self._refuse_vector(node)
        buffer, indices = (
            self._variable(buffer_of(node)),
            [self.mutate(i) for i in indices_of(node)],
        )
        if not is_packed(buffer_of(node)):
            return tirx.reinterpret(FLOAT4, tirx.BufferLoad(buffer, indices))
        byte = tirx.BufferLoad(buffer, self._place(indices))
        which = self._half(indices)
        if which is None:
            code = (byte >> _shift(indices)) & _byte(_LOW)
        else:
            code = byte >> _byte(4) if which else byte & _byte(_LOW)
        return tirx.reinterpret(FLOAT4, code)

    def visit_store(self, node: tirx.BufferStore) -> tirx.Stmt:
        if not has_float4(buffer_of(node)):
            return self.descend(node)
        self._refuse_vector(node)
        buffer, indices = (
            self._variable(buffer_of(node)),
            [self.mutate(i) for i in indices_of(node)],
        )
        code = self.mutate(_code(node.value))
        if not is_packed(buffer_of(node)):
            return tirx.BufferStore(buffer, code, indices, node.span)
        self._check_thread(node)
        place = self._place(indices)
        other, which = tirx.BufferLoad(buffer, place), self._half(indices)
        if which is None:
            shift = _shift(indices)
            value = (other & (_byte(_HIGH) >> shift)) | (code << shift)
        else:
            kept = other & _byte(_LOW if which else _HIGH)
            value = kept | (code << _byte(4) if which else code)
        return tirx.BufferStore(buffer, value, place, node.span)

    def _half(self, indices: Sequence[ir.Expr]) -> int | None:
        """The half of its byte that an element is; None where it is not known."""
        return constant(self.analyzer.simplify(tirx.floormod(indices[-1], 2)))

    def _check_thread(self, store: tirx.BufferStore) -> None:
        """Refuse an element whose byte another thread or block may be storing to."""
        others = self._threads if is_shared(buffer_of(store)) else [*self._threads, *self._blocks]
        index = self.analyzer.simplify(indices_of(store)[-1])
        if not all(_is_even_in(index, var) for var in others):
            self._refuse_store(buffer_of(store), indices_of(store), store)

    def _refuse_store(self, buffer: ir.Var, indices: Sequence[ir.Expr], node: tirx.Stmt) -> None:
        place = ", ".join(map(str, indices))
        raise InvalidOperand(
            f"{buffer.name}[{place}] {FLOAT4}: another thread may store to the other half of its byte",
            help="store rows in a loop `for j in T.Parallel(n)` to [..., first + j], whose first "
            "element is known to be even, or copy a tile",
            location=first_location(node),
        )

    def _refuse_vector(self, node: ir.TensorLoad | tirx.BufferStore) -> None:
        if isinstance(indices_of(node)[-1], tirx.Ramp):
            raise UnsupportedDtype(
                f"{describe(buffer_of(node))} is accessed by vectors",
                help="access its elements in a loop over T.vectorized",
                location=location_of(node),
            )

    # Operators -------------------------------------------------------------------------------------

    def visit_evaluate(self, node: tirx.Evaluate) -> tirx.Stmt:
        op = operator_of(node)
        if op is None or not op.is_tile:
            return self.descend(node)
        operands = [x for x in (*op.reads(), *op.writes()) if has_float4(buffer_of(x))]
        if not operands:
            return self.descend(node)
        moved = copied(op)
        if moved is not None and len({is_packed(buffer_of(side)) for side in moved}) == 1:
            sides = [self._region_in_bytes(side) for side in moved]
            if None not in sides:
                return self.descend(
                    tirx.Evaluate(operator_for("copy")(*sides).to_call(node.value.span))
                )
        loops = op.as_loops()
        if loops is None:
            self._refuse_operator(op, operands[0], node.value)
        return self.mutate(loops)

    def _region_in_bytes(self, side: ir.TensorRegion) -> ir.TensorRegion | None:
        """The bytes of a region; None where they are not whole."""
        origin, extents = [r.min for r in ranges_of(side)], [r.extent for r in ranges_of(side)]
        if is_packed(buffer_of(side)):
            if not (self._is_even(origin[-1]) and self._is_even(extents[-1])):
                return None
            origin, extents = self._place(origin), self._place(extents)
        return region(self._variable(buffer_of(side)), origin, extents)

    def visit_call(self, node: ir.Call) -> ir.Expr:
        op = operator_of(node)
        if op is not None and not op.is_tile:
            operands = [x for x in (*op.reads(), *op.writes()) if has_float4(buffer_of(x))]
            if operands:
                self._refuse_operator(op, operands[0], node)
        if takes_address(node) and any(map(has_float4, variables_of(node))):
            raise UnsupportedDtype(
                f"{node}: an element of 4 bits has no address",
                help="view the memory as uint8, `T.view(tile, shape, 'uint8')`",
                location=location_of(node),
            )
        return self.descend(node)

    def _refuse_operator(self, op: TileOp, operand: ir.Expr, call: ir.Call) -> None:
        raise UnsupportedDtype(
            f"{op.name}: {describe(operand)} has elements of 4 bits",
            help="copy it to a tile of float16 or float32 first, which T.copy converts",
            location=location_of(call),
        )


def _code(value: ir.Expr) -> ir.Expr:
    return tirx.reinterpret(_BYTE, value)


def _byte(value: int) -> ir.Expr:
    return tirx.const(value, _BYTE)


def _shift(indices: Sequence[ir.Expr]) -> ir.Expr:
    """The place of an element in its byte."""
    return tirx.Cast(_BYTE, tirx.floormod(indices[-1], 2) * 4)


def _stores_half(statement: tirx.Stmt) -> bool:
    return isinstance(statement, tirx.BufferStore) and is_packed(buffer_of(statement))


def _reads_any(statement: tirx.Stmt, buffers: list[ir.Var]) -> bool:
    return contains(
        statement, ir.TensorLoad, lambda load: any(map(buffer_of(load).same_as, buffers))
    )


def _buffers_in(node: ir.Node) -> list[ir.Var]:
    return [var for var in variables_of(node) if is_buffer_var(var)]


def _is_even_in(index: ir.Expr, var: ir.Var) -> bool:
    """Tell whether neighbouring values of a variable lead to elements of different bytes."""
    if not mentions(index, var):
        return True
    linear = linear_in(index, var)
    return linear is not None and linear[0] % 2 == 0
