"""Values that the threads of a block exchange, without shuffles: through shared arrays.

In: shuffles and reductions over threads. Out: every thread writes its value into an array with one
element a thread, all wait, and read those of others. SerializeThreads does so on CPUs, which have no
shuffles; ReducePartialWarps does on GPUs where the last warp is partial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, indices_of, mutated
from tvmtile.errors import NestingError
from tvmtile.frontend.dtypes import DType, cast
from tvmtile.ir.barriers import SERIAL, sync
from tvmtile.ir.calls import is_extern_call, is_if_then_else, op_name
from tvmtile.ir.kernels import Launch, with_kernels, with_launch_body
from tvmtile.ir.passes import prim_func_pass
from tvmtile.ir.rewriting import contains, for_loop, seq, substitute
from tvmtile.ir.spans import location_of
from tvmtile.ir.threads import WARP_SIZE

_REDUCE_SCOPE = "reduce_scope"


def exchange_values(launch: Launch) -> tirx.Stmt:
    """The body of a block without shuffles and reductions over threads.

    Raises
    ------
    NestingError
        If one of them stands where its operand would not be evaluated by every thread.
    """
    return _Exchange(launch, SERIAL).rewrite(launch.body)


@prim_func_pass("ReducePartialWarps")
def ReducePartialWarps(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Write reductions over the threads of a block whose last warp is partial as a CPU does them.

    Those of TVM take values of lanes that the warp does not have, or leave barriers of a warp to some.
    """

    def reduced(kernel: tirx.For) -> tirx.For:
        launch = Launch(kernel)
        if launch.num_threads % WARP_SIZE == 0:
            return kernel
        exchange = _Exchange(launch, "shared")
        return with_launch_body(kernel, exchange.without_reductions(launch.body))

    return with_kernels(func, reduced)


# The lane of its group that a thread reads, given its own lane, the shuffle's operand and the width of
# the groups; outside of the group there is none.
_SOURCES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "tirx.tvm_warp_shuffle": lambda _, source, width: tirx.floormod(source, width),
    "tirx.tvm_warp_shuffle_up": lambda lane, delta, _: lane - delta,
    "tirx.tvm_warp_shuffle_down": lambda lane, delta, _: lane + delta,
    "tirx.tvm_warp_shuffle_xor": lambda lane, mask, _: lane ^ mask,
}


_MATCH = "__match_any_sync"
_ACTIVE = "tirx.tvm_warp_activemask"


def _is_exchange(call: ir.Call) -> bool:
    return _is_match(call) or op_name(call) in _SOURCES or op_name(call) == _ACTIVE


def _is_match(call: ir.Call) -> bool:
    """Tell whether CUDA's function is called by name: which lanes have the value of a thread."""
    return is_extern_call(call) and str(call.args[0].value) == _MATCH


