"""LowerAsyncWork: issues, signals and waits of asynchronous work become instructions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm_ffi
from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import Replacement, buffer_of, nodes_in
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.conflicts.symbolic import NotSeparable, evaluate
from tvmtile.analysis.effects import effects_of
from tvmtile.analysis.forward import Forward
from tvmtile.codegen.warpgroup_products import instructions_of
from tvmtile.instructions.ptx import ptx
from tvmtile.ir.asynchronous import (
    Issue,
    Wait,
    issued,
    kind_of,
    names_token,
    product_of,
    signalled,
    waited,
)
from tvmtile.ir.calls import takes_address
from tvmtile.ir.kernels import Launch, flattened, with_kernels, with_launch_body, without
from tvmtile.ir.operands import constant
from tvmtile.ir.operators import operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import contains, mentions, seq, substitute
from tvmtile.ir.scoped_rewriter import ScopedRewriter
from tvmtile.ir.threads import ALL_LANES, WARP_SIZE
from tvmtile.passes.gpu.async_fences import fenced_products, product_in


@prim_func_pass(
    "LowerAsyncWork",
    requires=(Property.BARRIERS_INSERTED,),
    establishes=(Property.NO_ASYNC_TOKENS,),
)
def LowerAsyncWork(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Lower issues, signals and waits to `cp.async` and its groups.

    A thread's groups complete in the order in which it has committed them, whatever their tokens. So a
    wait for a batch leaves the groups that were committed after it on every path that leads there; of
    waits in a row the strictest stands for all.

    Tokens on which nothing is issued are neither signalled nor waited for: SchedulePipelines gives one
    to all copies that run ahead, and whether their elements can be copied asynchronously is known after
    they have been shared out over the threads.

    Where a warpgroup's part of a tile begins is computed from the index of a warp's first thread, which
    the others get from it: so ptxas knows that it is the same in all of them, and computes it once for
    the warp, beside what threads do. A branch that lets in whole warps to a product asks for the same
    index: where some threads of a warp might not come, ptxas computes nothing once for all.
    """
    return with_kernels(func, _lowered)


def _lowered(kernel: tirx.For) -> tirx.For:
    calls = nodes_in(kernel, ir.Call)
    if not any(map(names_token, calls)):
        return kernel
    kernel = _without_idle_tokens(kernel, calls)
    launch = Launch(kernel)
    has_whole_warps = launch.num_threads % WARP_SIZE == 0  # all lanes have to come to an exchange
    indices = [loop.loop_var for loop in launch.threads] if has_whole_warps else []
    firsts = {index: ir.Var(f"first_{index.name}", index.ty) for index in indices}
    lowered = _Instructions(kernel, firsts).rewrite(kernel)
    named = [
        tirx.Bind(first, _of_first_lane(index))
        for index, first in firsts.items()
        if mentions(lowered, first)
    ]
    return with_launch_body(lowered, seq([*named, Launch(lowered).body])) if named else lowered


def _without_idle_tokens(kernel: tirx.For, calls: Sequence[ir.Call]) -> tirx.For:
    used: set[str] = set()
    for call in calls:
        work, op = issued(call), operator_of(call)
        token = work.token if work is not None else op.effects().token if op is not None else None
        if token is not None:
            used.update((token, kind_of(token).name))

    def is_idle(stmt: tirx.Stmt) -> bool:
        awaited = waited(stmt)
        token = signalled(stmt) if awaited is None else awaited.token
        return token is not None and token not in used

    return without(kernel, is_idle) if contains(kernel, tirx.Evaluate, is_idle) else kernel


def _of_first_lane(value: ir.Expr) -> ir.Expr:
    """The value of a warp's first thread; all of its threads come."""
    lanes = tirx.const(ALL_LANES, "uint32")
    return T.tvm_warp_shuffle(lanes, value, 0, WARP_SIZE, WARP_SIZE)


