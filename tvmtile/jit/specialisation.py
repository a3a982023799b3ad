"""Specialisations of a kernel: its style, the arguments of a call, and the values around it."""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from tvm import ir

from tvmtile.errors import ArgumentError, SyntaxNotSupported, is_internal
from tvmtile.frontend.entry import Macro
from tvmtile.frontend.syntax import last_name, nested, parse_definition
from tvmtile.jit.signature import KernelSignature
from tvmtile.library import compute

EAGER, LAZY = "eager", "lazy"
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
        if isinstance(node, ast.FunctionDef) and "prim_func" in map(last_name, node.decorator_list):
            return LAZY
        if isinstance(node, ast.Call) and last_name(node) in _OF_KERNELS:
            return EAGER
        if isinstance(node, ast.Call):
            called.append(_value_of(node.func, func))
            if isinstance(called[-1], Macro):
                return EAGER
        if (
            isinstance(node, ast.AnnAssign)
            and last_name(node.target) in parameters
            and not node.value
        ):
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
        if isinstance(func, types.MethodType) and last_name(name.value) == "self":
            return getattr(func.__self__.__class__, name.attr, None)
        return None
    if isinstance(func, types.MethodType):
        func = func.__func__
    if not isinstance(name, ast.Name) or not isinstance(func, types.FunctionType):
        return None
    if name.id in func.__code__.co_freevars:
        return _value_in((func.__closure__ or ())[func.__code__.co_freevars.index(name.id)])()
    return func.__globals__.get(name.id)


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


class Description:
    """The origins of the constants of a kernel in the eager style.

    Parameters
    ----------
    parameters : dict of str to Var
        What the kernel describes.
    variables : dict of str to Var
        What stands in these for each constant.
    """

    def __init__(self, parameters: Mapping[str, ir.Var], variables: Mapping[str, ir.Var]) -> None:
        self._parameters = list(parameters)
        signature = KernelSignature("", tuple(parameters.values()), ())
        self.constants = {name: signature.program_of(var) for name, var in variables.items()}
        """The program of each, by name; None where the arguments don't say."""

    def values(self, arguments: Mapping[str, Any], given: Mapping[str, int]) -> dict[str, int]:
        """The constants, from the arguments of a call or given by keyword."""
        args = [arguments.get(name) for name in self._parameters]
        values = {}
        for name, program in self.constants.items():
            if name in given:
                values[name] = given[name]
                continue
            if program is None:
                raise ArgumentError(
                    f"the constant {name!r} is no extent of a tensor of the kernel",
                    help=f"use {name} as an extent by itself, or give it by keyword",
                )
            try:
                values[name] = int(compute(program, args))
            except (AttributeError, IndexError):
                raise self._lacking(name, program, args) from None
        return values

    def _lacking(self, constant: str, program: Any, args: list[Any]) -> ArgumentError:
        """The error of an argument that is not given, or has too few dimensions."""
        operation, *parts = program
        if isinstance(operation, str):
            return next(
                filter(
                    None,
                    (
                        self._lacking(constant, part, args)
                        for part in parts
                        if isinstance(part, list)
                    ),
                )
            )
        argument, name, axis = args[operation], self._parameters[operation], parts[0]
        if argument is None:
            return ArgumentError(
                f"the constant {constant!r} needs the argument {name!r}",
                help=f"give the tensor, or `{constant}=...` by keyword",
            )
        rank = len(argument.shape)
        return ArgumentError(
            f"{name!r} has {rank} dimension{'s' * (rank != 1)}; axis {axis} gives {constant!r}"
        )


_PLAIN = (bool, int, float, str, type(None))
_ABSENT = object()


class Surroundings:
    """Numbers, strings and tuples of them: globals, names around the function, attributes of `self`.

    Those of the macros and functions that it calls by name are among them.
    """

    def __init__(self, func: Callable[..., object]) -> None:
        seen: set[types.CodeType] = set()
        self._readers = [read for read in _readers(func, seen) if _plain(read()) is not None]

    def values(self) -> tuple[str, ...]:
        """Their present values."""
        return tuple(_plain(read()) or "" for read in self._readers)


def _readers(func: Callable[..., object], seen: set[types.CodeType]) -> Iterator[Callable[[], Any]]:
    code = getattr(func, "__code__", None)
    if code is None or code in seen or is_internal(code.co_filename):
        return
    seen.add(code)
    instructions = [step for part in (code, *nested(code)) for step in dis.get_instructions(part)]
    for name in _named(instructions, "LOAD_GLOBAL") & func.__globals__.keys():
        yield _item_of(func.__globals__, name)
        value = func.__globals__[name]
        yield from _readers(value.func if isinstance(value, Macro) else value, seen)
    for cell in func.__closure__ or ():
        yield _value_in(cell)
    if isinstance(func, types.MethodType):
        yield from _attributes_of(func.__self__, _named(instructions, "LOAD_ATTR"))


def _item_of(names: Mapping[str, object], name: str) -> Callable[[], Any]:
    return lambda: names.get(name, _ABSENT)


def _attributes_of(instance: object, names: set[str]) -> Iterator[Callable[[], Any]]:
    for name in names:
        if not hasattr(inspect.getattr_static(instance.__class__, name, None), "__get__"):
            yield functools.partial(getattr, instance, name, _ABSENT)


def _named(instructions: list[dis.Instruction], operation: str) -> set[str]:
    return {step.argval for step in instructions if step.opname == operation}


def _value_in(cell: types.CellType) -> Callable[[], Any]:
    def read() -> Any:
        try:
            return cell.cell_contents
        except ValueError:  # it has no value yet
            return _ABSENT

    return read


def _plain(value: object) -> str | None:
    """A plain value as text, which tells 1 from 1.0 and True, as a program does."""
    is_plain = isinstance(value, _PLAIN) or (
        isinstance(value, tuple) and all(_plain(item) is not None for item in value)
    )
    return repr(value) if is_plain else None
