"""LowerAsyncWork: issues, signals and waits of asynchronous work become instructions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import ir, tirx
from tvm.tirx.script import builder as T

from tvmtile._tvm import Replacement
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.comers import Comers, Condition
from tvmtile.analysis.forward import Forward
from tvmtile.analysis.uses import uses_in
from tvmtile.codegen.warpgroup_products import instructions_of
from tvmtile.instructions.ptx import ptx
from tvmtile.ir.asynchronous import (
    Issue,
    Product,
    Wait,
    issued,
    kind_of,
    names_token,
    product_of,
    signalled,
    waited,
)
from tvmtile.ir.kernels import Launch, flattened, statements_of, with_kernels, with_launch_body
from tvmtile.ir.operands import constant
from tvmtile.ir.operators import operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import ScopedRewriter, contains, mentions, seq, substitute
from tvmtile.ir.scopes import is_private, is_shared
from tvmtile.ir.threads import ALL_LANES, WARP_SIZE

__all__ = ["LowerAsyncWork"]


@prim_func_pass(
    "LowerAsyncWork", requires=(Property.ORDERED,), establishes=(Property.NO_ASYNC_TOKENS,)
)
def LowerAsyncWork(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Lower issues, signals and waits to `cp.async` and its groups.

    A thread's groups complete in the order in which it has committed them, whatever their tokens. So a
    wait for a batch leaves the groups that were committed after it on every path that leads there; of
    waits in a row the strictest stands for all.

    Where a warpgroup's part of a tile begins is computed from the index of a warp's first thread, which
    the others get from it: so ptxas knows that it is the same in all of them, and computes it once for
    the warp, beside what threads do. A branch that lets in whole warps to a product asks for the same
    index: where some threads of a warp might not come, ptxas computes nothing once for all.

    Before
    ------
    ```
    @T.prim_func
    def main(A: T.Buffer((5, 16), "int8"), C: T.Buffer((4, 16), "int8")):
        for bx in T.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for tx in T.thread_binding(1, thread="threadIdx.x"):
                tile = T.alloc_buffer((2, 16), "int8", scope="shared.dyn")
                T.tile.async_issue(
                    "cp.async/1", T.address_of(tile[0, 0]), T.address_of(A[0, 0]), 16
                )
                T.tile.async_signal("cp.async/1")
                for k in range(4):
                    T.tile.async_issue(
                        "cp.async/1",
                        T.address_of(tile[(k + 1) % 2, 0]),
                        T.address_of(A[k + 1, 0]),
                        16,
                    )
                    T.tile.async_signal("cp.async/1")
                    T.tile.async_wait("cp.async/1", 1)
                    C[k, 0] = tile[k % 2, 0]
    ```

    After
    -----
    ```
                tile = T.alloc_buffer((2, 16), "int8", scope="shared.dyn")
                T.ptx.cp(
                    T.cuda.cvta_generic_to_shared(T.address_of(tile[0, 0])),
                    T.address_of(A[0, 0]),
                    16,
                    "async", "cg", "shared", "global", "", "", "",
                )
                T.ptx.cp("async", "commit_group", "")
                for k in range(4):
                    T.ptx.cp(
                        T.cuda.cvta_generic_to_shared(T.address_of(tile[(k + 1) % 2, 0])),
                        T.address_of(A[k + 1, 0]),
                        16,
                        "async", "cg", "shared", "global", "", "", "",
                    )
                    T.ptx.cp("async", "commit_group", "")
                    T.ptx.cp(1, "async", "wait_group", "")
                    C[k, 0] = tile[k % 2, 0]
    ```
    """
    return with_kernels(func, _lowered)


