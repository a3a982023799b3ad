"""In which of the two styles a function under `@tvmtile.jit` is written."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable
from typing import Any

from tvmtile.errors import (
    SyntaxNotSupported,
)
from tvmtile.frontend.entry import Macro
from tvmtile.frontend.syntax import parse_definition

EAGER = "eager"


LAZY = "lazy"


_OF_KERNELS = ("Kernel", "const", "thread_binding", "launch_thread")
"""What only a kernel calls, not a function that returns one."""


def written_style(func: Callable[..., Any]) -> str | None:
    """The style that the source shows.

    Eager with statements of a kernel or calls of macros, lazy around a T.prim_func.
    """
    try:
        definition = parse_definition(inspect.unwrap(func).__code__)
    except (AttributeError, SyntaxNotSupported):
        return None
    parameters = set(inspect.signature(func).parameters)
    pending: list[ast.AST] = list(ast.iter_child_nodes(definition))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef) and "prim_func" in map(_name, node.decorator_list):
            return LAZY
        if isinstance(node, ast.Call) and _name(node) in _OF_KERNELS:
            return EAGER
        if isinstance(node, ast.Call) and isinstance(_value_of(node.func, func), Macro):
            return EAGER
        if isinstance(node, ast.AnnAssign) and _name(node.target) in parameters and not node.value:
            return EAGER
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            pending.extend(ast.iter_child_nodes(node))
    return None


def _value_of(name: ast.expr, func: Callable[..., Any]) -> Any:
    """What a name of a function refers to, or an attribute of a module; None where it isn't known."""
    if isinstance(name, ast.Attribute):
        module = _value_of(name.value, func)
        return getattr(module, name.attr, None) if isinstance(module, types.ModuleType) else None
    if not isinstance(name, ast.Name) or not isinstance(func, types.FunctionType):
        return None
    if name.id in func.__code__.co_freevars:
        cell = (func.__closure__ or ())[func.__code__.co_freevars.index(name.id)]
        try:
            return cell.cell_contents
        except ValueError:  # it has no value yet
            return None
    return func.__globals__.get(name.id)


def _name(node: ast.expr) -> str:
    """The last name of `a.b.name` or `a.b.name(...)`."""
    if isinstance(node, ast.Call):
        node = node.func
    return getattr(node, "attr", getattr(node, "id", ""))
