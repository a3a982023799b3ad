"""The cost of names: TVM's analyzer puts their values in their places."""

from __future__ import annotations

from tvm import ir, tirx

from tvmtile._tvm import nodes_in
from tvmtile.ir.calls import is_if_then_else
from tvmtile.ir.divisions import is_division
from tvmtile.ir.nodes import cached_per_node

_MOST_COPIES = 100
_MOST_DEEP = 400
"""Nodes in one another, which TVM visits by recursion; counted as if no value were balanced."""


class NameCosts:
    """Counts what comes of putting the values of names, each noted once, in their places.

    More than `most_copies` of the names that have no value are too many, and more than `most_deep` of
    them in one another. What simplifies expressions makes copies for the outcomes of `choices`, too;
    what only puts values in the places of names does not.
    """

    def __init__(
        self,
        most_copies: float = _MOST_COPIES,
        most_deep: float = _MOST_DEEP,
        *,
        choices: bool = True,
    ) -> None:
        self._most_copies, self._most_deep = most_copies, most_deep
        self._counts_choices = choices
        # By address, with the name: variables are slow to compare.
        self._known: dict[int, tuple[ir.Var, int, int]] = {}

    def note(self, var: ir.Var, value: ir.Expr) -> bool:
        """Note the value of a name; tell whether it had better stay where it is.

        The name then counts as one of which nothing is known.
        """
        names, choices = _names_and_choices(value)
        known = [self._known[hash(name)] for name in names if hash(name) in self._known]
        copies = max(1, sum(copies for _, copies, _ in known))
        if self._counts_choices:
            copies <<= choices
        depth = max((depth for _, _, depth in known), default=0) + max(1, len(names))
        is_kept = copies > self._most_copies or depth > self._most_deep
        self._known[hash(var)] = (var, 1, 0) if is_kept else (var, copies, depth)
        return is_kept

    def copies_in(self, node: ir.Node) -> int:
        """The number of copies that a node comes to."""
        names = map(hash, nodes_in(node, ir.Var))
        return sum(self._known[name][1] for name in names if name in self._known)


@cached_per_node
def _names_and_choices(value: ir.Expr) -> tuple[list[ir.Var], int]:
    """The names in a value, as often as they stand there, and how many choices there are.

    TVM simplifies what stands in a choice once for each of its outcomes; it makes four of a division
    that rounds down.
    """
    names: list[ir.Var] = []
    choices = 0
    for node in nodes_in(value, (ir.Var, tirx.Select, ir.Call, tirx.FloorDiv, tirx.FloorMod)):
        if isinstance(node, ir.Var):
            names.append(node)
        elif isinstance(node, tirx.Select) or is_if_then_else(node):
            choices += 1
        elif is_division(node):
            choices += 4
    return names, choices