def _lowered(kernel: tirx.For) -> tirx.For:
    waits, fences = _Waits(), _Fences(kernel)
    launch = Launch(kernel)
    waits.follow(kernel.body, {})
    fences.follow(launch.body, frozenset())  # a block's and a thread's loop have one iteration
    has_whole_warps = launch.num_threads % WARP_SIZE == 0  # all lanes have to come to an exchange
    indices = [loop.loop_var for loop in launch.threads] if has_whole_warps else []
    firsts = {index: ir.Var(f"first_{index.name}", index.ty) for index in indices}
    lowered = _Instructions(launch, waits.left, fences.needed, firsts).rewrite(kernel)
    named = [
        tirx.Bind(first, _of_first_lane(index))
        for index, first in firsts.items()
        if mentions(lowered, first)
    ]
    return with_launch_body(lowered, seq([*named, Launch(lowered).body])) if named else lowered


def _of_first_lane(value: ir.Expr) -> ir.Expr:
    """What a warp's first thread has; all of its threads come."""
    lanes = tirx.const(ALL_LANES, "uint32")
    return T.tvm_warp_shuffle(lanes, value, 0, WARP_SIZE, WARP_SIZE)


# How many groups a wait leaves -------------------------------------------------------------------

_Ages = tuple[int, ...]
"""Of the signals of a token, the latest first: how many groups were committed since, at least."""
_State = Mapping[str, _Ages]


class _Waits(Forward[_State]):
    """What is in flight at waits, on all paths; a wait leaves no more than it may."""

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
        return _joined(states)


def _after_commit(token: str, state: _State) -> _State:
    kind = kind_of(token)
    most = kind.max_behind
    older = {
        other: tuple(min(age + 1, most) for age in ages) if kind_of(other) is kind else ages
        for other, ages in state.items()
    }
    return {**older, token: (0, *older.get(token, ()))[: most + 1]}


def _joined(states: list[_State]) -> _State:
    """What holds on all paths; a token that one has not signalled demands nothing there."""
    result: dict[str, _Ages] = {}
    for state in states:
        for token, ages in state.items():
            known = result.get(token, ())
            both = tuple(map(min, known, ages))
            result[token] = both + (known[len(both) :] or ages[len(both) :])
    return result


def _left_by(awaited: Wait, state: _State) -> int:
    """How many groups a wait may leave: those after the batch that it waits for."""
    kind = kind_of(awaited.token)
    if awaited.token == kind.name:
        return min(awaited.behind, kind.max_behind)
    ages = state.get(awaited.token, ())
    return ages[awaited.behind] if awaited.behind < len(ages) else kind.max_behind


# Which products need a fence -----------------------------------------------------------------------


_Path = tuple[int, ...]
"""The branches around a statement, outer ones first."""


