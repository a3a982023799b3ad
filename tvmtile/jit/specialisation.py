"""Specialisations of a kernel, told apart by its style and the arguments of a call."""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, TypeVar

from tvmtile.errors import (
    ArgumentError,
    SyntaxNotSupported,
    is_internal,
)
from tvmtile.frontend.entry import Macro
from tvmtile.frontend.syntax import parse_definition

EAGER = "eager"


LAZY = "lazy"


_OF_KERNELS = ("Kernel", "const", "thread_binding", "launch_thread")
"""Functions that only a kernel calls, not a function that returns one."""


def written_style(func: Callable[..., Any], seen: frozenset[Any] = frozenset()) -> str | None:
    """The style that the source shows, of the function or of those that it calls by their names.

    Eager with statements of a kernel or calls of macros, lazy around a T.prim_func.
    """
    try:
        code = inspect.unwrap(func).__code__
        if code in seen or is_internal(code.co_filename):
            return None
        definition = parse_definition(code)
    except (AttributeError, SyntaxNotSupported):
        return None
    parameters = set(inspect.signature(func).parameters)
    called: list[Any] = []
    pending: list[ast.AST] = list(ast.iter_child_nodes(definition))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef) and "prim_func" in map(_name, node.decorator_list):
            return LAZY
        if isinstance(node, ast.Call) and _name(node) in _OF_KERNELS:
            return EAGER
        if isinstance(node, ast.Call):
            called.append(_value_of(node.func, func))
            if isinstance(called[-1], Macro):
                return EAGER
        if isinstance(node, ast.AnnAssign) and _name(node.target) in parameters and not node.value:
            return EAGER
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            pending.extend(ast.iter_child_nodes(node))
    styles = (written_style(each, seen | {code}) for each in called if inspect.isroutine(each))
    return next(filter(None, styles), None)


def _value_of(name: ast.expr, func: Callable[..., Any]) -> Any:
    """The value of a function's name, of a module's attribute or a method; None if unknown."""
    if isinstance(name, ast.Attribute):
        holder = _value_of(name.value, func)
        if isinstance(holder, types.ModuleType):
            return getattr(holder, name.attr, None)
        if isinstance(func, types.MethodType) and _name(name.value) == "self":
            return getattr(func.__self__.__class__, name.attr, None)
        return None
    if isinstance(func, types.MethodType):
        func = func.__func__
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


def is_tensor(value: Any) -> bool:
    """Tell a tensor of any library from other arguments."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


_Made = TypeVar("_Made")
MANY = 64
"""Specialisations of one function after which its user is told how to need fewer."""
MOST = 512
"""The most results that are kept; on disk they are all."""


class Kept(dict[Any, _Made]):
    """Results by their keys. The oldest is given up where there are too many."""

    def __setitem__(self, key: Any, made: _Made) -> None:
        super().__setitem__(key, made)
        for old in list(self)[:-MOST]:
            self.pop(old, None)


def hashable(values: Any) -> Any:
    """Values as a dictionary key: lists become tuples; what has no hash is an error."""
    if isinstance(values, list | tuple):
        return tuple(hashable(value) for value in values)
    if isinstance(values, dict):
        return tuple((name, hashable(value)) for name, value in sorted(values.items()))
    try:
        hash(values)
    except TypeError:
        raise ArgumentError(
            f"a {type(values).__name__} can't select a specialisation of a kernel",
            help="pass numbers, strings, dtypes and tuples of them"
            + (", and tensors to the kernel: `make(M, N)(x)`" if is_tensor(values) else ""),
        ) from None
    return (type(values).__name__, values)


class Arguments:
    """The arguments of calls of a function.

    Attributes
    ----------
    signature : inspect.Signature
        The function's parameters.
    """

    def __init__(self, func: Callable[..., Any]) -> None:
        self.signature = inspect.signature(func)
        self._func = func

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make sure that a call of the function takes them.

        Raises
        ------
        ArgumentError
            If it does not.
        """
        self._bind(self.signature.bind, args, kwargs)

    @property
    def are_needed(self) -> bool:
        """Tell whether a call gives some."""
        parameters = self.signature.parameters.values()
        return any(
            p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
            for p in parameters
        )

    def by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call and the defaults of others by name, in order."""
        names = self._names
        if kwargs or names is None or len(args) > len(names):
            bound = self._bind(self.signature.bind_partial, args, kwargs)
            bound.apply_defaults()
            return bound.arguments
        # What inspect does takes longer than a small kernel.
        arguments = dict(zip(names, args, strict=False))
        for name in names[len(args) :]:
            if name in self._defaults:
                arguments[name] = self._defaults[name]
        return arguments

    @functools.cached_property
    def _names(self) -> tuple[str, ...] | None:
        """The parameters' names; None where some are given in one way only."""
        parameters = self.signature.parameters
        is_plain = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters.values())
        return tuple(parameters) if is_plain else None

    @functools.cached_property
    def _defaults(self) -> dict[str, Any]:
        parameters = self.signature.parameters.values()
        return {p.name: p.default for p in parameters if p.default is not p.empty}

    def _bind(
        self, bind: Callable[..., inspect.BoundArguments], args: Any, kwargs: Any
    ) -> inspect.BoundArguments:
        try:
            return bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(
                f"{self._func.__name__}: {error}", help=f"its parameters are {self.signature}"
            ) from None
