"""Products of warpgroups whose operands threads have written, so that a fence must precede them."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import buffer_of
from tvmtile.analysis.aliases import Aliases
from tvmtile.analysis.effects import effects_of
from tvmtile.analysis.forward import Forward
from tvmtile.ir.asynchronous import Product, product_of
from tvmtile.ir.kernels import Launch, statements_of
from tvmtile.ir.operands import constant
from tvmtile.ir.operators import operator_of
from tvmtile.ir.rewriting import contains
from tvmtile.ir.scopes import is_private, is_shared

_Path = tuple[int, ...]
"""The branches around a statement, outer ones first."""


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

    def _note(self, stmt: tirx.Stmt, path: _Path) -> None:
        """Find products and what is written, with the branches around them."""
        inside = statements_of(stmt)
        for each in inside:
            self._branches += 1
            in_branch = isinstance(stmt, tirx.IfThenElse)
            self._note(each, (*path, self._branches) if in_branch else path)
        if isinstance(stmt, tirx.For | tirx.While) and contains(stmt, tirx.Evaluate, _lets_go):
            self._let_go()  # in the next iteration
        if inside or (isinstance(stmt, tirx.BufferStore) and is_private(buffer_of(stmt))):
            return
        if product_in(stmt) is not None:
            self._products[stmt] = path
            return
        uses = [use for use in effects_of(stmt) if use.writes and use.completes_on is None]
        self._writes[stmt] = {root for u in uses if is_shared(root := self._root(u.buffer))}
        self._unfenced += [(tile, path) for tile in self._writes[stmt]]
        if is_proxy_fence(stmt):
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
        return any(own != p[: len(own)] and p != own[: len(p)] for p in places)


def is_proxy_fence(stmt: tirx.Stmt) -> bool:
    """Tell whether a thread orders what it did before asynchronous work with shared memory."""
    op = operator_of(stmt) if type(stmt) is tirx.Evaluate else None
    return op is not None and op.role == "proxy fence"


def _lets_go(stmt: tirx.Evaluate) -> bool:
    """Tell whether other threads may go on by what a statement does."""
    return constant(stmt.value) is None and not is_proxy_fence(stmt)


def product_in(stmt: tirx.Stmt) -> Product | None:
    """The product of warpgroups that a statement issues, if it does."""
    return product_of(stmt.value) if isinstance(stmt, tirx.Evaluate) else None