class _Fences(Forward[frozenset[ir.Var]]):
    """Products whose operands threads may have written since the last fence.

    A matrix unit reads shared memory by another way than threads write it. The state is the tiles that
    they have written since. What is written in a branch beside the product's may be written at any
    time, by other threads: these may have a fence of their own behind it, before they do anything that
    could let the product's threads go on.
    """

    def __init__(self, kernel: tirx.For) -> None:
        super().__init__()
        self.needed: set[tirx.Stmt] = set()
        self._root = Aliases(kernel.body).root
        self._products: dict[tirx.Stmt, _Path] = {}
        self._writes: dict[tirx.Stmt, set[ir.Var]] = {}
        self._places: dict[ir.Var, set[_Path]] = {}
        self._branches = 0
        self._unfenced: list[tuple[ir.Var, _Path]] = []
        self._note(kernel.body, ())
        self._let_go()

    def _note(self, stmt: tirx.Stmt, path: _Path) -> None:
        """Find products and what is written, with the branches around them."""
        inside = statements_of(stmt)
        for each in inside:
            self._branches += 1
            in_branch = isinstance(stmt, tirx.IfThenElse)
            self._note(each, (*path, self._branches) if in_branch else path)
        if isinstance(stmt, tirx.For | tirx.While) and contains(stmt, tirx.Evaluate, _lets_go):
            self._let_go()  # in the next iteration
        if inside or (isinstance(stmt, tirx.BufferStore) and is_private(stmt.buffer)):
            return
        if _product_in(stmt) is not None:
            self._products[stmt] = path
            return
        uses = [use for use in uses_in(stmt) if use.writes and use.completes_on is None]
        self._writes[stmt] = {root for u in uses if is_shared(root := self._root(u.buffer))}
        self._unfenced += [(tile, path) for tile in self._writes[stmt]]
        if _is_proxy_fence(stmt):
            self._unfenced = [each for each in self._unfenced if each[1][: len(path)] != path]
        elif isinstance(stmt, tirx.Evaluate) and _lets_go(stmt):
            self._let_go()

    def _let_go(self) -> None:
        """Note the writes that no fence has followed when others may go on."""
        for tile, path in self._unfenced:
            self._places.setdefault(tile, set()).add(path)
        self._unfenced = []

    def changes(self, stmt: tirx.Stmt) -> bool:
        return stmt in self._products or bool(self._writes.get(stmt))

    def past(self, stmt: tirx.Stmt, state: frozenset[ir.Var]) -> frozenset[ir.Var]:
        product = _product_in(stmt)
        if product is None:
            return state | self._writes.get(stmt, set())
        operands = {self._root(address.args[0].source) for address, *_ in product.matrices}
        beside = any(self._is_beside(stmt, tile) for tile in operands)
        if state.isdisjoint(operands) and not beside:
            return state
        self.needed.add(stmt)
        return frozenset()

    def joined(self, states: list[frozenset[ir.Var]]) -> frozenset[ir.Var]:
        return frozenset().union(*states)

    def _is_beside(self, product: tirx.Stmt, tile: ir.Var) -> bool:
        """Tell whether a tile is written in another branch than those around a product."""
        own = self._products[product]
        places = self._places.get(tile, set())
        return any(own != p[: len(own)] and p != own[: len(p)] for p in places)


def _is_proxy_fence(stmt: tirx.Stmt) -> bool:
    op = operator_of(stmt.value) if isinstance(stmt, tirx.Evaluate) else None
    return op is not None and op.role == "proxy fence"


def _lets_go(stmt: tirx.Evaluate) -> bool:
    """Tell whether other threads may go on by what a statement does."""
    return constant(stmt.value) is None and not _is_proxy_fence(stmt)


def _product_in(stmt: tirx.Stmt) -> Product | None:
    return product_of(stmt.value) if isinstance(stmt, tirx.Evaluate) else None


# Instructions ------------------------------------------------------------------------------------


class _Instructions(ScopedRewriter):
    """Writes instructions in place of tokens."""

    def __init__(
        self,
        launch: Launch,
        left: dict[tirx.Stmt, int],
        fenced: set[tirx.Stmt],
        firsts: dict[ir.Var, ir.Var],
    ) -> None:
        super().__init__()
        self._comers = Comers(launch)
        self._left = left
        self._fenced = fenced
        self._firsts = firsts

    def others(self) -> list[Replacement]:
        return [(tirx.SeqStmt, self._sequence)]

    def _sequence(self, node: tirx.SeqStmt) -> tirx.Stmt:
        return seq([self.mutate(child) for child in _merged(flattened(node), self._left)])

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
        condition = Condition(branch.condition, self._comers)
        warps = condition.taken.reshape(-1, WARP_SIZE)
        if condition.others or (warps != warps[:, :1]).any():
            return False
        return contains(branch, ir.Call, lambda call: product_of(call) is not None)

    def visit_evaluate(self, stmt: tirx.Evaluate) -> tirx.Stmt:
        if not names_token(stmt.value):
            return stmt
        token, awaited = signalled(stmt), waited(stmt)
        if awaited is not None:
            wait = ptx(kind_of(awaited.token).wait_group)
            return tirx.Evaluate(wait(self._left[stmt]))
        if token is not None:
            return tirx.Evaluate(ptx(kind_of(token).commit_group)())
        product = _product_in(stmt)
        if product is not None:
            issue = instructions_of(product, self.analyzer, fenced=stmt in self._fenced)
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
