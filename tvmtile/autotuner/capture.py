"""The inputs that kernels are tuned with, for the calls in a `with` block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["get_autotune_inputs", "set_autotune_inputs"]

_inputs: ContextVar[list[Any] | None] = ContextVar("tvmtile_autotune_inputs", default=None)


@contextmanager
def set_autotune_inputs(*args: Any) -> Iterator[None]:
    """Measure what is tuned in this context with these inputs.

    Parameters
    ----------
    *args : Any
        The arguments of the kernel, without its results: one by one, or as one list. They are not
        changed: each configuration gets copies.
    """
    whole = len(args) == 1 and isinstance(args[0], list | tuple)
    token = _inputs.set(list(args[0] if whole else args))
    try:
        yield
    finally:
        _inputs.reset(token)


def get_autotune_inputs() -> list[Any] | None:
    """The inputs of the innermost `set_autotune_inputs`, or None outside of one."""
    return _inputs.get()
