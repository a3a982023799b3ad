"""Pieces of Python's syntax trees that a rewritten kernel is made of."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

TRACER_NAME = "__tile__"
OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("add", "+"),
    ast.Sub: ("sub", "-"),
    ast.Mult: ("mul", "*"),
    ast.Div: ("truediv", "/"),
    ast.FloorDiv: ("floordiv", "//"),
    ast.Mod: ("mod", "%"),
    ast.Pow: ("pow", "**"),
    ast.LShift: ("lshift", "<<"),
    ast.RShift: ("rshift", ">>"),
    ast.BitAnd: ("and_", "&"),
    ast.BitOr: ("or_", "|"),
    ast.BitXor: ("xor", "^"),
    ast.MatMult: ("matmul", "@"),
}
"""Python's operators of two operands: their functions in the module `operator`, and their signs."""


def plain_arguments(names: list[str]) -> ast.arguments:
    """Parameters of these names, without defaults."""
    return ast.arguments(
        posonlyargs=[], args=[ast.arg(name) for name in names], kwonlyargs=[], kw_defaults=[],
        defaults=[],
    )  # fmt: skip


def call_of_tracer(method: str, *args: ast.expr) -> ast.Call:
    """`__tile__.method(...)`."""
    function = ast.Attribute(ast.Name(TRACER_NAME, ast.Load()), method, ast.Load())
    return ast.Call(function, list(args), [])


def load(name: str) -> ast.Name:
    """A name that is read."""
    return ast.Name(name, ast.Load())


def store(name: str) -> ast.Name:
    """A name that is assigned."""
    return ast.Name(name, ast.Store())


def locals_() -> ast.Call:
    """`locals()`."""
    return ast.Call(load("locals"), [], [])


def rebound(method: str, construct: str, name: str) -> ast.stmt:
    """`x = __tile__.escape(construct, "x", locals())`."""
    value = call_of_tracer(method, load(construct), ast.Constant(name), locals_())
    return ast.Assign([store(name)], value)


def where_dynamic(construct: str, statements: list[ast.stmt]) -> list[ast.stmt]:
    """Statements for a construct of the running kernel; one of the tracing needs none."""
    if not statements:
        return []
    return [ast.If(ast.Attribute(load(construct), "dynamic", ast.Load()), statements, [])]


def thunk(value: ast.expr) -> ast.Lambda:
    """`lambda: value`."""
    return ast.Lambda(plain_arguments([]), value)


def locate(node: Any, line: int) -> Any:
    """Place the nodes that have no location on one line.

    `ast.fix_missing_locations` lets them extend over all lines of their parent, and Python reports a
    method call at the last line of its name.
    """
    if "lineno" in node._attributes and getattr(node, "lineno", None) is None:
        node.lineno = node.end_lineno = line
        node.col_offset = node.end_col_offset = 0
    for child in ast.iter_child_nodes(node):
        locate(child, getattr(node, "lineno", line))
    return node


def decorator_name(decorator: ast.expr) -> str | None:
    """The last name of a decorator; None of one that has none."""
    if isinstance(decorator, ast.Call):
        decorator = decorator.func
    if isinstance(decorator, ast.Attribute):
        return decorator.attr
    return decorator.id if isinstance(decorator, ast.Name) else None


def traced_range(iterable: ast.expr) -> ast.expr:
    """A loop over `range(...)` is a loop of the program, unlike a comprehension over it."""
    if (
        isinstance(iterable, ast.Call)
        and isinstance(iterable.func, ast.Name)
        and iterable.func.id == "range"
    ):
        iterable.func = ast.copy_location(
            ast.Attribute(load(TRACER_NAME), "range", ast.Load()), iterable.func
        )
        ast.fix_missing_locations(iterable)
    return iterable


def target_names(target: ast.expr) -> ast.expr | None:
    """The names of a target as a constant of the same structure, or None for other targets."""
    if isinstance(target, ast.Name):
        return ast.Constant(target.id)
    if isinstance(target, ast.Tuple | ast.List):
        names = [target_names(element) for element in target.elts]
        if all(name is not None for name in names):
            return ast.Tuple([name for name in names if name is not None], ast.Load())
    return None


def names_in(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that pieces of syntax mention."""
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}