class _Exchange:
    def __init__(self, launch: Launch, scope: str) -> None:
        self._launch = launch
        self._scope = scope

    def without_reductions(self, body: tirx.Stmt) -> tirx.Stmt:
        return mutated(body, (tirx.AttrStmt, self._visit_attribute))

    def rewrite(self, body: tirx.Stmt) -> tirx.Stmt:
        leaves = (tirx.Bind, tirx.BufferStore, tirx.Evaluate, tirx.AssertStmt)
        return mutated(
            body,
            (leaves, lambda stmt, _: self._with_exchanges(stmt, lambda e: e)),
            (tirx.IfThenElse, self._visit_if),
            ((tirx.For, tirx.While), self._visit_loop),
            (tirx.AttrStmt, self._visit_attribute),
        )

    def _visit_if(self, branch: tirx.IfThenElse, mutator: Mutator) -> tirx.Stmt:
        then_case = mutator.mutate(branch.then_case)
        else_case = None if branch.else_case is None else mutator.mutate(branch.else_case)
        return self._with_exchanges(
            branch.condition,
            lambda condition: tirx.IfThenElse(condition, then_case, else_case, branch.span),
        )

    def _visit_loop(self, loop: tirx.For | tirx.While, mutator: Mutator) -> tirx.Stmt:
        decisions, place = (
            ((loop.min, loop.extent), "the bounds of a loop")
            if isinstance(loop, tirx.For)
            else (loop.condition, "the condition of a `while`")
        )
        if contains(decisions, ir.Call, _is_exchange):
            raise _misplaced(loop, place)
        return mutator.default_mutate(loop)

    def _visit_attribute(self, attribute: tirx.AttrStmt, mutator: Mutator) -> tirx.Stmt:
        if attribute.attr_key != _REDUCE_SCOPE:
            return mutator.default_mutate(attribute)
        assert isinstance(attribute.body, tirx.Evaluate), "a call of tvm_thread_allreduce"
        return self._reduction(attribute.node, attribute.body.value)

    # Shuffles ----------------------------------------------------------------------------------

    def _with_exchanges(self, node: ir.Node, rebuild: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
        if not contains(node, ir.Call, _is_exchange):
            return rebuild(node)
        before: list[tirx.Stmt] = []

        def visit(call: ir.Call, mutator: Mutator) -> ir.Expr:
            if is_if_then_else(call):
                if contains(list(call.args[1:]), ir.Call, _is_exchange):
                    raise _misplaced(
                        call if call.span else node, "one side of a conditional expression"
                    )
                return mutator.default_mutate(call)
            if not _is_exchange(call):
                return mutator.default_mutate(call)
            statements, result = self._exchanged(call, [mutator.mutate(arg) for arg in call.args])
            before.extend(statements)
            return result

        after = rebuild(mutated(node, (ir.Call, visit)))
        return seq([*before, after])

    def _exchanged(self, call: ir.Call, args: list[Any]) -> tuple[list[tirx.Stmt], ir.Expr]:
        """The statements before an exchange, and the value that each thread has of it."""
        if op_name(call) == _ACTIVE:
            return self._came(call.span)
        statements, lanes = self._published(args[2 if _is_match(call) else 1], call.span)
        if not _is_match(call):
            return statements, self._partner(op_name(call), lanes, *args[2:4])
        lanes_alike = self._equal_lanes(lanes) & cast(args[1], DType("uint32"))
        return statements, cast(lanes_alike, DType(call.ty))

    def _published(self, value: ir.Expr, span: ir.Span | None) -> tuple[list[tirx.Stmt], ir.Var]:
        """Every thread writes its value into an element of a new shared array, and waits."""
        lanes = tirx.decl_buffer(
            (self._launch.num_threads,), str(value.ty.dtype), name="lanes", scope="shared"
        )
        store = tirx.BufferStore(lanes, value, [self._launch.thread_index], span=span)
        return [tirx.AllocBuffer(lanes), store, self._wait(span)], lanes

    def _partner(self, name: str, lanes: ir.Var, operand: ir.Expr, width: ir.Expr) -> ir.Expr:
        thread = self._launch.thread_index
        lane = tirx.floormod(thread, width)
        source = _SOURCES[name](lane, cast(operand, DType("int32")), width)
        partner = thread - lane + source
        # In place of a lane outside of the group, or of the block, a thread reads its own.
        present = tirx.all(source >= 0, source < width, partner < self._launch.num_threads)
        return tirx.BufferLoad(lanes, [tirx.Select(present, partner, thread)])

    def _came(self, span: ir.Span | None) -> tuple[list[tirx.Stmt], ir.Expr]:
        """A bit for each lane of a thread's warp that comes here."""
        statements, lanes = self._published(tirx.const(1, "int32"), span)
        lane = tirx.Var("lane", "int32")
        place = tirx.min(self._first_of_warp() + lane, self._launch.num_threads - 1)
        # What the others have written before they left is no sign of them.
        cleared = for_loop(lane, WARP_SIZE, tirx.BufferStore(lanes, 0, [place], span=span))
        return [statements[0], cleared, self._wait(span), *statements[1:]], self._equal_lanes(lanes)

    def _first_of_warp(self) -> ir.Expr:
        thread = self._launch.thread_index
        return thread - tirx.floormod(thread, WARP_SIZE)

    def _equal_lanes(self, lanes: ir.Var) -> ir.Expr:
        """A bit for each lane of a thread's warp whose value is that of the thread."""
        first, last = self._first_of_warp(), self._launch.num_threads - 1
        own = tirx.BufferLoad(lanes, [self._launch.thread_index])
        found = tirx.const(0, "uint32")
        for lane in range(WARP_SIZE):
            other = tirx.BufferLoad(lanes, [tirx.min(first + lane, last)])
            same = tirx.all(first + lane <= last, other == own)
            bit = tirx.const(1 << lane, "uint32")
            found = found | tirx.Select(same, bit, tirx.const(0, "uint32"))
        return found

    def _wait(self, span: ir.Span | None) -> tirx.Evaluate:
        return tirx.Evaluate(sync(self._scope).value, span)

    # Reductions --------------------------------------------------------------------------------

    def _reduction(self, reducer: tirx.CommReducer, call: ir.Call) -> tirx.Stmt:
        """`tvm_thread_allreduce(size, values..., condition, results..., threads...)`."""
        count = len(reducer.result)
        values, condition = call.args[1 : 1 + count], call.args[1 + count]
        results = call.args[2 + count : 2 + 2 * count]
        axes = [axis for axis in call.args[2 + 2 * count :] if isinstance(axis, ir.Var)]
        statements: list[tirx.Stmt] = []
        lanes: list[ir.Var] = []
        for value, identity in zip(values, reducer.identity_element, strict=True):
            published, buffer = self._published(
                tirx.if_then_else(condition, value, identity), call.span
            )
            statements += published
            lanes.append(buffer)
        statements += [
            tirx.BufferStore(buffer_of(result), identity, indices_of(result))
            for result, identity in zip(results, reducer.identity_element, strict=True)
        ]
        statements.append(self._combination(reducer, lanes, results, axes))
        return seq(statements)

    def _combination(
        self,
        reducer: tirx.CommReducer,
        lanes: Sequence[ir.Var],
        results: Sequence[ir.TensorLoad],
        axes: Sequence[ir.Var],
    ) -> tirx.Stmt:
        others = {axis: tirx.Var(f"other_{axis.name}", "int32") for axis in axes}
        index = substitute(self._launch.thread_index, others)
        operands: dict[ir.Var, ir.Expr] = dict(zip(reducer.lhs, results, strict=True))
        operands |= {
            var: tirx.BufferLoad(buffer, [index])
            for var, buffer in zip(reducer.rhs, lanes, strict=True)
        }
        # All results are computed before the first one is stored: each may depend on all.
        combined = [
            (tirx.Var("combined", str(value.ty.dtype)), substitute(value, operands))
            for value in reducer.result
        ]
        body = seq(
            [
                *(tirx.Bind(var, value) for var, value in combined),
                *(
                    tirx.BufferStore(buffer_of(result), var, indices_of(result))
                    for result, (var, _) in zip(results, combined, strict=True)
                ),
            ]
        )
        for axis in axes:
            body = for_loop(others[axis], self._launch.extent_of(axis), body)
        return body


def _misplaced(node: ir.Node, place: str) -> NestingError:
    return NestingError(
        f"a value is exchanged between threads in {place}",
        help="exchange it in a statement of its own, `value = T.shfl_...(...)`, before",
        location=location_of(node),
    )
