"""Facts about a node of the IR, kept for as long as it lives: nodes never change."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from tvm import ir

Result = TypeVar("Result")

_MOST_KEPT = 1 << 12


def cached_per_node(function: Callable[[Any], Result]) -> Callable[[Any], Result]:
    """Decorate a function of a node that depends on nothing else: it runs once for each node.

    A node whose result is known is kept, so no other one gets its address, and TVM, which changes
    nodes only where nobody else has them, makes another one.
    """
    known: dict[int, tuple[Any, Result]] = {}

    @wraps(function)
    def look(node: ir.Node) -> Result:
        found = known.get(hash(node))
        if found is None:
            if len(known) >= _MOST_KEPT:
                known.clear()
            found = known[hash(node)] = node, function(node)
        return found[1]

    return look
