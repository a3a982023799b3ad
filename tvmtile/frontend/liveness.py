"""Which names a piece of Python reads before it writes them.

What is read counts wherever it may be read; what is written counts only where it is written on every
path, so that a name is never taken for dead while its value may be needed. A loop may do nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

OWN_SCOPE = (
    ast.FunctionDef,
    ast.ClassDef,
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)


def exposed(statements: Sequence[ast.stmt]) -> set[str]:
    """The names that some path reads before it has written them."""
    return _flow(statements)[0]


def written(statements: Sequence[ast.stmt]) -> set[str]:
    """The names that every path writes."""
    return _flow(statements)[1]


def stored_names(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that some path binds, in the scope of the nodes themselves."""
    names: set[str] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if isinstance(node, OWN_SCOPE):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        pending.extend(ast.iter_child_nodes(node))
    return names


def loop_targets(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that loops among the nodes count with."""
    loops = [n for node in nodes for n in ast.walk(node) if isinstance(n, ast.For)]
    return stored_names([loop.target for loop in loops])


def _flow(statements: Sequence[ast.stmt]) -> tuple[set[str], set[str]]:
    read: set[str] = set()
    written: set[str] = set()
    for statement in statements:
        reads, writes = _flow_of(statement)
        read |= reads - written
        written |= writes
    return read, written


def _flow_of(stmt: ast.stmt) -> tuple[set[str], set[str]]:
    if isinstance(stmt, ast.If):
        then, otherwise = _flow(stmt.body), _flow(stmt.orelse)
        return _loaded([stmt.test]) | then[0] | otherwise[0], then[1] & otherwise[1]
    if isinstance(stmt, ast.For):
        inside = exposed(stmt.body) - stored_names([stmt.target])
        return _loaded([stmt.iter, stmt.target]) | inside, set()
    if isinstance(stmt, ast.While):
        return _loaded([stmt.test]) | exposed(stmt.body), set()
    if isinstance(stmt, ast.With):
        bound = stored_names(i.optional_vars for i in stmt.items if i.optional_vars is not None)
        reads, writes = _flow(stmt.body)
        return _loaded(item.context_expr for item in stmt.items) | (reads - bound), writes | bound
    if isinstance(stmt, ast.AugAssign):
        return _loaded([stmt]) | stored_names([stmt.target]), stored_names([stmt.target])
    if isinstance(stmt, ast.FunctionDef | ast.ClassDef):
        return _loaded([stmt]), {stmt.name}
    if isinstance(stmt, ast.Assign | ast.AnnAssign):
        return _loaded([stmt]), stored_names([stmt])
    return _loaded([stmt]), set()


def _loaded(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that are read in nodes, in functions of theirs too."""
    return {
        name.id
        for node in nodes
        for name in ast.walk(node)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)
    }
