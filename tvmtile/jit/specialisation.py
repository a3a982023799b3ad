"""What tells the specialisations of a kernel apart: the arguments of a call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from tvmtile.errors import (
    ArgumentError,
)


def is_tensor(value: Any) -> bool:
    """Tell a tensor of any library from other arguments."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


_Made = TypeVar("_Made")
MANY = 64
"""Specialisations of one function after which its user is told how to need fewer."""
MOST = 512
"""Those that are kept; on disk they are all."""


class Kept(dict[Any, _Made]):
    """What has been made for keys. The oldest is given up where there are too many."""

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