class _Instructions(ScopedRewriter):
    """Writes instructions in place of tokens."""

    def __init__(self, kernel: tirx.For, firsts: dict[ir.Var, ir.Var]) -> None:
        super().__init__()
        launch = Launch(kernel)
        self._threads = np.arange(launch.num_threads)
        self._indices = launch.indices_of(self._threads)
        self._left = groups_left(kernel.body)
        self._fenced = fenced_products(launch)
        self._firsts = firsts
        self._root = Aliases(kernel).root
        self._with_words: set[tirx.Stmt] = set()

    def others(self) -> list[Replacement]:
        return [(tirx.SeqStmt, self._sequence)]

    def _sequence(self, node: tirx.SeqStmt) -> tirx.Stmt:
        statements = list(flattened(node))
        self._with_words |= self._sharing_registers(statements)
        return seq([self.mutate(child) for child in _merged(statements, self._left)])

    def _sharing_registers(self, statements: list[tirx.Stmt]) -> set[tirx.Stmt]:
        """The products whose A is registers that one before has read, and nothing wrote since."""
        found: set[tirx.Stmt] = set()
        read: list[ir.TensorLoad] = []
        if sum(product_in(stmt) is not None for stmt in statements) < 2:
            return found
        for stmt in statements:
            if read:
                written = {self._root(effect.root) for effect in effects_of(stmt) if effect.writes}
                read = [first for first in read if self._root(buffer_of(first)) not in written]
            product = product_in(stmt)
            if product is not None and not takes_address(product.a):
                if any(tvm_ffi.structural_equal(product.a, first) for first in read):
                    found.add(stmt)
                read.append(product.a)
        return found

    def visit_if(self, branch: tirx.IfThenElse) -> tirx.Stmt:
        lowered = super().visit_if(branch)
        if not isinstance(lowered, tirx.IfThenElse) or not self._lets_in_warps(branch):
            return lowered
        condition = substitute(lowered.condition, self._firsts)
        return tirx.IfThenElse(condition, lowered.then_case, lowered.else_case, branch.span)

    def _lets_in_warps(self, branch: tirx.IfThenElse) -> bool:
        """Tell whether whole warps take a branch, in which there is a product."""
        if not any(mentions(branch.condition, index) for index in self._firsts):
            return False
        if not contains(branch, ir.Call, lambda call: product_of(call) is not None):
            return False
        try:
            taken = evaluate(branch.condition, self._indices, lambda _: False, 0).numbers
        except NotSeparable:
            return False
        warps = np.broadcast_to(taken, self._threads.shape).reshape(-1, WARP_SIZE)
        return bool((warps == warps[:, :1]).all())

    def visit_evaluate(self, stmt: tirx.Evaluate) -> tirx.Stmt:
        if not names_token(stmt.value):
            return stmt
        token, awaited = signalled(stmt), waited(stmt)
        if awaited is not None:
            wait = ptx(kind_of(awaited.token).wait_group)
            return tirx.Evaluate(wait(self._left[stmt]))
        if token is not None:
            return tirx.Evaluate(ptx(kind_of(token).commit_group)())
        product = product_in(stmt)
        if product is not None:
            issue = instructions_of(
                product,
                self.analyzer,
                fenced=stmt in self._fenced,
                has_words=stmt in self._with_words,
            )
            return substitute(issue, self._firsts)  # it is the same in all threads of a warp
        work = issued(stmt.value)
        return stmt if work is None else tirx.Evaluate(_copy(work))


def _merged(statements: Any, left: dict[tirx.Stmt, int]) -> list[tirx.Stmt]:
    """Statements with the strictest of adjacent waits for work of a kind only."""
    result: list[tirx.Stmt] = []
    for stmt in statements:
        if result and _waits_alike(result[-1], stmt):
            result[-1] = min(result[-1], stmt, key=left.__getitem__)
        else:
            result.append(stmt)
    return result


def _waits_alike(one: tirx.Stmt, other: tirx.Stmt) -> bool:
    """Tell whether both wait by tokens of a kind; an instruction may wait for more than its token."""
    if not all(type(s) is tirx.Evaluate and names_token(s.value) for s in (one, other)):
        return False
    a, b = waited(one), waited(other)
    return a is not None and b is not None and kind_of(a.token) is kind_of(b.token)


def _copy(copy: Issue) -> ir.Expr:
    # What other blocks read too stays in L2; pieces of less than 16 bytes go through L1 as well.
    cache = "cg" if constant(copy.operands[2]) == 16 else "ca"
    return ptx(f"cp.async.{cache}.shared.global")(*copy.operands)


# How many groups each wait may leave -----------------------------------------------------------


_Ages = tuple[int, ...]
"""Of the signals of a token, the latest first: how many groups were committed since, at least."""
_State = Mapping[str, _Ages]


def groups_left(stmt: tirx.Stmt) -> dict[tirx.Stmt, int]:
    """The number of groups that each wait in a statement may leave in flight."""
    waits = _Waits()
    waits.follow(stmt, {})
    return waits.left


class _Waits(Forward[_State]):
    """The work in flight at waits, on all paths; a wait leaves no more than it may."""

    def __init__(self) -> None:
        super().__init__()
        self.left: dict[tirx.Stmt, int] = {}

    def changes(self, stmt: tirx.Stmt) -> bool:
        return signalled(stmt) is not None or waited(stmt) is not None

    def past(self, stmt: tirx.Stmt, state: _State) -> _State:
        token, awaited = signalled(stmt), waited(stmt)
        if awaited is not None:
            left = _left_by(awaited, state)
            self.left[stmt] = min(left, self.left.get(stmt, left))
        return state if token is None else _after_commit(token, state)

    def joined(self, states: list[_State]) -> _State:
        """The state on all paths; a token that one has not signalled demands nothing there."""
        result: dict[str, _Ages] = {}
        for state in states:
            for token, ages in state.items():
                known = result.get(token, ())
                both = tuple(map(min, known, ages))
                result[token] = both + (known[len(both) :] or ages[len(both) :])
        return result


def _after_commit(token: str, state: _State) -> _State:
    kind = kind_of(token)
    most = kind.max_behind
    older = {
        other: tuple(min(age + 1, most) for age in ages) if kind_of(other) is kind else ages
        for other, ages in state.items()
    }
    return {**older, token: (0, *older.get(token, ()))[: most + 1]}


def _left_by(awaited: Wait, state: _State) -> int:
    """The number of groups that a wait may leave: those after the batch that it waits for."""
    kind = kind_of(awaited.token)
    if awaited.token == kind.name:
        return min(awaited.behind, kind.max_behind)
    ages = state.get(awaited.token, ())
    return ages[awaited.behind] if awaited.behind < len(ages) else kind.max_behind
