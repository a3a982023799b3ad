"""Fences between what threads do with shared memory and asynchronous work, which goes another way."""

from __future__ import annotations

import itertools

from tvm import ir, tirx

from tvmtile._tvm import Mutator, buffer_of, mutated
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.effects import Effect, effects_in_memory
from tvmtile.analysis.forward import Forward
from tvmtile.ir.annotations import BARRIER_ID
from tvmtile.ir.asynchronous import CP_ASYNC, Product, kind_of, product_of
from tvmtile.ir.barriers import attributes_of, is_barrier, is_cluster_barrier, scope_of
from tvmtile.ir.kernels import Launch, expressions_of, flattened, statements_of, with_kernels
from tvmtile.ir.operands import constant, literal
from tvmtile.ir.operators import operator_for, operator_of
from tvmtile.ir.passes import Property, prim_func_pass
from tvmtile.ir.rewriting import seq
from tvmtile.ir.scopes import is_private, is_shared

_Path = tuple[object, ...]
"""The branches around a statement, outer ones first, and which side of each it is on."""


@prim_func_pass("FenceLoads", requires=(Property.BARRIERS_INSERTED,))
def FenceLoads(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Put a fence between what threads do with a shared tile and the bulk copy that fills it next.

    Bulk copies write shared memory by another way than threads read and write it: barriers order the
    threads, and a proxy fence behind what they did orders the two ways (PTX ISA, "Async proxy"). It
    stands in front of the copy, where the thread that begins it has been at the barriers, too; and in
    front of an arrival at an mbarrier, by which another thread may learn that the tile is free. On an
    H200 such arrivals have overtaken loads that stood behind many atomic additions. Where one thread
    arrives for its warp, all threads of the warp have the fence, in front of their barrier.

    So have threads that come to a numbered barrier in a branch, if others come to it in another one,
    and all at a barrier of a cluster, if copies fill tiles of its other blocks. Products of warpgroups
    read by the way that the copies write: they need none.
    """
    return with_kernels(func, _fenced)


def _fenced(kernel: tirx.For) -> tirx.For:
    fences = _LoadFences(Launch(kernel).body)
    if not fences.filled:
        return kernel
    fences.follow(fences.body, frozenset())  # a block's and a thread's loop have one iteration

    def visit(stmt: tirx.Stmt, mutator: Mutator) -> tirx.Stmt:
        rest = mutator.default_mutate(stmt)
        return seq([_fence(), rest]) if stmt in fences.needed else rest

    return mutated(kernel, (tirx.Evaluate, visit), (tirx.IfThenElse, visit))


def _fence() -> tirx.Stmt:
    return tirx.Evaluate(operator_for("proxy fence")().to_call())


class _LoadFences(Forward[frozenset[ir.Var]]):
    """The statements in front of which a fence has to stand.

    The state is the tiles, of those that bulk copies fill, that the thread has used since its last
    fence.
    """

    def __init__(self, body: tirx.Stmt) -> None:
        super().__init__()
        self.body = body
        self.needed: set[tirx.Stmt] = set()
        self.filled: set[ir.Var] = set()
        self._root = Aliases(body).root
        self._fills_others = False
        self._used: dict[ir.Node, frozenset[ir.Var]] = {}
        self._warp_barriers: dict[tirx.Stmt, tirx.Stmt] = {}
        self._barriers: dict[object, set[_Path]] = {}
        self._note(body, ())
        self._numbers = {
            number
            for number, paths in self._barriers.items()
            if any(itertools.starmap(_differ, itertools.combinations(paths, 2)))
        }
        """The numbers of barriers that stand in two branches; None if one is not known."""

    def _note(self, stmt: tirx.Stmt, path: _Path) -> None:
        """Find bulk copies and barriers, with the branches around them."""
        inside = statements_of(stmt)
        if type(stmt) is tirx.SeqStmt:
            inside = list(flattened(stmt))
            for one, following in itertools.pairwise(inside):
                if is_barrier(one) and scope_of(one) == "warp":
                    self._warp_barriers[following] = one
        is_branch = type(stmt) is tirx.IfThenElse
        for side, child in enumerate(inside):
            self._note(child, (*path, (stmt, side)) if is_branch else path)
        if inside:
            return
        for load in filter(_is_load, effects_in_memory(stmt)):
            self.filled.add(self._root(load.buffer))
            self._fills_others |= load.ranks is not None
        if is_barrier(stmt) and BARRIER_ID in attributes_of(stmt):
            self._barriers.setdefault(_number_of(stmt), set()).add(path)

    def changes(self, stmt: tirx.Stmt) -> bool:
        if statements_of(stmt):
            return any(map(self._used_by, expressions_of(stmt)))
        fills = any(map(_is_load, effects_in_memory(stmt)))
        return fills or is_proxy_fence(stmt) or self._hands_over(stmt) or bool(self._used_by(stmt))

    def follow(self, stmt: tirx.Stmt, state: frozenset[ir.Var]) -> frozenset[ir.Var]:
        if self._hands_over(_alone(stmt)) and state:
            self.needed.add(self._warp_barriers.get(stmt, stmt))
            state = frozenset()
        for each in expressions_of(stmt):
            state |= self._used_by(each)
        return super().follow(stmt, state)

    def past(self, stmt: tirx.Stmt, state: frozenset[ir.Var]) -> frozenset[ir.Var]:
        if is_proxy_fence(stmt):
            return frozenset()
        if any(
            _is_load(use) and self._root(use.buffer) in state for use in effects_in_memory(stmt)
        ):
            self.needed.add(stmt)
            state = frozenset()
        return state | self._used_by(stmt)

    def joined(self, states: list[frozenset[ir.Var]]) -> frozenset[ir.Var]:
        return frozenset().union(*states)

    def _used_by(self, node: ir.Node) -> frozenset[ir.Var]:
        """The tiles that threads use in a statement that holds no others, or in an expression."""
        if node not in self._used:
            uses = (use for use in effects_in_memory(node) if _is_by_threads(use))
            self._used[node] = frozenset(map(self._root, (use.buffer for use in uses)))
            self._used[node] &= self.filled
        return self._used[node]

    def _hands_over(self, stmt: tirx.Stmt) -> bool:
        """Tell whether threads that do not come here may learn here that a tile is free."""
        op = operator_of(stmt) if type(stmt) is tirx.Evaluate else None
        if op is not None:
            return op.effects().arrives_at is not None
        if is_cluster_barrier(stmt):
            return self._fills_others
        if not is_barrier(stmt) or BARRIER_ID not in attributes_of(stmt):
            return False
        return _number_of(stmt) in self._numbers


def _is_load(use: Effect) -> bool:
    """Tell whether a bulk copy fills what is used; of its mbarrier it says the same."""
    mbarrier = use.completes_on
    return use.writes and mbarrier is not None and not buffer_of(mbarrier).same_as(use.buffer)


def _is_by_threads(use: Effect) -> bool:
    is_copied = use.token is not None and kind_of(use.token) is CP_ASYNC
    return use.completes_on is None and (use.token is None or is_copied) and is_shared(use.buffer)


def _alone(stmt: tirx.Stmt) -> tirx.Stmt:
    """The statement in a branch that holds nothing else; other statements as they are."""
    if isinstance(stmt, tirx.IfThenElse) and stmt.else_case is None:
        return stmt.then_case
    return stmt


def _number_of(barrier: tirx.Evaluate) -> object:
    return constant(attributes_of(barrier)[BARRIER_ID])


def _differ(one: _Path, other: _Path) -> bool:
    """Tell whether two statements stand in branches beside each other."""
    return any(a != b for a, b in zip(one, other, strict=False))


# Products that read what threads have written -----------------------------------------------------


def fenced_products(launch: Launch) -> set[tirx.Stmt]:
    """The products of a kernel before which threads have to make their writes visible."""
    fences = _ProductFences(launch.body)
    fences.follow(launch.body, frozenset())  # a block's and a thread's loop have one iteration
    return fences.needed


class _ProductFences(Forward[frozenset[ir.Var]]):
    """Products whose operands threads may have written since the last fence.

    A matrix unit reads shared memory by another way than threads write it. The state is the tiles that
    they have written since. What is written in a branch beside the product's may be written at any
    time, by other threads: these may have a fence of their own behind it, before they do anything that
    could let the product's threads go on.
    """

    def __init__(self, body: tirx.Stmt) -> None:
        super().__init__()
        self.needed: set[tirx.Stmt] = set()
        self._root = Aliases(body).root
        self._products: dict[tirx.Stmt, _Path] = {}
        self._writes: dict[tirx.Stmt, set[ir.Var]] = {}
        self._places: dict[ir.Var, set[_Path]] = {}
        self._branches = 0
        self._unfenced: list[tuple[ir.Var, _Path]] = []
        self._note(body, ())
        self._let_go()

    def _note(self, stmt: tirx.Stmt, path: _Path) -> bool:
        """Find products and what is written, with the branches around them.

        Tell whether other threads may go on by anything in the statement.
        """
        inside = statements_of(stmt)
        if inside:
            lets_go = False
            for each in inside:
                self._branches += 1
                in_branch = type(stmt) is tirx.IfThenElse
                lets_go |= self._note(each, (*path, self._branches) if in_branch else path)
            if lets_go and isinstance(stmt, tirx.For | tirx.While):
                self._let_go()  # in the next iteration
            return lets_go
        if type(stmt) is tirx.BufferStore and is_private(buffer_of(stmt)):
            return False
        lets_go = type(stmt) is tirx.Evaluate and _lets_go(stmt)
        if product_in(stmt) is not None:
            self._products[stmt] = path
            return lets_go
        uses = [use for use in effects_in_memory(stmt) if use.writes and use.completes_on is None]
        self._writes[stmt] = {root for u in uses if is_shared(root := self._root(u.buffer))}
        self._unfenced += [(tile, path) for tile in self._writes[stmt]]
        if is_proxy_fence(stmt):
            self._unfenced = [each for each in self._unfenced if each[1][: len(path)] != path]
        elif lets_go:
            self._let_go()
        return lets_go

    def _let_go(self) -> None:
        """Note the writes that no fence has followed when others may go on."""
        for tile, path in self._unfenced:
            self._places.setdefault(tile, set()).add(path)
        self._unfenced = []

    def changes(self, stmt: tirx.Stmt) -> bool:
        return stmt in self._products or bool(self._writes.get(stmt))

    def past(self, stmt: tirx.Stmt, state: frozenset[ir.Var]) -> frozenset[ir.Var]:
        product = product_in(stmt)
        if product is None:
            return state | self._writes.get(stmt, set())
        operands = {self._root(buffer_of(address.args[0])) for address, *_ in product.matrices}
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
        return any(_differ(own, place) for place in places)


def is_proxy_fence(stmt: tirx.Stmt) -> bool:
    """Tell whether a thread orders what it did before asynchronous work with shared memory."""
    op = operator_of(stmt) if type(stmt) is tirx.Evaluate else None
    return op is not None and op.role == "proxy fence"


def _lets_go(stmt: tirx.Evaluate) -> bool:
    """Tell whether other threads may go on by what a statement does."""
    return literal(stmt.value) is None and not is_proxy_fence(stmt)


def product_in(stmt: tirx.Stmt) -> Product | None:
    """The product of warpgroups that a statement issues, if it does."""
    return product_of(stmt.value) if isinstance(stmt, tirx.Evaluate) else None
