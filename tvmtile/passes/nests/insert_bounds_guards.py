"""InsertBoundsGuards: accesses that may reach over the edge of a tensor get a guard."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import buffer_of, indices_of, is_buffer_var
from tvmtile.ir.calls import takes_address
from tvmtile.ir.extents import assume_extents_nonnegative
from tvmtile.ir.kernels import bound_target, is_kernel, is_parallel, with_body
from tvmtile.ir.operands import ends_of, origin_of
from tvmtile.ir.operators import TileOp, operator_of, operators_in, values_outside
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, has_effect, seq, statements_in, with_fresh_variables
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.scopes import is_global
from tvmtile.passes.nests.ranges import Index, NestBounds, within_axis


@prim_func_pass(
    "InsertBoundsGuards", requires=(Property.NO_TILE_OPERATORS,), establishes=(Property.IN_BOUNDS,)
)
def InsertBoundsGuards(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Make every access that may lie outside a tensor in global memory safe.

    Loads outside read as zero, or what `T.annotate_safe_value` says, lane by lane where they are of
    vectors; stores outside are not done. Accesses that the analyzer proves to lie
    inside stay as they are. A nest of elementwise loops gets two versions: where the whole nest lies
    inside, which is the case for all but the last tiles, the unguarded one runs. On GPUs, what stands
    before or after a loop that moves tiles itself runs rarely, and is only guarded: a second version
    of a pipeline's first copies and of its result would cost more to compile than it saves. LLVM
    vectorises what has no guards, so on CPUs all have two versions.
    """
    target = bound_target(func)
    on_cpu = target is not None and target.kind.name == "llvm"
    guard = _Guard(_tensors_of(func), _safe_values_of(func), on_cpu=on_cpu)
    assume_extents_nonnegative(guard.analyzer, func.params)
    return with_body(func, guard.rewrite(func.body))


_NOTHING = tirx.Evaluate(tirx.const(0, "int32"))


def _safe_values_of(func: tirx.PrimFunc) -> dict[ir.Var, ir.Expr]:
    """The values of reads outside of tensors, as `T.annotate_safe_value` gives them."""
    given = (values_outside(op).items() for op in operators_in(func.body))
    return dict(chain.from_iterable(given))


def _tensors_of(func: tirx.PrimFunc) -> set[ir.Var]:
    """The tensors in global memory: parameters, their views, and targets of pointers."""
    declared = map(buffer_of, statements_in(func.body, tirx.DeclBuffer, tirx.AllocBuffer))
    return {*filter(is_buffer_var, func.params), *filter(is_global, declared)}


