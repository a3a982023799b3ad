"""Names that hold no value: what a loop or a branch bound, used after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import ScopeError, SourceLocation, TileError


class Unusable:
    """What a name holds that has no value here: any use is the error."""

    def __init__(self, error: Callable[[], TileError]) -> None:
        object.__setattr__(self, "_error", error)

    def __getattr__(self, attribute: str) -> Any:
        raise_unusable(self)

    def _use(self, *_: object, **__: object) -> Any:
        raise_unusable(self)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _use
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _use
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __pow__ = __rpow__ = _use
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __neg__ = __invert__ = _use
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _use
    __getitem__ = __setitem__ = __call__ = __iter__ = __len__ = __index__ = __bool__ = _use
    __float__ = __int__ = __enter__ = __exit__ = _use
    __hash__ = None  # type: ignore[assignment]


def raise_unusable(value: Unusable) -> NoReturn:
    """Report the use of a name that has no value."""
    make_error = object.__getattribute__(value, "_error")
    raise make_error()


def escaped(
    name: str, construct: str, location: SourceLocation | None, value: object | None = None
) -> Unusable:
    """What a name holds after the run-time loop or branch that bound it to a value."""
    where = f" (line {location.line})" if location is not None else ""
    if is_buffer_var(value):
        remedy = f"the tile belongs to the {construct}: allocate {name} before it"
    else:
        remedy = (
            f"there is no value where the {construct} is not entered: give {name} a first value "
            f"before the {construct}, such as `{name} = 0.0`"
        )
    return Unusable(
        lambda: ScopeError(
            f"{name!r} is bound inside a {construct}{where} and used after it", help=remedy
        )
    )


def counted(name: str) -> Unusable:
    """What the name of a loop's variable holds after the loop."""
    return Unusable(
        lambda: ScopeError(
            f"{name!r} counts the iterations of a loop and is used after it",
            help="write the value that is meant, such as the loop's extent",
        )
    )