class _Guard(ScopedRewriter):
    def __init__(
        self, tensors: set[ir.Var], outside: dict[ir.Var, ir.Expr], *, on_cpu: bool
    ) -> None:
        super().__init__()
        self._on_cpu = on_cpu
        self._tensors = tensors
        self._outside = outside
        self._in_kernel = False
        self._is_innermost = True  # no loop that moves tiles stands beside
        self._inside: list[Index] | None = None  # in a nest: what is known to lie inside

    # Loops: an elementwise nest is versioned as a whole ---------------------------------------

    def visit_for(self, loop: tirx.For) -> tirx.Stmt:
        if is_kernel(loop):
            self._in_kernel = True
            result = self._visit_body(loop)
            self._in_kernel = False
            return result
        if not self._in_kernel or self._inside is not None or loop.thread_binding is not None:
            return super().visit_for(loop)
        if not is_parallel(loop):
            return self._visit_body(loop)
        if not self._is_innermost:
            return self._visit_nest(loop, [])
        found = NestBounds(self._tensors, self.analyzer)
        found.rewrite(loop)
        if not found.conditions:
            return self._visit_nest(loop, found.inside)
        guarded = self._visit_nest(loop, [])
        if self._exclude_each_other(found.conditions):
            return guarded
        inside = tirx.all(*found.conditions)
        with self.assuming(inside):
            plain = self._visit_nest(loop, found.inside)
        return tirx.IfThenElse(inside, with_fresh_variables(plain), guarded)

    def _visit_nest(self, loop: tirx.For, inside: list[Index]) -> tirx.Stmt:
        self._inside = inside
        result = super().visit_for(loop)
        self._inside = None
        return result

    def _exclude_each_other(self, conditions: list[ir.Expr]) -> bool:
        """Tell whether conditions are known not to hold together: a tile is larger than its tensor."""
        with ExitStack() as stack:
            for condition in conditions:
                if self.analyzer.can_prove(tirx.Not(condition)):
                    return True
                stack.enter_context(self.assuming(condition))
        return False

    def _visit_body(self, loop: tirx.For) -> tirx.Stmt:
        outer = self._is_innermost
        self._is_innermost = self._on_cpu or not self._moves_tiles_in_loops(loop.body)
        result = super().visit_for(loop)
        self._is_innermost = outer
        return result

    def _moves_tiles_in_loops(self, body: tirx.Stmt) -> bool:
        """Tell whether a loop in a body has a nest in it that accesses a tensor."""

        def moves(nest: tirx.For) -> bool:
            return is_parallel(nest) and contains(nest.body, ir.Var, self._tensors.__contains__)

        def is_loop(loop: tirx.For) -> bool:
            is_serial = not is_parallel(loop) and loop.thread_binding is None
            return is_serial and contains(loop.body, tirx.For, moves)

        return contains(body, tirx.For, is_loop)

    # Single accesses ---------------------------------------------------------------------------

    def visit_load(self, node: ir.TensorLoad) -> ir.Expr:
        load = self.descend(node)
        buffer = buffer_of(load)
        names, lanes = self._guards(buffer, indices_of(load))
        if not lanes:
            return load
        outside = self._outside.get(buffer, tirx.const(0, str(buffer.ty.dtype)))
        values = []
        for indices, inside in lanes:
            value = tirx.BufferLoad(buffer, indices)
            values.append(value if inside is None else tirx.if_then_else(inside, value, outside))
        guarded = values[0] if len(lanes) == 1 else tirx.Shuffle(values, list(range(len(lanes))))
        for var, index in reversed(names):
            guarded = tirx.Let(var, index, guarded)
        return guarded

    def visit_store(self, node: tirx.BufferStore) -> tirx.Stmt:
        store = self.descend(node)
        buffer = buffer_of(store)
        names, lanes = self._guards(buffer, indices_of(store))
        if not lanes:
            return store
        values = [store.value]
        if len(lanes) > 1:
            vector = ir.Var("vector", store.value.ty)
            names.append((vector, store.value))
            values = [tirx.Shuffle([vector], [number]) for number in range(len(lanes))]
        statements: list[tirx.Stmt] = [tirx.Bind(var, value) for var, value in names]
        for value, (indices, inside) in zip(values, lanes, strict=True):
            stored = tirx.BufferStore(buffer, value, indices, span=store.span)
            statements.append(stored if inside is None else tirx.IfThenElse(inside, stored, None))
        return seq(statements)

    def _guards(self, buffer: ir.Var, indices: Sequence[ir.Expr]) -> tuple[list[Any], list[Any]]:
        """Names for indices with effects; and the indices of each lane, with what must hold for it.

        None of both, if the whole access certainly lies inside.
        """
        names, indices = _effects_once(indices)
        inside = self._condition(buffer, indices)
        if inside is None:
            return [], []
        *outer, last = indices
        if not isinstance(last, tirx.Ramp):
            return names, [(indices, inside)]
        lanes = ([*outer, last.base + lane * last.stride] for lane in range(int(last.lanes)))
        return names, [(lane, self._condition(buffer, lane)) for lane in lanes]

    def visit_evaluate(self, node: tirx.Evaluate) -> tirx.Stmt:
        op = operator_of(node)
        if op is None:
            return self.descend(node)
        if values_outside(op):
            return _NOTHING
        guarded = tirx.Evaluate(self._with_guarded_values(node.value, op), node.span)
        inside = self._places_inside(op)
        return guarded if inside is None else tirx.IfThenElse(inside, guarded, None)

    def visit_call(self, node: ir.Call) -> ir.Expr:
        op = operator_of(node)
        if op is None:
            return self._address(node) if _is_address(node) else self.descend(node)
        guarded = self._with_guarded_values(node, op)
        inside = self._places_inside(op)
        if inside is None:
            return guarded
        return tirx.if_then_else(inside, guarded, tirx.const(0, node.ty.dtype))

    def _address(self, node: ir.Call) -> ir.Call:
        """An address is not an access: its user knows what lies inside."""
        element = node.args[0]
        indices = [self.mutate(index) for index in indices_of(element)]
        place = tirx.BufferLoad(buffer_of(element), indices)
        return ir.Call(node.op, [place], attrs=node.attrs, span=node.span, ret_ty=node.ty)

    def _places_inside(self, op: TileOp) -> ir.Expr | None:
        """The condition that all elements that an operator names lie inside their tensors."""
        places = [*op.writes(), *op.reads()]
        found = [self._condition(buffer_of(place), origin_of(place)) for place in places]
        conditions = [condition for condition in found if condition is not None]
        return tirx.all(*conditions) if conditions else None

    def _with_guarded_values(self, call: ir.Call, op: TileOp) -> ir.Call:
        """The call with its values guarded; an operand names a place and is not a load."""
        places = [*op.writes(), *op.reads()]
        args = [
            arg if any(arg.same_as(place) for place in places) else self.mutate(arg)
            for arg in call.args
        ]
        return ir.Call(call.op, args, attrs=call.attrs, span=call.span, ret_ty=call.ty)

    def _condition(self, buffer: ir.Var, indices: Sequence[ir.Expr]) -> ir.Expr | None:
        """The condition that an element lies inside its tensor; None if it certainly does."""
        if not self._in_kernel or buffer not in self._tensors:
            return None
        unproven = [
            part
            for axis, (index, extent) in enumerate(zip(indices, buffer.ty.shape, strict=True))
            if not Index(buffer, axis, index).is_among(self._inside or [])
            for part in within_axis(*ends_of(index), extent)
            if not self.analyzer.can_prove(part)
        ]
        return tirx.all(*unproven) if unproven else None


def _is_address(node: ir.Call) -> bool:
    return takes_address(node) and isinstance(node.args[0], ir.TensorLoad)


def _effects_once(indices: Sequence[ir.Expr]) -> tuple[list[tuple[ir.Var, Any]], list[Any]]:
    """Variables for the indices with side effects, such as an atomic's former value.

    A guarded access has its indices twice, in the condition and in itself.
    """
    bindings: list[tuple[ir.Var, ir.Expr]] = []

    def once(index: ir.Expr) -> ir.Expr:
        if not has_effect(index):
            return index
        bindings.append((ir.Var("index", index.ty), index))
        return bindings[-1][0]

    return bindings, [once(index) for index in indices]
